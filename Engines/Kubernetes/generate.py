"""Writes the Kubernetes files of a run: any example, any number of ps and workers.

    python generate.py HogWild                                    a TFJob, to stdout
    python generate.py AGN --ps 2 --workers 4 -- --window 8       the script's own flags
    python generate.py HogWild --kind jobs                        without any operator
    python generate.py --kind pytorchjob                          for comparison

--kind tfjob is for the Kubeflow Training Operator, release 1.x, which gives every pod
its TF_CONFIG. --kind jobs is plain Jobs and a headless Service, with TF_CONFIG written
here. Both add a volume for the chief and a NetworkPolicy. Needs PyYAML.
"""

import argparse
import json
import re
import sys

import yaml

PORT = 2222
RUN = "app.kubernetes.io/instance"  # label of all that belongs to a run
LOGS = "/logs"  # in every pod; on the chief's volume for the chief
ALL_REDUCE = """
import torch, torch.distributed as group
group.init_process_group("gloo")  # MASTER_ADDR, RANK, WORLD_SIZE: from the operator
mine = torch.ones(1) * group.get_rank()
group.all_reduce(mine)
print(f"rank {group.get_rank()} of {group.get_world_size()}: the sum is {mine.item()}")
"""


def metadata(args, suffix=""):
    """Returns name, namespace and label of an object."""
    name = {"name": args.name + suffix, "labels": {RUN: args.name}}
    return {**name, "namespace": args.namespace}


def pod(args, job, container="tensorflow", command=None, env=()):
    """Returns the template of a task's pod; `job` is chief, ps or worker.

    The operator looks for a container named tensorflow, and puts TF_CONFIG there.
    """
    script = args.example.lower().replace("-", "_") + ".py"
    command = command or [
        "python",
        f"{args.example}/{script}",
        *args.options,
        f"--logdir={LOGS}/{args.name}",
    ]
    # A pod that comes again begins with an empty disk; the chief needs its checkpoints.
    volume = {"name": "logs", "emptyDir": {}}
    if job == "chief":
        claim = {"claimName": f"{args.name}-logs"}
        volume = {"name": "logs", "persistentVolumeClaim": claim}
    one = {
        "name": container,
        "image": args.image,
        "command": command,
        "ports": [{"name": "tfjob-port", "containerPort": PORT}],
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "logs", "mountPath": LOGS}],
    }
    if env:
        one["env"] = list(env)
    spec = {
        # Told to end, the chief saves a checkpoint first, which takes seconds.
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "containers": [one],
        "volumes": [volume],
    }
    return {"metadata": {"labels": {RUN: args.name}}, "spec": spec}


def counts(args):
    """Returns how many pods each job has: the chief is worker 0."""
    found = {"chief": 1, "ps": args.ps, "worker": args.workers - 1}
    return {job: count for job, count in found.items() if count}


def around(args):
    """Returns what surrounds a run: the chief's volume, and who may reach its ports."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(args, "-logs"),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": args.storage}},
        },
    }
    ours = {"podSelector": {"matchLabels": {RUN: args.name}}}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(args),
        "spec": {
            **ours,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [ours], "ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }
    return [claim, policy]


def tfjob(args):
    """Returns the TFJob."""
    names = {"chief": "Chief", "ps": "PS", "worker": "Worker"}
    # ExitCode: 1 to 127 are final (1 would fail again, 2 usage, 3 something is not
    # there), from 128 on a pod comes again (138, or killed by a signal).
    replicas = {
        names[job]: {
            "replicas": count,
            "restartPolicy": "ExitCode",
            "template": pod(args, job),
        }
        for job, count in counts(args).items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(args),
        "spec": {
            # When the chief has succeeded, pods that still run are deleted. Those that
            # have finished stay, so that their logs can be read.
            "runPolicy": {"cleanPodPolicy": "Running", "activeDeadlineSeconds": 86400},
            "tfReplicaSpecs": replicas,
        },
    }


def jobs(args):
    """Returns a headless Service, which names the pods, and a Job for each of ours."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(args),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {RUN: args.name},
            "ports": [{"name": "tensorflow", "port": PORT}],
        },
    }
    found = [service]
    cluster = {
        job: [f"{args.name}-{job}-{i}.{args.name}:{PORT}" for i in range(count)]
        for job, count in counts(args).items()
    }
    # The controller writes a pod's index into an annotation; it replaces $(INDEX).
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    for job, count in counts(args).items():
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
        env = [
            {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": index}}},
            {"name": "TF_CONFIG", "value": config.replace(": 0}}", ": $(INDEX)}}")},
        ]
        template = pod(args, job, env=env if args.ps + args.workers > 1 else ())
        template["spec"] |= {"subdomain": args.name, "restartPolicy": "Never"}
        final = {"operator": "In", "values": [1, 2, 3]}
        evicted = [{"type": "DisruptionTarget", "status": "True"}]
        spec = {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": 6,
            "activeDeadlineSeconds": 86400,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": final},
                    {"action": "Ignore", "onPodConditions": evicted},
                ]
            },
            "template": template,
        }
        head = {"apiVersion": "batch/v1", "kind": "Job"}
        found.append({**head, "metadata": metadata(args, f"-{job}"), "spec": spec})
    return found


def pytorchjob(args):
    """Returns a PyTorchJob: a sum over all processes. Here to be compared."""
    template = pod(args, "worker", "pytorch", ["python", "-c", ALL_REDUCE])
    template["spec"]["containers"][0]["ports"] = [
        {"name": "pytorchjob-port", "containerPort": 23456}
    ]
    one = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(args),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "pytorchReplicaSpecs": {
                "Master": one,
                "Worker": {**one, "replicas": args.workers - 1},
            },
        },
    }


def parse_args(argv):
    """Returns the checked flags; what follows -- is the script's."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("example", nargs="?", default="HogWild", help="its folder")
    add("--kind", choices=("tfjob", "jobs", "pytorchjob"), default="tfjob")
    add("--ps", type=int, default=1, help="how many (1)")
    add("--workers", type=int, default=2, help="how many, the chief included (2)")
    add("--name", help="of the run (the example's, in lower case)")
    add("--namespace", default="default")
    add("--image", default="guide:1", help="see Dockerfile (guide:1)")
    add("--storage", default="1Gi", help="of the chief's volume (1Gi)")
    args = parser.parse_args(argv[:split])
    args.options = argv[split + 1 :]
    args.name = args.name or args.example.lower()
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", args.name):
        parser.error(
            f"--name {args.name!r}: a to z, 0 to 9 and -, at most 50, a letter first"
        )
    if args.ps < 0 or args.workers < 1:
        parser.error(f"--ps {args.ps} --workers {args.workers}: too few to train")
    if args.kind == "pytorchjob" and args.workers < 2:
        parser.error(
            "--workers: a PyTorchJob here has a master and at least one worker"
        )
    if any(option.startswith("--logdir") for option in args.options):
        parser.error(
            f"--logdir: it is {LOGS}/NAME on the chief's volume; "
            "for a fresh run give another --name"
        )
    return args


class Dumper(yaml.SafeDumper):
    """Writes lists indented, texts of several lines as such, and no aliases."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data):
        return True


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def main(argv):
    """Returns the file's text."""
    args = parse_args(argv)
    if args.kind == "pytorchjob":
        found = [pytorchjob(args)]
    else:
        found = [*around(args), *(jobs(args) if args.kind == "jobs" else [tfjob(args)])]
    dumped = yaml.dump_all(found, Dumper=Dumper, sort_keys=False, width=1000)
    words = " ".join(["python generate.py", *argv])
    return f"# Written by `{words}`.\n{dumped}"


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
