"""What a ps does: it holds variables, and leaves when the run is over.

A ps that has trained is never restored into: for that it begins again, when the chief
says so, as a new process with the same pid. So a push that comes late, of a session
that the new process does not know, is refused by TensorFlow, and is in no later model.
"""

from cluster import board


def serve(server, args):
    """ps: returns when the chief says that the run is over; `server.join()` never does.

    Ends the program as a failure if the run has failed, or has lost its chief.
    """
    count = len(getattr(args, f"{args.job_name}_hosts"))
    print(f"{args.job_name} {args.task_index} of {count} serves at {args.address}")
    board.serve(server, args)
