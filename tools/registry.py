"""The one list of examples and engines: `--list`, README, copies, tests, benchmarks.

    python tools/registry.py --list            prints them by group
    python tools/registry.py --nearest ring    prints the name that is meant, if any

An example is a folder. Its script has the folder's name in snake case. A folder without
a family has no script that others share a section with: notebooks, programs of
TensorFlow 2, or a program in an environment and with a launcher of its own. A new one
gets a line here, and `python tools/copies.py` then says what it still lacks. This file
imports nothing that needs to be installed, and runs with any Python 3: it must work
before there is an environment.
"""

import collections
import difflib
import signal
import sys

# A family is the scripts that share their sections. `reference` is the folder whose
# sections the others repeat, `problem` the one whose problem.py they do. `whole` says
# that it is programs, which have no parent.
Family = collections.namedtuple(
    "Family", "reference problem whole", defaults=["originals", False]
)
FAMILIES = {
    "single": Family("Non-Distributed-Setup"),
    "ps": Family("Distributed-Setup"),
    "peers": Family("Ring-All-Reduce"),
    "gossip": Family("Gossip-SGD"),  # peers too, and no barrier
    "table": Family("Partitioned-Embedding", "Partitioned-Embedding"),  # of rows
    "dynamic": Family("Dynamic-Embedding", "Dynamic-Embedding"),  # of rows that go
    "hybrid": Family("Hybrid-Embedding", "Dynamic-Embedding"),  # rows, and a ring
    "client": Family("In-Graph-Replication"),  # one client for all workers
    "program": Family("Distributed-MNIST", whole=True),
}

# In the order in which a reader meets them.
GROUPS = (
    "Start here",
    "Nobody waits",
    "Talk less",
    "Wait for each other",
    "No parameter server",
    "Many devices, a split model",
    "Whole programs",
)

# `parent` is the folder it is one idea away from, which stands before it; `sentence`
# is the first line of its script's docstring, and stands in README.md; `mode` (who
# waits for whom), `pushed` and `paper` are for the table in docs/which-example.md.
Example = collections.namedtuple(
    "Example", "folder parent group family sentence mode pushed paper"
)

