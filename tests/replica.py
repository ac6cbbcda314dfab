"""A script of TensorFlow 1, as many were written: docs/from-tf1.md moves it here."""

import math

import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

flags = tf.app.flags
flags.DEFINE_string("data_dir", "mnist-data", "where the images are")
flags.DEFINE_integer("task_index", None, "number of this task")
flags.DEFINE_string("job_name", None, "worker or ps")
flags.DEFINE_string("ps_hosts", "localhost:2222", "comma-separated")
flags.DEFINE_string("worker_hosts", "localhost:2223,localhost:2224", "comma-separated")
flags.DEFINE_boolean("sync_replicas", False, "wait for each other")
flags.DEFINE_integer("hidden_units", 100, "of the hidden layer")
flags.DEFINE_integer("train_steps", 200, "global steps")
flags.DEFINE_integer("batch_size", 100, "of a worker")
flags.DEFINE_float("learning_rate", 0.01, "of Adam")
FLAGS = flags.FLAGS
PIXELS, CLASSES = 64, 10


def main(_):
    data = input_data.read_data_sets(FLAGS.data_dir, one_hot=True)
    ps, workers = FLAGS.ps_hosts.split(","), FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps, "worker": workers})
    server = tf.train.Server(cluster, FLAGS.job_name, FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    is_chief = FLAGS.task_index == 0
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        first = tf.truncated_normal([PIXELS, FLAGS.hidden_units])
        hid_w = tf.Variable(first / math.sqrt(PIXELS))
        hid_b = tf.Variable(tf.zeros([FLAGS.hidden_units]))
        sm_w = tf.Variable(
            tf.truncated_normal([FLAGS.hidden_units, CLASSES], stddev=0.1)
        )
        sm_b = tf.Variable(tf.zeros([CLASSES]))
        x = tf.placeholder(tf.float32, [None, PIXELS])
        y_ = tf.placeholder(tf.float32, [None, CLASSES])
        hid = tf.nn.relu(tf.nn.xw_plus_b(x, hid_w, hid_b))
        y = tf.nn.softmax(tf.nn.xw_plus_b(hid, sm_w, sm_b))
        cross_entropy = -tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)))
        right = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
        opt = tf.train.AdamOptimizer(FLAGS.learning_rate)
        if FLAGS.sync_replicas:
            opt = tf.train.SyncReplicasOptimizer(
                opt,
                replicas_to_aggregate=len(workers),
                total_num_replicas=len(workers),
            )
        train_step = opt.minimize(cross_entropy, global_step=global_step)
        local, ready = None, None
        if FLAGS.sync_replicas:
            local = opt.chief_init_op if is_chief else opt.local_step_init_op
            ready = opt.ready_for_local_init_op
            runner, tokens = opt.get_chief_queue_runner(), opt.get_init_tokens_op()
        sv = tf.train.Supervisor(
            is_chief=is_chief,
            init_op=tf.global_variables_initializer(),
            local_init_op=local,
            ready_for_local_init_op=ready,
            recovery_wait_secs=1,
            global_step=global_step,
        )
        filters = ["/job:ps", "/job:worker/task:" + str(FLAGS.task_index)]
        config = tf.ConfigProto(device_filters=filters)
        sess = sv.prepare_or_wait_for_session(server.target, config=config)
        if FLAGS.sync_replicas and is_chief:
            sess.run(tokens)
            sv.start_queue_runners(sess, [runner])
        step = 0
        while step < FLAGS.train_steps:
            batch_x, batch_y = data.train.next_batch(FLAGS.batch_size)
            _, step = sess.run([train_step, global_step], {x: batch_x, y_: batch_y})
        print("worker", FLAGS.task_index, "is done at step", step)
        feed = {x: data.test.images, y_: data.test.labels}
        print("test accuracy", sess.run(accuracy, feed))


if __name__ == "__main__":
    tf.app.run()
