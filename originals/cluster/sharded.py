"""A run whose state lies in parts on all workers. Sharded-Data-Parallel calls it.

The chief reads the parts where they are, and writes where they have to be, with a
session of its own that sees all workers, one worker after the other, so that it never
holds more than the parts of one. In a checkpoint there are no parts: every variable is
whole there, and another number of workers or another --stage can go on with it.
"""

import os
import shutil
import threading

from cluster import peers
from cluster import tensorflow_v1 as tf
from cluster.shards import filled

CHIEF = "/job:worker/task:0"
KEPT = 5  # checkpoints in LOGDIR
serve = peers.serve


class Parts:
    """The parts of all workers, as the chief reads and writes them."""

    def __init__(self, center, target):
        """`center` is the shards.Center of the chief, `target` its session's."""
        self.center, self.target, self.graph = center, target, tf.Graph()
        self.shards = center.shards
        with self.graph.as_default(), tf.device(CHIEF):
            self.path = tf.placeholder(tf.string, [])
            workers = range(center.workers if self.shards else 0)
            self.saves = [self._save(k) for k in workers]
            self.restores = [self._restore(k) for k in workers]
            self.paths = tf.placeholder(tf.string, [None])
            self.merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=self.paths, destination_prefix=self.path
            )
            if "center" in self.shards:
                self.whole = self._whole("center", workers)

    def session(self):
        """Returns a session that sees all workers."""
        return tf.Session(self.target, graph=self.graph)

    def read(self):
        """Returns all of the center variable [P], an array, from the parts."""
        with self.session() as session:
            return session.run(self.whole)

    def _handle(self, name, worker):
        # Variables of one name on one device are one variable, in any graph.
        op = self.shards[name].handle.op
        with tf.device(f"/job:worker/task:{worker}"):
            return tf.raw_ops.VarHandleOp(
                dtype=tf.float32,
                shape=self.shards[name].shape,
                shared_name=op.get_attr("shared_name").decode(),
                container=op.get_attr("container").decode(),
            )

    def _slices(self, worker):
        return [one for one in self.center.slices(worker) if one.size]

    def _read(self, name, worker):
        """Returns the slices of a worker's variable, on this worker."""
        handle = self._handle(name, worker)
        with tf.device(handle.device):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            return [value[s.at : s.at + s.size] for s in self._slices(worker)]

    def _whole(self, name, workers):
        found = [
            (one.begin, piece)
            for k in workers
            for one, piece in zip(self._slices(k), self._read(name, k), strict=True)
        ]
        return tf.concat([piece for _, piece in sorted(found, key=lambda x: x[0])], 0)

    def _texts(self, worker):
        """Returns how a checkpoint names a worker's slices."""
        return [f"{self.center.size} {s.begin},{s.size}" for s in self._slices(worker)]

    def _save(self, worker):
        names, texts, tensors = [], [], []
        for name in self.shards:
            slices = self._texts(worker)
            names += [name] * len(slices)
            texts += slices
            tensors += self._read(name, worker)
        if not tensors:  # more workers than numbers
            return tf.no_op()
        return tf.raw_ops.SaveV2(
            prefix=self.path,
            tensor_names=names,
            shape_and_slices=texts,
            tensors=tensors,
        )

    def _restore(self, worker):
        texts, names = self._texts(worker), list(self.shards)
        found = iter(
            tf.raw_ops.RestoreV2(
                prefix=self.path,
                tensor_names=[name for name in names for _ in texts],
                shape_and_slices=texts * len(names),
                dtypes=[tf.float32] * len(texts) * len(names),
            )
            if texts
            else []
        )
        done = []
        for name in names:
            pieces = []
            slices = self.center.slices(worker)
            for one, part in zip(slices, self.center.parts, strict=True):
                piece = next(found) if one.size else tf.zeros([0])
                pieces.append(filled(piece, part))
            value, handle = tf.concat(pieces, axis=0), self._handle(name, worker)
            with tf.device(handle.device):
                assign = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            done.append(assign)
        return tf.group(done)

    def save(self, folder, path, first):
        """Saves all parts in `folder`; makes `path` of them and checkpoint `first`."""
        with self.session() as session:
            paths = [first]
            for worker, save in enumerate(self.saves):
                if self._texts(worker):
                    paths.append(os.path.join(folder, f"worker-{worker}"))
                    session.run(save, {self.path: paths[-1]})
            session.run(self.merge, {self.paths: paths, self.path: path})

    def restore(self, path):
        """Gives every worker its parts out of a checkpoint."""
        with self.session() as session:
            for restore in self.restores:
                session.run(restore, {self.path: path})


