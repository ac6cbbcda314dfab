"""towers: one process, the model once per device, one averaged gradient per step.

    device k   computes g_k := ∇ loss(w; mini-batch k), all at the same w
    cpu:0      holds w, averages: w ← w − η (1/N) ∑ g_k

This is in-graph replication. It needs no ps, no messages and no other machine. It makes
the steps of Synchronous-SGD. With fewer GPUs than towers, it uses logical CPU devices.
Run: bash run.sh towers.py --devices 2
"""

from cluster import checkpoint, flags, rounds, task
from cluster import tensorflow_v1 as tf  # tensorflow.compat.v1, when it is first used
import contract
import problem


def devices(count):
    """Returns the names of `count` devices: GPUs, or, and says so, logical CPUs."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "gpu" if gpus >= count else "cpu"
    if kind == "cpu":
        print(f"{gpus} GPUs for {count} towers: logical CPU devices are used instead")
    return [f"{kind}:{k}" for k in range(count)]


def graph(args, names, center, batch, loss):
    """Returns the losses of the towers and the update; `batch(k)` is tower k's."""
    losses, gradients = [], []
    for k, name in enumerate(names):
        # g_k := ∇ loss(w; mini-batch k)   (device k)
        inputs = batch(k)
        with tf.device(name):
            w = center.read_value()
            losses.append(loss(w, inputs))
            gradients.append(rounds.gradient(losses[-1], w))
    # w ← w − η (1/N) ∑ g_k   (cpu:0, once all towers have read w)
    with tf.device("cpu:0"):
        mean = tf.add_n(gradients) / len(names)
        return losses, center.assign_sub(args.learning_rate * mean, read_value=False)


def session_config(names):
    """Returns a config with logical CPU devices, memory growth and soft placement."""
    config = tf.ConfigProto(
        device_count={"CPU": len(names)},
        allow_soft_placement=True,  # what has no GPU kernel runs on the CPU
    )
    config.gpu_options.allow_growth = True  # not all of a GPU's memory at once
    return config


def main():
    parser = flags.parser("towers", __doc__)
    add = parser.add_argument
    add("--devices", type=flags.positive_int, default=2, help="N, towers")
    args = flags.parse(parser)
    args.worker_hosts *= args.devices  # the data has a shard for each
    data, names = task.begin(args, problem), devices(args.devices)
    with tf.device("cpu:0"):
        shards = [
            contract.build(problem, data, args, k, len(names))
            for k in range(len(names))
        ]
        center = tf.get_variable("center", initializer=shards[0].start)
    losses, update = graph(
        args,
        names,
        center,
        lambda k: shards[k].batch(),
        shards[0].loss,
    )
    test = shards[0].test(center.read_value())
    with tf.Session(config=session_config(names)) as session:
        session.run(tf.global_variables_initializer())
        checkpoint.begin(session, checkpoint.begin_operations())
        train = session.make_callable([losses, update])
        for step in range(1, args.steps + 1):
            values, _ = train()
            if step % max(1, args.steps // 10) == 0:
                print(f"step {step}/{args.steps}  loss {sum(values) / len(names):.4f}")
        _, accuracy = session.run(test)
        print(f"test accuracy {accuracy:.4f} after {args.steps} steps")


if __name__ == "__main__":
    task.run(main)
