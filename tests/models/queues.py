"""The input of a program of TensorFlow 1: a queue, which a thread of it fills."""

import numpy as np
import parts

from cluster import tensorflow_v1 as tf


def load(name, workers):
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    return x, (x @ [2.0, -1.0, 0.5]).astype(np.float32)


def loss(weights, x, y):
    return parts.error(tf.linalg.matvec(x, weights[0]), y)


def build(data, batch_size, seed, worker=0, workers=1):
    """`batch` takes from the queue: what tf.train.batch returns is one mini-batch."""
    learning = parts.problem(data, [(3,)], loss, "rmse", batch_size, 0, worker, workers)
    rows = [part[worker::workers] for part in data]
    row = tf.train.slice_input_producer(rows, seed=seed)
    queue = tf.FIFOQueue(100, [tf.float32, tf.float32], [[3], []])
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(row)]))
    return learning._replace(batch=lambda: queue.dequeue_many(batch_size))
