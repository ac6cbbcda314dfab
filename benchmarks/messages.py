"""Messages between a worker and the ps, counted in TensorFlow's own log.

With TF_CPP_VMODULE=grpc_state=3,grpc_remote_worker=3 every task writes each call that
it makes to another into its log, with the number of the `session.run` it belongs to and
the name of the tensor that is asked for. For HogWild, AEASGD and Synchronous-SGD, with
one ps and one worker:

    down       RecvTensor by the worker, tensors that come from the ps
    up         RecvTensor by the ps, tensors that come from the worker
    RunGraph   one to each ps starts a `session.run`; CleanupGraph ends it

A call is a `session.run` that makes rounds, a look is one that makes none and reads the
global step. The calls of most rounds are shown.

    python benchmarks/messages.py
    python benchmarks/messages.py --before 1f494bb
"""

import collections
import contextlib
import re

import runs

SCHEMES = ("HogWild", "AEASGD", "Synchronous-SGD")
STEPS = 400
LOG = {"TF_CPP_MIN_LOG_LEVEL": 0, "TF_CPP_VMODULE": "grpc_state=3,grpc_remote_worker=3"}
ASKED = re.compile(
    r"RecvTensorAsync req:[^\n]*\nstep_id: (-?\d+)\nrendezvous_key: \"[^\"]*;"
    r"(?:edge_\d+_)?([^;\"]*);\d+:\d+\""
)
EVENT = re.compile(
    r"RecvTensorAsync req:[^\n]*\nstep_id: (-?\d+)\n"
    r"|Starting call: /tensorflow.WorkerService/RunGraph\n"
)
ROUND = re.compile(r"round_(\d+)")
BEFORE = "before"


def asked(text):
    """Returns {session.run: [name of a tensor that was asked for]} of a log."""
    found = collections.defaultdict(list)
    for step, name in ASKED.findall(text):
        found[step].append(name)
    return found


def run_graphs(text, steps):
    """Returns how many RunGraph a worker's log has for each of these `session.run`.

    It does not say which it is for: what counts is what stands between the first lines
    of one and of the next.
    """
    found, now, sent = [], None, 0
    for match in EVENT.finditer(text):
        step = match[1]
        if step is None:
            sent += 1
        elif step != now:
            if now in steps and step in steps:
                found.append(sent)
            now, sent = step, 0
    return found


def count(logdir):
    """Returns what there is to count in the logs of a run."""
    worker = (logdir / "worker-0.log").read_text(errors="replace")
    ps = (logdir / "ps-0.log").read_text(errors="replace")
    down, up = asked(worker), asked(ps)
    calls = collections.defaultdict(dict)  # rounds of a call: {its number: messages}
    looks = []
    for step in dict.fromkeys([*down, *up]):
        names = [*down[step], *up[step]]
        numbers = {int(n) for name in names for n in ROUND.findall(name)}
        messages = len(down[step]), len(up[step])
        if numbers:
            calls[max(numbers) + 1][step] = messages
        elif any(name.startswith("global_step") for name in names):
            looks.append(messages)
        else:
            calls[1][step] = messages
    rounds = max(calls)
    shown = calls[rounds].values()
    return {
        "rounds_of_a_call": rounds,
        "calls": len(shown),
        "down": middle(shown, 0) / rounds,
        "up": middle(shown, 1) / rounds,
        "run_graph": runs.middle(run_graphs(worker, calls[rounds])),
        "look_down": middle(looks, 0),
        "look_up": middle(looks, 1),
    }


def middle(messages, which):
    """Returns the median of the messages one way; 0 without any."""
    return runs.middle([one[which] for one in messages]) or 0


def jobs_of(args, before):
    """Returns the measurements; `before` is where the older code is."""
    steps = 60 if args.quick else STEPS
    roots = {"now": runs.REPO, **({BEFORE: before} if before else {})}
    return [
        runs.Job(
            f"{scheme}, {label}",
            {"messages"},
            12,
            lambda scheme=scheme, root=root: runs.run_example(
                scheme,
                ["--steps", steps],
                1,
                1,
                args.timeout,
                root=root,
                variables=LOG,
                logs=count,
            ),
        )
        for scheme in SCHEMES
        for label, root in roots.items()
    ]


def markdown(rounds):
    """Returns messages.md: what crosses between one worker and one ps."""
    rows = []
    for key in dict.fromkeys(key for measured in rounds for key in measured):

        def cell(field, digits=0, key=key):
            return runs.spread(runs.series(rounds, key, field), digits)

        rows.append(
            [key, cell("rounds_of_a_call"), cell("down", 1), cell("up", 1)]
            + [cell("run_graph"), f"{cell('look_down')} + {cell('look_up')}"]
        )
    return runs.count_of(rounds) + (
        "\n### Messages, 1 ps and 1 worker\n\n"
        + runs.table(
            [
                "",
                "rounds in a call",
                "down, a round",
                "up, a round",
                "RunGraph, a call",
                "a look, down + up",
            ],
            rows,
        )
    )


def parse_args(argv=None):
    """Returns the checked flags."""
    parser = runs.measuring_parser(__doc__, rounds=1)
    parser.add_argument("--before", metavar="REV", help="also the code at this commit")
    return parser.parse_args(argv)


def main():
    with runs.finished(parse_args()) as args, contextlib.ExitStack() as stack:
        if args.write_readme:
            return runs.write_readme(args.out)
        before = args.before and stack.enter_context(runs.checkout(args.before))
        code = {name: runs.fingerprint(name) for name in SCHEMES}
        code |= {BEFORE: args.before}
        rounds, progress = runs.in_rounds(jobs_of(args, before), args, "messages", code)
        text = markdown(rounds)
        runs.write(args.out / "messages.md", text)
        print(text)
        progress.end()


if __name__ == "__main__":
    runs.ends_cleanly(main)
