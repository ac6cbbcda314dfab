#!/usr/bin/env bash
# Decoupled-DiLoCo on this machine: one ps and two workers.
SCRIPT=decoupled_diloco.py
NUM_PS=${NUM_PS:-1}
NUM_WORKERS=${NUM_WORKERS:-2}
# --- identical in every example below this line ---
# Starts the tasks on this machine, waits for them, ends them: see launch.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ "${LAUNCH:-}" = launcher.py ] || LAUNCH=launch.py
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$here/../.venv/bin/python
  [ -x "$PYTHON" ] || PYTHON=python3
fi
if ! command -v "$PYTHON" >/dev/null; then
  echo "run.sh: PYTHON=$PYTHON: no such command" >&2
  exit 2
fi
unset PYTHONSAFEPATH # a program finds what lies beside it
export SCRIPT NUM_PS NUM_WORKERS PEERS
exec "$PYTHON" -B "$here/$LAUNCH" "$@"
