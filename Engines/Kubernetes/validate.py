"""Checks Kubernetes files without a cluster; unknown fields are errors.

    python validate.py FILE ...     or - for standard input

A TFJob or PyTorchJob is compared with the models that the Training Operator publishes
(package kubeflow-training), which come from the same Go types as the custom resource
definition. Its pod templates are compared with Kubernetes' own schema. All other files
are compared with Kubernetes' JSON schemas (package kubernetes-validate, strict). Then
follow rules that the operator has and no schema says. Each finding is a line; status 1.
"""

import functools
import re
import sys

import jsonschema
import kubernetes_validate
import yaml
from kubeflow.training import models

# It reads 5 MB of definitions for every object.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)
VERSIONS = ("1.29", "1.31", "1.34")  # of Kubernetes
CONTAINERS = {"TFJob": "tensorflow", "PyTorchJob": "pytorch"}
MODELS = {"TFJob": "KubeflowOrgV1TFJob", "PyTorchJob": "KubeflowOrgV1PyTorchJob"}
REPLICAS = {
    "TFJob": {"Chief", "Master", "PS", "Worker", "Evaluator"},
    "PyTorchJob": {"Master", "Worker"},
}
RESTARTS = {"Always", "OnFailure", "Never", "ExitCode"}
CLEANS = {"Running", "All", "None"}
AS = {
    "V1PodTemplateSpec": lambda value: {"kind": "Pod", **value},
    "V1ObjectMeta": lambda value: {"kind": "ConfigMap", "metadata": value},
}
TYPES = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def schema(value, version):
    """Yields what Kubernetes' schema says against an object."""
    try:
        kubernetes_validate.validate(value, version, strict=True)
    except jsonschema.ValidationError as error:
        where = ".".join(map(str, error.absolute_path))
        yield f"{where}: {error.message[:200]} (Kubernetes {version})"
    except kubernetes_validate.SchemaNotFoundError as error:
        yield error.message


def model(value, kind, where):
    """Yields what is against a model of the operator's; `kind` is the model's word."""
    if inner := re.fullmatch(r"dict\(str, (.*)\)|list\[(.*)\]", kind):
        if not isinstance(value, dict if inner[1] else list):
            yield f"{where}: {value!r} is not a {'map' if inner[1] else 'list'}"
            return
        pairs = value.items() if inner[1] else enumerate(value)
        for key, item in pairs:
            yield from model(item, inner[1] or inner[2], f"{where}.{key}")
    elif kind in TYPES:
        right = isinstance(value, TYPES[kind])
        if not right or (kind != "bool" and isinstance(value, bool)):
            yield f"{where}: {value!r} is not a {kind}"
    elif kind in AS:
        # Not an object of its own, so it is made part of one.
        for version in VERSIONS:
            found = schema({"apiVersion": "v1", **AS[kind](value)}, version)
            yield from (f"{where}.{line}" for line in found)
    elif kind.startswith("KubeflowOrg"):
        known = getattr(models, kind)
        names = {v: known.openapi_types[k] for k, v in known.attribute_map.items()}
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is not a map"
            return
        for key, item in value.items():
            if key not in names:
                yield f"{where}: unknown field {key}"
            else:
                yield from model(item, names[key], f"{where}.{key}")


def operator(job):
    """Yields what the operator would not take, or not understand, though it fits."""
    kind, spec = job["kind"], job["spec"]
    name = job["metadata"].get("name", "")
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > 50:
        yield f"metadata.name: {name!r} cannot be part of a host's name"
    clean = spec.get("runPolicy", {}).get("cleanPodPolicy", "None")
    if clean not in CLEANS:
        yield f"spec.runPolicy.cleanPodPolicy: {clean!r} is not one of {sorted(CLEANS)}"
    key = "tfReplicaSpecs" if kind == "TFJob" else "pytorchReplicaSpecs"
    for replica, one in spec.get(key, {}).items():
        where = f"spec.{key}.{replica}"
        if replica not in REPLICAS[kind]:
            yield f"{where}: not one of {sorted(REPLICAS[kind])}"
        if replica in ("Chief", "Master") and one.get("replicas", 1) > 1:
            yield f"{where}: there can be one"
        if one.get("restartPolicy", "Never") not in RESTARTS:
            yield f"{where}.restartPolicy: {one['restartPolicy']!r} is unknown"
        pods = one.get("template", {}).get("spec", {}).get("containers", [])
        if CONTAINERS[kind] not in [c.get("name") for c in pods]:
            yield f"{where}: no container is named {CONTAINERS[kind]}"


def findings(document):
    """Yields what is wrong with one object."""
    if not isinstance(document, dict) or not {"apiVersion", "kind"} <= set(document):
        yield "no apiVersion and kind"
    elif document["apiVersion"] == "kubeflow.org/v1" and document["kind"] in MODELS:
        found = list(model(document, MODELS[document["kind"]], document["kind"]))
        yield from found or operator(document)
    else:
        for version in VERSIONS:
            yield from schema(document, version)


def main(paths):
    status = 0
    for path in paths:
        with sys.stdin if path == "-" else open(path) as file:
            try:
                documents = [d for d in yaml.safe_load_all(file) if d is not None]
            except yaml.YAMLError as error:
                documents = [" ".join(str(error).split())]
        for document in documents or [None]:
            for line in dict.fromkeys(findings(document)):
                print(f"{path}: {line}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
