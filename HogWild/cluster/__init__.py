"""What a distributed script needs around its scheme; in a copy, keep it as it is.

README.md of Distributed-Setup has a map of the modules: what each is for.
"""

# A script imports this package before the rest of its folder, so that an error in what
# it imports next is one sentence, too.

import contextlib
import os
import sys
import traceback

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSTALL = 'pip install "tensorflow==2.21.*" numpy scikit-learn'
MISSING = 3  # the exit status if something is not on this machine


def place(frames):
    """Returns "problem.py, line 5: ", of the last frame in a file beside the script.

    "" if no frame is in such a file.
    """
    own = [f for f in frames if os.path.dirname(os.path.abspath(f.filename)) == FOLDER]
    if not own:
        return ""
    return f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}: "


def explain(error):
    """Returns (sentence, exit status) for an error that would happen again."""
    where = place(traceback.extract_tb(error.__traceback__))
    what = [*filter(None, map(str.strip, str(error).splitlines())), "no reason given"]
    if isinstance(error, SyntaxError):
        what = [error.msg]
        where = place([traceback.FrameSummary(error.filename or "", error.lineno, "")])
    elif isinstance(error, ImportError) and error.name:
        module, lost = error.name.partition(".")[0], type(error) is ModuleNotFoundError
        if module == "cluster" or lost and module in ("problem", "datasets"):
            return f"{FOLDER} is not complete ({what[0]}): copy all of it", MISSING
        if lost:
            ours = module in ("numpy", "sklearn", "tensorflow")
            how = INSTALL if ours else f"install the package that has {module}"
            return (
                f"{where}{sys.executable} has no {module} that can be imported "
                f"({what[0]}): {how}, or name another interpreter"
            ), MISSING
    return f"{where}{type(error).__name__}: {what[0]}", 1


def end(error):
    """Says on stderr why the program ends; returns its exit status."""
    sentence, status = explain(error)
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    return status


def _hook(kind, error, trace):
    ours = issubclass(kind, ImportError) or place(traceback.extract_tb(trace))
    if not issubclass(kind, Exception) or not (ours or kind is SyntaxError):
        return sys.__excepthook__(kind, error, trace)
    raise SystemExit(end(error))


if os.path.abspath(sys.argv[0]).startswith(os.path.join(FOLDER, "")):
    sys.excepthook = _hook
    for screen in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # it is closed, or of another kind
            screen.reconfigure(errors="backslashreplace")  # where η is no character
