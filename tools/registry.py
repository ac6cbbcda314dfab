"""The one list of the examples: `--list`, the README, copies, tests and benchmarks.

    python tools/registry.py --list     prints the examples by group

An example is a folder. Its script has the folder's name in snake case; a folder without
a family has no script. A new one gets a line here, and `python tools/copies.py` then
says what it still lacks. This file imports nothing that needs to be installed, and runs
with any Python 3: it must work before there is an environment.
"""

import collections
import signal
import sys

# A family is the scripts that share their sections. `reference` is the folder whose
# sections the others repeat, `least` how many lines a script must have: the start, loop
# and end of a cluster are in every script of `ps`, one process has none of that.
# `whole` says that it is programs: with modules beside the script, and no parent.
Family = collections.namedtuple("Family", "reference least whole", defaults=[False])
FAMILIES = {
    "single": Family("Non-Distributed-Setup", 0),
    "ps": Family("Distributed-Setup", 90),
    "program": Family("Distributed-MNIST", 90, whole=True),
}

# In the order in which a reader meets them.
GROUPS = (
    "Start here",
    "Nobody waits",
    "Talk less",
    "Wait for each other",
    "Many devices, a split model",
    "Whole programs",
)

# `parent` is the folder it is one idea away from, which stands before it; `sentence`
# is the first line of its script's docstring; `mode` (who waits for whom), `pushed` and
# `paper` are for the table in README.md.
Example = collections.namedtuple(
    "Example", "folder parent group family sentence mode pushed paper"
)

EXAMPLES = [
    Example(
        "Basics-Tutorial",
        None,
        "Start here",
        None,
        "ten notebooks: servers, sessions and placement, with single numbers.",
        "notebooks",
        "–",
        "–",
    ),
    Example(
        "Non-Distributed-Setup",
        None,
        "Start here",
        "single",
        "the learning problem in one process.",
        "one process",
        "–",
        "Robbins & Monro 1951",
    ),
    Example(
        "Distributed-Setup",
        "Non-Distributed-Setup",
        "Start here",
        "ps",
        "the perceptron with its parameters on a parameter server.",
        "one worker",
        "gradient",
        "–",
    ),
    Example(
        "HogWild",
        "Distributed-Setup",
        "Nobody waits",
        "ps",
        "several workers push to one center variable, and nobody waits.",
        "async",
        "gradient",
        "[Niu et al. 2011](https://arxiv.org/abs/1106.5730)",
    ),
    Example(
        "Dynamic-SGD",
        "HogWild",
        "Nobody waits",
        "ps",
        "the staler a gradient is, the less it moves the center variable.",
        "async",
        "gradient, divided by staleness + 1 on the ps",
        "[Jiang et al. 2017](https://doi.org/10.1145/3035918.3035933)",
    ),
    Example(
        "DOWNPOUR-Easy",
        "HogWild",
        "Talk less",
        "ps",
        "local SGD for a window of T steps, then one push of the sum.",
        "async",
        "sum of a window's gradients, to Adagrad",
        "Dean et al. 2012",
    ),
    Example(
        "DOWNPOUR",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "Adagrad on the ps and on the worker, whose slots stay on the worker.",
        "async",
        "the same, Adagrad on the worker too",
        "Dean et al. 2012",
    ),
    Example(
        "AGN",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "accumulated gradient normalization, the mean of a window instead of its sum.",
        "async",
        "mean of a window's gradients",
        "[Hermans et al. 2017](https://arxiv.org/abs/1710.02368)",
    ),
    Example(
        "AEASGD",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "asynchronous elastic averaging, workers on a spring to the center variable.",
        "async",
        "elastic difference",
        "[Zhang et al. 2015](https://arxiv.org/abs/1412.6651)",
    ),
    Example(
        "AEAMSGD",
        "AEASGD",
        "Talk less",
        "ps",
        "elastic averaging with Nesterov momentum in the local steps.",
        "async",
        "elastic difference, Nesterov on the worker",
        "[Zhang et al. 2015](https://arxiv.org/abs/1412.6651)",
    ),
    Example(
        "Synchronous-SGD",
        "HogWild",
        "Wait for each other",
        "ps",
        "an update is the mean of N gradients at the same weights.",
        "sync, backup workers",
        "gradient",
        "[Chen et al. 2016](https://arxiv.org/abs/1604.00981)",
    ),
    Example(
        "Synchronous-SGD-different-learning-rates",
        "Synchronous-SGD",
        "Wait for each other",
        "ps",
        "every worker has a rate of its own.",
        "sync",
        "gradient times the worker's rate",
        "–",
    ),
    Example(
        "SAGN",
        "Synchronous-SGD",
        "Wait for each other",
        "ps",
        "synchronous accumulated gradient normalization, AGN's window under a barrier.",
        "sync",
        "mean of a window's gradients",
        "–",
    ),
    Example(
        "Multiple-GPUs-Single-Machine",
        "HogWild",
        "Many devices, a split model",
        "ps",
        "HogWild with a GPU for each worker, none for the ps.",
        "async",
        "gradient",
        "–",
    ),
    Example(
        "Fault-Tolerance",
        "HogWild",
        "Whole programs",
        "ps",
        "HogWild, while a worker, the ps and the chief are killed in turn.",
        "async",
        "gradient",
        "[Abadi et al. 2016](https://arxiv.org/abs/1605.08695)",
    ),
    Example(
        "Distributed-MNIST",
        None,
        "Whole programs",
        "program",
        "a whole program, from image files to a model that is served.",
        "either",
        "gradients of named variables",
        "[LeCun et al. 1998](https://doi.org/10.1109/5.726791)",
    ),
]


def of_family(family=None, examples=None):
    """Returns the examples of a family, or all that have a script."""
    examples = EXAMPLES if examples is None else examples
    return [e for e in examples if e.family and family in (None, e.family)]


def folders(family=None):
    """Returns the folders of a family, or all that have a script, in reading order."""
    return [example.folder for example in of_family(family)]


def of(folder):
    """Returns the example of this name; raises KeyError if there is none."""
    return {example.folder: example for example in EXAMPLES}[folder]


def script_of(folder):
    """Returns the name of a folder's script: the folder's name in snake case."""
    return folder.lower().replace("-", "_") + ".py"


def by_group(examples=None):
    """Returns (group, its examples) for each group that has any."""
    examples = EXAMPLES if examples is None else examples
    pairs = [(group, [e for e in examples if e.group == group]) for group in GROUPS]
    return [pair for pair in pairs if pair[1]]


def listing():
    """Returns the examples by group with their sentences, as `--list` prints them."""
    width = max(len(example.folder) for example in EXAMPLES)
    blocks = []
    for group, members in by_group():
        lines = [f"  {e.folder:{width}}  {e.sentence}" for e in members]
        blocks.append("\n".join([group, *lines]))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    if sys.argv[1:] != ["--list"]:
        sys.exit("usage: python tools/registry.py --list")
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `--list | head -3`
    print(listing())
