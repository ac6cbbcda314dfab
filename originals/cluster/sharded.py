"""A run whose state lies in parts on all workers. Sharded-Data-Parallel calls it.

In a checkpoint there are no parts: w, m and v are whole there, and another number of
workers or another --stage can go on with it. The chief saves and restores one of them
after the other, with a session that sees all workers.
"""

import os
import shutil

from cluster import peers, task
from cluster import tensorflow_v1 as tf

KEPT = 5  # checkpoints in LOGDIR
serve = peers.serve


class Saver:
    """As a tf.train.Saver, of what the chief has, and of the shards of all."""

    def __init__(self, own, center, target):
        """`own` saves what the chief has whole; `center` and `target` are its own."""
        self.own, self.center, self.target = own, center, target
        self.graph, self.restored, self.kept = tf.Graph(), None, []
        self.whole, self.saves, self.restores = {}, [], []
        with self.graph.as_default():
            self.path = tf.placeholder(tf.string, [])
            for name, shard in center.shards.items():
                self._add(name, shard)
            paths = [self.path + f".parts/{name}" for name in ("chief", *center.shards)]
            self.merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=tf.stack(paths), destination_prefix=self.path
            )

    def _add(self, name, shard):
        """Builds what saves a variable whole, and restores it to the shards of all."""
        where = dict(tensor_names=[name], shape_and_slices=[""])
        (vector,) = tf.raw_ops.RestoreV2(prefix=self.path, dtypes=[tf.float32], **where)
        vector.set_shape([self.center.size])
        # Variables of one name on one device are one variable, in any graph.
        keys = ("shared_name", "container", "dtype", "shape")
        same = {key: shard.handle.op.get_attr(key) for key in keys}
        shards, done = [], []
        for worker in range(self.center.workers):
            value = self.center.shard_of(vector, worker)
            with tf.device(f"/job:worker/task:{worker}"):
                handle = tf.raw_ops.VarHandleOp(**same)
            # TensorFlow puts them where the handle is, and all else on the chief.
            done.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
            shards.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32))
        self.whole[name] = self.center.joined(shards)
        prefix, tensors = self.path + f".parts/{name}", [self.whole[name]]
        self.saves.append(tf.raw_ops.SaveV2(prefix=prefix, tensors=tensors, **where))
        self.restores.append(done)

    def run(self, path, *fetches):
        """Returns what is fetched last, one after the other, for a checkpoint."""
        with tf.Session(self.target, graph=self.graph) as session:
            return [session.run(one, {self.path: path}) for one in fetches][-1]

    def save(self, session, path, step, **options):
        """Saves one checkpoint of everything, as `path`-`step`, and lists it."""
        path, options = f"{path}-{step}", {**options, "write_state": False}
        os.makedirs(f"{path}.parts", exist_ok=True)
        try:
            self.own.save(session, f"{path}.parts/chief", **options)
            self.run(path, *self.saves, self.merge)
        finally:
            shutil.rmtree(f"{path}.parts", ignore_errors=True)
        self.kept.append(path)
        names = [os.path.basename(one) for one in self.kept[-KEPT:]]
        tf.train.update_checkpoint_state(os.path.dirname(path), names[-1], names)
        while len(self.kept) > KEPT:
            tf.train.remove_checkpoint(self.kept.pop(0))

    def recover_last_checkpoints(self, paths):
        """Notes the checkpoints that are there, the last one last."""
        self.kept = [*paths]

    def restore(self, session, path):
        """Restores what the chief has whole. The parts follow with `restore_parts`."""
        there = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        size = [self.center.size]
        for name in self.center.shards:
            if there.get(name) != size:
                raise ValueError(f"{name} is {there.get(name)} there, {size} here")
        self.own.restore(session, path)
        self.restored = path

    def restore_parts(self):
        """Restores the parts, when every worker has its variables."""
        if self.restored:
            self.run(self.restored, *self.restores)


class Peers:
    """All workers of a run, as in peers.Peers; each holds parts of what is trained."""

    def __init__(self, training, ring, calls):
        self.training, self.calls, self.saver = training, calls, None
        self.group = peers.Peers(training, ring, calls)
        self.together, self.end = self.group.together, self.group.end
        self.all = ring.sum(tf.zeros([1]))  # after which all have called it
        if training.chief:
            center, own = ring.held, training.checkpoints.saver
            self.saver = Saver(own, center, training.server.target)
            training.checkpoints.saver = self.saver
            task.last_acts[:] = [self._leave]  # instead of the run's own
            if center.shards:
                whole = self.saver.whole["center"]
                training.report.feed = lambda: {center.fed: self.saver.run("", whole)}

    def begin(self):
        """Returns when all workers are there, and have their parts."""
        self.group.begin()
        with self.together():
            if self.saver:
                self.saver.restore_parts()
            self.training.session.run(self.all)

    def log(self, losses, counts):
        """Notes the rounds of a call when all have made them: the parts fit then."""
        self.training.session.run(self.all)
        self.group.log(losses, counts)

    def _leave(self):
        """Chief, when TERM ends it: saves between two rounds, as workers do that go."""
        self.group.goes = self.calls.wish = True
        self.group.gone.wait()