EXAMPLES = [
    Example(
        "Basics-Tutorial",
        None,
        "Start here",
        None,
        "fourteen notebooks explain servers, sessions, placement and costs.",
        "notebooks",
        "–",
        "–",
    ),
    Example(
        "Non-Distributed-Setup",
        None,
        "Start here",
        "single",
        "the model of all examples, trained in one process.",
        "one process",
        "–",
        "Robbins & Monro 1951",
    ),
    Example(
        "Distributed-Setup",
        "Non-Distributed-Setup",
        "Start here",
        "ps",
        "one worker trains parameters that a parameter server holds.",
        "one worker",
        "gradient",
        "–",
    ),
    Example(
        "HogWild",
        "Distributed-Setup",
        "Nobody waits",
        "ps",
        "several workers train one model, and none waits for another.",
        "async",
        "gradient",
        "[Niu et al. 2011](https://arxiv.org/abs/1106.5730)",
    ),
    Example(
        "Dynamic-SGD",
        "HogWild",
        "Nobody waits",
        "ps",
        "a gradient that arrives late gets a smaller learning rate.",
        "async",
        "gradient, divided by staleness + 1 on the ps",
        "[Jiang et al. 2017](https://doi.org/10.1145/3035918.3035933)",
    ),
    Example(
        "DC-ASGD",
        "HogWild",
        "Nobody waits",
        "ps",
        "the ps corrects each gradient for the updates made since its pull.",
        "async",
        "gradient, compensated for its delay on the ps",
        "[Zheng et al. 2017](https://arxiv.org/abs/1609.08326)",
    ),
    Example(
        "Stale-Synchronous-Parallel",
        "HogWild",
        "Nobody waits",
        "ps",
        "a worker more than s rounds ahead waits.",
        "async within a bound",
        "gradient",
        "[Ho et al. 2013](https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html)",
    ),
    Example(
        "DOWNPOUR-Easy",
        "HogWild",
        "Talk less",
        "ps",
        "a worker takes T local steps, then pushes the sum of its gradients.",
        "async",
        "sum of a window's gradients, to Adagrad",
        "Dean et al. 2012",
    ),
    Example(
        "DOWNPOUR",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "DOWNPOUR-Easy with Adagrad, or another optimizer, on the worker too.",
        "async",
        "the same, Adagrad on the worker too",
        "Dean et al. 2012",
    ),
    Example(
        "AGN",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "a worker takes T local steps, then pushes the mean of its gradients.",
        "async",
        "mean of a window's gradients",
        "[Hermans et al. 2017](https://arxiv.org/abs/1710.02368)",
    ),
    Example(
        "Async-DiLoCo",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "DiLoCo, but nobody waits: the ps adds momentum once in N pushes.",
        "async",
        "movement of T steps of AdamW, to delayed Nesterov",
        "[Liu et al. 2024](https://arxiv.org/abs/2401.09135)",
    ),
    Example(
        "Decoupled-DiLoCo",
        "Async-DiLoCo",
        "Talk less",
        "ps",
        "learners train on; the ps merges what K of them have, in turn.",
        "async",
        "fragment of the weights, to an outer optimizer",
        "[Douillard et al. 2026](https://arxiv.org/abs/2604.21428)",
    ),
    Example(
        "AEASGD",
        "DOWNPOUR-Easy",
        "Talk less",
        "ps",
        "each worker has its own weights, which stay near the shared ones.",
        "async",
        "elastic difference",
        "[Zhang et al. 2015](https://arxiv.org/abs/1412.6651)",
    ),
    Example(
        "AEAMSGD",
        "AEASGD",
        "Talk less",
        "ps",
        "AEASGD with Nesterov momentum in the local steps.",
        "async",
        "elastic difference, Nesterov on the worker",
        "[Zhang et al. 2015](https://arxiv.org/abs/1412.6651)",
    ),
    Example(
        "FedBuff",
        "Dynamic-SGD",
        "Talk less",
        "ps",
        "the ps applies the mean of K pushes, in which late ones weigh less.",
        "async",
        "movement of T steps, of which the ps gathers K",
        "[Nguyen et al. 2022](https://arxiv.org/abs/2106.06639)",
    ),
    Example(
        "Gradient-Compression",
        "HogWild",
        "Talk less",
        "ps",
        "pushes are compressed; the part left out joins the next push.",
        "async",
        "gradient as its k largest elements, as signs or as bytes",
        "[Lin et al. 2018](https://arxiv.org/abs/1712.01887)",
    ),
    Example(
        "Synchronous-SGD",
        "HogWild",
        "Wait for each other",
        "ps",
        "the ps waits for N gradients and applies their mean.",
        "sync, backup workers",
        "gradient",
        "[Chen et al. 2016](https://arxiv.org/abs/1604.00981)",
    ),
    Example(
        "Synchronous-SGD-different-learning-rates",
        "Synchronous-SGD",
        "Wait for each other",
        "ps",
        "every worker has its own rate.",
        "sync",
        "gradient times the worker's rate",
        "–",
    ),
    Example(
        "SAGN",
        "Synchronous-SGD",
        "Wait for each other",
        "ps",
        "AGN, but the ps waits for the workers before each update.",
        "sync",
        "mean of a window's gradients",
        "–",
    ),
    Example(
        "Ring-All-Reduce",
        "Synchronous-SGD",
        "No parameter server",
        "peers",
        "without a ps, the workers sum their gradients in a ring.",
        "sync",
        "pieces of the gradient, from worker to worker",
        "[Patarasuk & Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)",
    ),
    Example(
        "Large-Minibatch",
        "Ring-All-Reduce",
        "No parameter server",
        "peers",
        "N workers use N times the learning rate, after a warm-up.",
        "sync",
        "pieces of the gradient, from worker to worker",
        "[Goyal et al. 2017](https://arxiv.org/abs/1706.02677)",
    ),
    Example(
        "Local-SGD",
        "Ring-All-Reduce",
        "No parameter server",
        "peers",
        "each worker trains alone for T steps, then all average their weights.",
        "sync",
        "pieces of the weights, every T steps",
        "[Stich 2019](https://arxiv.org/abs/1805.09767)",
    ),
    Example(
        "DiLoCo",
        "Local-SGD",
        "No parameter server",
        "peers",
        "Local-SGD with AdamW on each worker, momentum on the mean change of weights.",
        "sync",
        "pieces of the movement of T steps, to an outer optimizer",
        "[Douillard et al. 2023](https://arxiv.org/abs/2311.08105)",
    ),
    Example(
        "Sharded-Data-Parallel",
        "Ring-All-Reduce",
        "No parameter server",
        "peers",
        "each worker keeps a part of weights, gradient and optimizer.",
        "sync",
        "parts of the gradient, and of the weights",
        "[Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)",
    ),
    Example(
        "Gossip-SGD",
        "HogWild",
        "No parameter server",
        "gossip",
        "without a ps, each worker averages its weights with one random neighbour.",
        "async",
        "the weights, averaged in pairs",
        "[Lian et al. 2018](https://arxiv.org/abs/1710.06952)",
    ),
    Example(
        "Horovod",
        None,
        "No parameter server",
        None,
        "Ring-All-Reduce with Horovod, in its own Python environment.",
        "sync",
        "pieces of the gradient, from worker to worker",
        "[Sergeev & Del Balso 2018](https://arxiv.org/abs/1802.05799)",
    ),
    Example(
        "Multiple-GPUs-Single-Machine",
        "HogWild",
        "Many devices, a split model",
        "ps",
        "HogWild with one GPU for each worker, none for the ps.",
        "async",
        "gradient",
        "–",
    ),
    Example(
        "In-Graph-Replication",
        "Distributed-Setup",
        "Many devices, a split model",
        "client",
        "one program builds one graph that runs on all workers.",
        "sync, or async by a flag",
        "gradient",
        "[Abadi et al. 2016](https://arxiv.org/abs/1603.04467)",
    ),
    Example(
        "Model-Parallelism",
        "In-Graph-Replication",
        "Many devices, a split model",
        "client",
        "the layers are spread over the workers, which form a pipeline.",
        "sync",
        "activations, and their gradients",
        "[Huang et al. 2019](https://arxiv.org/abs/1811.06965)",
    ),
    Example(
        "Partitioned-Embedding",
        "HogWild",
        "Many devices, a split model",
        "table",
        "a large table on the ps, of which only used rows are sent.",
        "async",
        "gradient of touched rows",
        "[Niu et al. 2011](https://arxiv.org/abs/1106.5730)",
    ),
    Example(
        "Dynamic-Embedding",
        "Partitioned-Embedding",
        "Many devices, a split model",
        "dynamic",
        "a table on the ps in which rows come, and those not used go.",
        "async",
        "ids, gradient of their rows",
        "[Liu et al. 2022](https://arxiv.org/abs/2209.07663)",
    ),
    Example(
        "Hybrid-Embedding",
        "Dynamic-Embedding",
        "Many devices, a split model",
        "hybrid",
        "dense weights are synchronous, rows on the ps asynchronous.",
        "sync, rows async",
        "gradient of rows to the ps, that of w from worker to worker",
        "[Lian et al. 2022](https://arxiv.org/abs/2111.05897)",
    ),
    Example(
        "Fault-Tolerance",
        "HogWild",
        "Whole programs",
        "ps",
        "HogWild goes on after a worker, the ps or the chief is killed.",
        "async",
        "gradient",
        "[Abadi et al. 2016](https://arxiv.org/abs/1605.08695)",
    ),
    Example(
        "Distributed-MNIST",
        None,
        "Whole programs",
        "program",
        "a complete program, from image files to a model that is served.",
        "either",
        "gradients of named variables",
        "[LeCun et al. 1998](https://doi.org/10.1109/5.726791)",
    ),
    Example(
        "TensorFlow-2",
        None,
        "Whole programs",
        None,
        "the same model, trained by the strategies of tf.distribute.",
        "either",
        "gradient",
        "–",
    ),
]