class Saver:
    """As a tf.train.Saver, of what the chief has and of the parts of all."""

    def __init__(self, own, parts):
        """`own` is the Saver of the variables that the chief has whole."""
        self.own, self.parts, self.restored, self.kept = own, parts, None, []

    def save(self, session, path, step, **options):
        """Saves one checkpoint of everything, as `path`-`step`, and lists it."""
        path, options = f"{path}-{step}", {**options, "write_state": False}
        folder = f"{path}.parts"
        os.makedirs(folder, exist_ok=True)
        try:
            first = self.own.save(session, os.path.join(folder, "chief"), **options)
            self.parts.save(folder, path, first)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # a full disk leaves it there
        names = [os.path.basename(old) for old in [*self.kept, path]]
        kept = names[-KEPT:]
        tf.train.update_checkpoint_state(os.path.dirname(path), kept[-1], kept)
        for old in self.kept[: len(names) - len(kept)]:
            tf.train.remove_checkpoint(old)
        self.kept = [*self.kept, path][-KEPT:]

    def restore(self, session, path):
        """Restores what the chief has whole. The parts follow with `restore_parts`."""
        there = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for name in self.parts.shards:
            if there.get(name) != [self.parts.center.size]:
                shape = there.get(name, "not")
                raise ValueError(
                    f"{name} is {shape} there, [{self.parts.center.size}] here"
                )
        self.own.restore(session, path)
        self.restored = path

    def recover_last_checkpoints(self, paths):
        """Notes the checkpoints that are there, the last one last."""
        self.kept = [*paths]

    def restore_parts(self):
        """Restores the parts, when every worker has its variables."""
        if self.restored:
            self.parts.restore(self.restored)


class Peers(peers.Peers):
    """Workers that hold parts of what is trained."""

    def __init__(self, training, ring, calls):
        super().__init__(training, ring, calls)
        self.all = ring.sum(tf.zeros([1]))  # after which all have called it
        self.ending, self.ended = False, threading.Event()
        if self.chief:
            parts = Parts(ring.held, training.server.target)
            self.saver = Saver(training.checkpoints.saver, parts)
            training.checkpoints.saver = self.saver
            training.before_the_end = self._save_between_rounds
            if ring.held.fed is not None:
                training.report.feed = lambda: {ring.held.fed: parts.read()}

    def begin(self):
        """Returns when all workers are there, and have their parts."""
        super().begin()
        with self.together():
            if self.chief:
                self.saver.restore_parts()
            self.training.session.run(self.all)

    def log(self, losses, counts):
        """Notes the rounds of a call when all have made them: the parts fit then."""
        self.training.session.run(self.all)
        super().log(losses, counts)
        if self.ending and self.training.left > 0:
            self.training.checkpoints.save(self.training.session)
            step = self.training.checkpoints.step
            print(f"told to end: saved at global step {step}")
            self.ended.set()

    def again(self, reason):
        """Begins again, unless this worker is told to end: then so are the others."""
        if self.ending:
            self.ended.set()
            threading.Event().wait()  # the end itself is the signal's
        super().again(reason)

    def _save_between_rounds(self):
        # The parts fit together between rounds only, which the main thread makes.
        self.ending = True
        self.ended.wait()
