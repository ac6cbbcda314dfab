"""mirrored: the towers of towers.py under tf.distribute.MirroredStrategy.

    device k   holds a copy of w, computes g_k := ∇ loss(w; mini-batch k)
    all        all-reduce: every copy takes the same step, w ← w − η (1/N) ∑ g_k

The strategy places the model and adds up the gradients. The steps are those of
towers.py. With fewer GPUs than copies, it uses logical CPU devices.
Run: bash run.sh mirrored.py --devices 2
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
        print(f"{gpus} GPUs for {count} copies: logical CPU devices are used instead")
    return [f"{kind}:{k}" for k in range(count)]


def graph(args, strategy, start, batch, loss):
    """Returns the mean loss of the copies, with the update done, and the variable."""
    with strategy.scope():
        center = tf.get_variable(
            "center",
            initializer=start,
            # What the copies assign, the strategy averages first.
            aggregation=tf.VariableAggregation.MEAN,
        )

    def step():
        k = tf.distribute.get_replica_context().replica_id_in_sync_group
        # g_k := ∇ loss(w; mini-batch k),  w ← w − η (1/N) ∑ g_k   (device k)
        w = center.read_value()
        value = loss(w, batch(tf.get_static_value(k)))
        gradient = rounds.gradient(value, w)
        push = center.assign_sub(args.learning_rate * gradient)
        with tf.control_dependencies([push]):
            return tf.identity(value)

    losses = strategy.run(step)
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None), center


def session_config(names):
    """Returns a config with logical CPU devices, memory growth and soft placement."""
    config = tf.ConfigProto(
        device_count={"CPU": len(names)},
        allow_soft_placement=True,  # what has no GPU kernel runs on the CPU
    )
    config.gpu_options.allow_growth = True  # not all of a GPU's memory at once
    return config


def main():
    parser = flags.parser("mirrored", __doc__)
    add = parser.add_argument
    add("--devices", type=flags.positive_int, default=2, help="N, copies")
    args = flags.parse(parser)
    args.worker_hosts *= args.devices  # the data has a shard for each
    data, names = task.begin(args, problem), devices(args.devices)
    strategy = tf.distribute.MirroredStrategy(
        names, tf.distribute.ReductionToOneDevice()
    )
    shards = [
        contract.build(problem, data, args, k, len(names)) for k in range(len(names))
    ]
    value, center = graph(
        args,
        strategy,
        lambda: shards[0].start,
        lambda k: shards[k].batch(),
        shards[0].loss,
    )
    test = shards[0].test(center.read_value())
    with tf.Session(config=session_config(names)) as session:
        session.run(tf.global_variables_initializer())
        checkpoint.begin(session, checkpoint.begin_operations())
        train = session.make_callable(value)
        for step in range(1, args.steps + 1):
            mean = train()
            if step % max(1, args.steps // 10) == 0:
                print(f"step {step}/{args.steps}  loss {mean:.4f}")
        _, accuracy = session.run(test)
        print(f"test accuracy {accuracy:.4f} after {args.steps} steps")


if __name__ == "__main__":
    task.run(main)
