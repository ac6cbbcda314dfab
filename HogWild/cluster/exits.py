"""How a program ends before its time: one sentence and a status. Everybody calls it.

0  all is done                    2  a usage error: flags, data, addresses
1  it failed, and said why        3  what it needs is not on this machine
"""

import logging
import os
import sys
import traceback


def fail(sentence, status=2):
    """Ends the program with one sentence on stderr."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(status)


def run(main):
    """Runs a script's `main`: whatever ends it reaches the screen as one sentence.

    Training that diverges raises FloatingPointError, which says all there is to say.
    The traceback of anything else is in the task's log, for whoever has to mend it.
    """
    try:
        main()
    except FloatingPointError as error:
        fail(str(error), 1)
    except Exception as error:
        if not logging.getLogger().handlers:
            raise  # there is no log yet, see start.begin
        logging.getLogger().error(traceback.format_exc())
        lines = str(error).splitlines() or ["no reason given"]
        fail(f"{type(error).__name__}: {lines[0]}", 1)
