"""Replicas of the weights that are averaged in pairs. Scripts call it.

Workers with an even number are the active half, the others the passive half, and every
edge of the graph joins the two. An active worker starts exchanges, one after the other;
a passive one is asked, and starts none.

    worker a   sends x_a to a neighbour j, as the argument of a function that runs there
    worker j   takes its lock, x_j ← m := (x_a + x_j) / 2, gives the lock back
    worker a   x_a ← m, which that function has returned

Nobody can wait for ever: whoever holds a lock waits for nothing that is not on the same
worker, so that there is no circle of workers of which each waits for the next. And the
average is that of one moment: between sending x_a and getting m nobody changes x_a, as
nobody starts an exchange with an active worker.

Source: Lian, Zhang, Zhang, Liu, Asynchronous Decentralized Parallel Stochastic Gradient
Descent, ICML 2018, arXiv 1710.06952, Algorithm 1; the halves are its cure, too.
"""

import contextlib

from cluster import rounds
from cluster import tensorflow_v1 as tf

GRAPHS = ("ring", "exponential", "complete")


def neighbours(graph, workers, me):
    """Returns the sorted numbers of those with whom worker `me` averages.

    They are of the other half. At the end of a ring of odd length two of one half would
    meet: there it is open.
    """
    others = [j for j in range(workers) if (j - me) % 2]
    if graph == "complete":
        return others
    hops, power = [1], 2
    while graph == "exponential" and 1 + power < workers:
        hops.append(1 + power)
        power *= 2
    around = {(me + sign * hop) % workers for hop in hops for sign in (1, -1)}
    return [j for j in others if j in around]


def partners(graph, workers, me):
    """Returns the neighbours with whom worker `me` averages of its own accord."""
    return [] if me % 2 else neighbours(graph, workers, me)


def name_of(worker):
    """Returns the full name of a worker's device, as a remote call wants it."""
    return f"/job:worker/replica:0/task:{worker}/device:CPU:0"


class Replica:
    """This worker's x [P], float32, and what it does with those of others.

    `near` are the numbers of the workers with which this one starts exchanges.
    """

    def __init__(self, args, center):
        """`center` is where x begins."""
        self.me, workers = args.task_index, len(args.worker_hosts)
        self.near = partners(args.graph, workers, self.me)
        self.seed = args.seed + self.me
        own = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        self.x = tf.get_variable("replica", initializer=center.read_value(), **own)
        self.container = self.x.handle.op.get_attr("container").decode()
        # Whom it may choose: not who is away. With nobody there it is itself, which
        # changes nothing.
        mine = tf.constant([name_of(self.me)])
        self.present = tf.Variable(mine, shape=[None], name="present", **own)
        self.chosen = tf.placeholder(tf.string, [None])
        # How often that was said. An answer to a call that was given up is too late.
        self.talk = tf.get_variable("talk", initializer=tf.zeros([], tf.int64), **own)
        self.choose_among = [
            self.present.assign(self.chosen, read_value=False),
            self.talk.assign_add(1, read_value=False),
        ]
        self.average_there = self._function(self._average, self.x)
        any_tensor = tf.constant(True)  # a remote call must have an argument
        read = self._function(self._read, any_tensor)
        names = map(name_of, range(workers))
        self.everybody = [self._call(name, read, any_tensor) for name in names]

    # --- What runs on another worker --------------------------------------------

    @staticmethod
    def _function(function, like):
        spec = tf.TensorSpec(like.shape, like.dtype)
        return tf.function(function, autograph=False).get_concrete_function(spec)

    def _call(self, target, function, tensor):
        """Returns what the function returns of a tensor on the worker `target`."""
        (found,) = tf.raw_ops.RemoteCall(
            target=target, args=[tensor], Tout=[self.x.dtype], f=function
        )
        found.set_shape(self.x.shape)
        return found

    def _there(self):
        # By its name: whose it is depends on where the function runs.
        return tf.raw_ops.VarHandleOp(
            dtype=self.x.dtype,
            shape=self.x.shape,
            container=self.container,
            shared_name=self.x.op.name,
        )

    def _value(self):
        return tf.raw_ops.ReadVariableOp(resource=self._there(), dtype=self.x.dtype)

    @contextlib.contextmanager
    def _locked(self, after=()):
        """What is built inside runs with the lock of x held, where it runs.

        Yields the list of what has to be done before the lock is given back.
        `self.unlocked` is the operation that gives it back.
        """
        with tf.control_dependencies(after):
            mutex = tf.raw_ops.MutexV2(container=self.container, shared_name="replica")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            done = []
            yield done
        with tf.control_dependencies(done):
            self.unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def _average(self, theirs):
        """passive worker: x ← (theirs + x) / 2; returns that."""
        with self._locked() as done:
            mean = (theirs + self._value()) / 2
            assign = tf.raw_ops.AssignVariableOp(resource=self._there(), value=mean)
            done.append(assign)
        with tf.control_dependencies([self.unlocked]):
            return tf.identity(mean)

    def _read(self, any_tensor):
        """Any worker: returns x."""
        return self._value()

    # --- What a round does ------------------------------------------------------

    def read(self, after=()):
        """Returns x [P] as a round finds it, a copy that does not change any more."""
        with tf.control_dependencies(tf.nest.flatten(after)):
            return self.x.read_value()

    def choose(self):
        """Returns the name of a neighbour, each as likely as the others."""
        names = self.present.read_value()
        return names[tf.random.uniform([], 0, tf.size(names), tf.int32, seed=self.seed)]

    def average(self, x):
        """active worker: x_k, x_j ← (x_k + x_j) / 2 with a neighbour j at random.

        `x` [P] is this worker's own. Returns the operations after which both are done;
        none on a passive worker, which is asked by others.
        """
        if not self.near:
            return []
        with tf.control_dependencies([x]):
            talk = self.talk.read_value()
        mean = self._call(self.choose(), self.average_there, x)
        with tf.control_dependencies([mean]):
            in_time = tf.equal(self.talk.read_value(), talk)
            new = tf.where_v2(in_time, mean, self.x.read_value())
        return [self.x.assign(new, read_value=False)]

    def sent(self):
        """Returns the bytes that a round sends, and as many that it gets."""
        return 4 * self.x.shape.num_elements() if self.near else 0

    def update(self, after, applied, rule):
        """Makes `rule(x)`, an operation, under the lock, if it is `applied`.

        Without the lock it could fall between the read and the write of somebody's
        average, and be lost. Returns what comes after it.
        """
        applied = tf.identity(applied)
        with self._locked([*after, applied]) as done:
            done.append(rounds.only_if(applied, lambda: rule(self.x)))
        return [self.unlocked]
