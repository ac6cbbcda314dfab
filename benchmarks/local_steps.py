"""What a local step costs: T steps of SGD in one session.run, no ps, no second process.

The yardstick for the round of a windowed scheme, which is HogWild's step and T of
these. The model, the data and the batches are the examples' own. Prints one JSON
object with seconds_per_step.
"""

import json
import sys
import time

import runs


def main():
    parser = runs.Parser(__doc__)
    parser.add_argument("--window", type=runs.positive_int, default=16, help="T")
    parser.add_argument("--rounds", type=runs.positive_int, default=1000)
    args = parser.parse_args()
    sys.path.insert(0, str(runs.REPO / "Non-Distributed-Setup"))
    from cluster import tensorflow_v1 as tf
    import problem

    learning = problem.build(problem.load("digits"), batch_size=32, seed=0)
    weights = tf.get_variable("weights", initializer=learning.start)

    def step(number, vector):
        (gradient,) = tf.gradients(learning.loss(vector, learning.batch()), vector)
        return number + 1, vector - 0.1 * gradient

    start = [tf.constant(0), weights.read_value()]
    _, moved = tf.while_loop(
        lambda number, _: number < args.window, step, start, parallel_iterations=1
    )
    train = weights.assign(moved, read_value=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())
        one_round = session.make_callable(train)
        for _ in range(20):
            one_round()
        began = time.perf_counter()
        for _ in range(args.rounds):
            one_round()
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds_per_step": seconds / args.rounds / args.window}))


if __name__ == "__main__":
    main()
