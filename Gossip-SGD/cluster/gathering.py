"""How workers with replicas start, go on and end: by their average. Scripts call it.

start   as with a ps, which here is the chief: it keeps the books and w, from which
        every replica begins; nobody waits for the others
lost    a worker: the others go on without it, and with it when it comes back. The
        chief: all wait for it, and begin again from the w that it restores
end     a worker that is done hands its report in, and can be asked for its replica
        until the chief has averaged all and saved that
"""

from cluster import protocol


class Gathering(protocol.Protocol):
    """worker: start, what follows a loss, and end; a context for the whole run."""

    def __init__(self, args, target, config, kept, elements, calls):
        """`calls` are the company.Calls, the rest is as in protocol.Protocol."""
        super().__init__(args, target, config, kept, elements)
        self.calls = calls

    def collected(self, session):
        """Chief: averages the replicas, which nobody changes any more."""
        self.calls.gather(session)

    def account(self, session):
        """Chief: returns the books as a dict, and how far apart the replicas were."""
        return {**super().account(session), "consensus_distance": self.calls.distance}

    def __exit__(self, kind, error, traceback):
        """Ends the session of the rounds, and what protocol.Protocol ends."""
        self.calls.close(seconds=2)
        super().__exit__(kind, error, traceback)
