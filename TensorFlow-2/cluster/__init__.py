"""What a distributed script needs around its scheme; in a copy, keep it as it is.

README.md of Distributed-Setup has a map of the modules: what each is for.
"""

# A script imports this package before the rest of its folder, so that a module which
# is missing there is one sentence, too.

import contextlib
import importlib.util
import os
import sys
import traceback

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = ("tensorflow", "numpy", "sklearn")
INSTALL = 'pip install "tensorflow==2.21.*" numpy scikit-learn'
MISSING = 3  # the exit status if something is not on this machine


def place(frames):
    """Returns "problem.py, line 5: ", of the last frame in a file beside the script.

    "" if no frame is in such a file.
    """
    files = {os.path.join(FOLDER, name) for name in os.listdir(FOLDER)}
    own = [f for f in frames if os.path.abspath(f.filename) in files]
    if not own:
        return ""
    return f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}: "


def missing(error):
    """Returns what is missing on this machine, a sentence; "" for any other error."""
    module, lost = "", isinstance(error, ModuleNotFoundError)
    if isinstance(error, ImportError):
        module = (error.name or "").partition(".")[0]
    if module == "cluster" or lost and module in ("problem", "datasets"):
        return f"{FOLDER} is not complete ({error}): copy all of it"
    if not lost:
        return ""
    names, how = [module], f"install the package that has {module}"
    if module in PACKAGES:
        names = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        how = f"{sys.executable} -m {INSTALL}"
    where = place(traceback.extract_tb(error.__traceback__))
    return (
        f"{where}{sys.executable} has no {', '.join(names or [module])} that can be "
        f"imported ({error}): {how}; or name another Python: PYTHON=... bash run.sh"
    )


def end(error):
    """Says on stderr why the program ends; returns its exit status."""
    sentence = missing(error)
    if not sentence:
        traceback.print_exception(type(error), error, error.__traceback__)
        return 1
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr, flush=True)
    return MISSING


def _hook(kind, error, trace):
    if not missing(error):
        return sys.__excepthook__(kind, error, trace)
    raise SystemExit(end(error))


if os.path.abspath(sys.argv[0]).startswith(os.path.join(FOLDER, "")):
    sys.excepthook = _hook
    for screen in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # it is closed, or of another kind
            screen.reconfigure(errors="backslashreplace")  # where η is no character
