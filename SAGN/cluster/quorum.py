"""Are there enough workers for a step? `sync` asks with every heartbeat."""

import time

import numpy as np

from cluster.heartbeat import GONE
from cluster.patience import SAY, STARTING


class Quorum:
    """Says for which workers a step waits, and that one cannot go on without them.

    One that was killed may be started again, and then the others go on; but they do not
    wait for ever, no more than for a ps.
    """

    def __init__(self, args):
        self.size, self.patience = args.replicas_to_aggregate, args.patience
        self.began, self.due = time.monotonic(), 0.0

    def check(self, silence, came):
        """Says every 10 s for whom it waits; returns a sentence after `patience`.

        `silence` [workers] are seconds, `came` [workers] says who was ever there: a
        worker that is not may take ten times as long, as for every start. A worker that
        was started again because it had waited waits as long as before.
        """
        spare = len(silence) - self.size
        missing = np.flatnonzero(silence > GONE)
        if len(missing) <= spare:
            self.due = 0.0
            return ""
        who = ", ".join(map(str, missing))
        limit = np.where(came, self.patience, STARTING * self.patience)
        now = time.monotonic()
        waited = np.minimum(silence, now - self.began)
        takes = f"a step takes the gradients of {self.size} workers"
        if np.sum(waited > limit) > spare:
            least = min(silence[missing])
            return f"no heartbeat in {least:.0f} s from worker {who}: {takes}"
        if now >= self.due:
            left = max(0, np.sort(limit - waited)[spare])
            text = f"still waiting for worker {who}: {takes}; {left:.0f} s left"
            print(text, flush=True)
            self.due = now + SAY
        return ""