# What starts the examples elsewhere: Engines/<name>. `starts` (what starts the tasks),
# `restarts` (who starts one again), `command` and `tested` (with which version, when)
# are for the table in docs/clusters.md.
ELSEWHERE = "Start it elsewhere"
Engine = collections.namedtuple(
    "Engine", "name sentence starts restarts command tested"
)

ENGINES = [
    Engine(
        "Several-Hosts",
        "gives each task a virtual host, with slow links if you like.",
        "`run.sh`, in a network namespace per task",
        "`run.sh`, `MAX_RESTARTS` times",
        "`DELAY=5 RATE=100 bash Engines/Several-Hosts/run.sh AGN`",
        "iproute2 6.1.0, 2026-11-22",
    ),
    Engine(
        "Slurm",
        "starts the tasks with srun in a batch job, and requeues a failed job.",
        "`srun`, which starts each task",
        "`job.sbatch` requeues the job, `MAX_RESTARTS` times; Slurm, if a node fails",
        "`sbatch --ntasks=3 job.sbatch ...`",
        "Slurm 22.05.8, 2026-11-22",
    ),
    Engine(
        "MPI",
        "starts the tasks with Open MPI's mpirun.",
        "`mpirun`, a rank per task",
        "nobody: one that fails ends all",
        "`mpirun -n 3 --hostfile hosts python adapter.py ...`",
        "Open MPI 4.1.4, 2026-11-22",
    ),
    Engine(
        "Kubernetes",
        "starts the tasks of any example as a TFJob, or as plain Jobs.",
        "the Training Operator, or the Job controller; a pod per task",
        "whoever started it, by its exit status",
        "`kubectl apply -f job.yaml`",
        "Kubernetes 1.31.14, Training Operator 1.9.0, 2026-11-22",
    ),
    Engine(
        "Spark",
        "starts the tasks of one run in a barrier stage, or many runs at once.",
        "`spark-submit`, a task of a barrier stage per task",
        "Spark, all tasks together, from the last checkpoint",
        "`spark-submit ... barrier.py HogWild/hogwild.py`",
        "pyspark 4.1.4, 2026-11-22",
    ),
    Engine(
        "TensorFlowOnSpark",
        "starts the tasks with the unmaintained TFCluster.run.",
        "`spark-submit`, an executor of Spark per task",
        "nobody: one that fails ends all",
        "`spark-submit ... job.py HogWild/hogwild.py`",
        "tensorflowonspark 2.2.5 on pyspark 4.1.4, 2026-11-22",
    ),
    Engine(
        "Ray",
        "starts each task in a bundle of a placement group.",
        "`ray job submit`, a Ray task in each bundle",
        "Ray, that task, at the same address",
        "`ray job submit ... job.py HogWild/hogwild.py`",
        "Ray 2.60.0, 2026-11-29",
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
    """Returns examples and engines by group, as `--list` prints them."""
    groups = [
        (g, [(e.folder, e.sentence) for e in members]) for g, members in by_group()
    ]
    groups.append((ELSEWHERE, [(f"Engines/{e.name}", e.sentence) for e in ENGINES]))
    width = max(len(name) for _, rows in groups for name, _ in rows)
    blocks = []
    for group, rows in groups:
        lines = [f"  {name:{width}}  {sentence}" for name, sentence in rows]
        blocks.append("\n".join([group, *lines]))
    return "\n\n".join(blocks)


def nearest(name):
    """Returns the example or engine that somebody may have meant, "" if none is near.

    Case does not count, nor does `Engines/`; the beginning of one name is enough.
    """
    names = [example.folder for example in EXAMPLES]
    names += [f"Engines/{engine.name}" for engine in ENGINES]
    plain = {known.rpartition("/")[2].lower(): known for known in names}
    word = name.rpartition("/")[2].lower()
    longer = [known for known in plain if known.startswith(word)]
    near = difflib.get_close_matches(word, plain, 1, 0.7)
    if len(longer) == 1:
        near = longer
    return plain[near[0]] if near else ""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--nearest"] and len(sys.argv) == 3:
        print(nearest(sys.argv[2]))
        sys.exit()
    if sys.argv[1:] != ["--list"]:
        sys.exit("usage: python tools/registry.py --list | --nearest NAME")
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `--list | head -3`
    print(listing())
