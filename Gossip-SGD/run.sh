#!/usr/bin/env bash
# Gossip-SGD on this machine: two workers.
SCRIPT=gossip_sgd.py
NUM_PS=${NUM_PS:-0}
NUM_WORKERS=${NUM_WORKERS:-2}
PEERS=yes # no ps is needed
# --- identical in every example below this line ---
# Starts the tasks on this machine, waits for them, ends them: see cluster/launch.py.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# LAUNCH may be another program's.
[ "${LAUNCH:-}" = launcher.py ] || LAUNCH=cluster/launch.py
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$here/../.venv/bin/python
  [ -x "$PYTHON" ] || PYTHON=python3
fi
if ! command -v "$PYTHON" >/dev/null; then
  echo "run.sh: PYTHON=$PYTHON: no such command" >&2
  exit 2
fi
export SCRIPT NUM_PS NUM_WORKERS PEERS="${PEERS:-}"
exec "$PYTHON" -B "$here/$LAUNCH" "$@"
