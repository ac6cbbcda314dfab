"""How a program ends early: one sentence and a status. Everybody calls it.

  0  all is done
  1  it failed, said why, and would again
  2  a usage error: flags, data, addresses
  3  what it needs is not on this machine
138  it failed, and another start may help (Kubernetes' policy ExitCode agrees)
"""

import logging
import os
import sys
import traceback

AGAIN = 138


class Failure(Exception):
    """The whole run has failed, for the reason that is its text."""


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(status)


def leave_now(sentence, status):
    """Ends the process with one sentence from any thread, whatever the others do."""
    try:
        fail(sentence, status)
    finally:
        sys.stdout.flush()
        os._exit(status)


def run(main):
    """Runs a script's `main`: whatever ends it reaches the screen as one sentence.

    Training that diverges raises Failure, whose text is enough. The traceback
    of anything else is in the task's log, for whoever has to mend it.
    """
    try:
        main()
    except Failure as error:
        fail(str(error), 1)
    except Exception as error:
        if not logging.getLogger().handlers:
            raise  # there is no log yet, see start.begin
        logging.getLogger().error(traceback.format_exc())
        lines = str(error).splitlines() or ["no reason given"]
        fail(f"{type(error).__name__}: {lines[0]}", AGAIN)
