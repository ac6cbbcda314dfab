#!/usr/bin/env bash
# Starts an example with Open MPI's mpirun on this machine: bash run.sh [EXAMPLE] [OPTION ...]
# From the environment: NUM_PS, NUM_WORKERS, LOGDIR, TIMEOUT, BASE_PORT, OPEN_PORTS, PYTHON,
# and HOSTFILE (default: hosts, beside this file).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=MPI
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
: "${HOSTFILE:=$HERE/hosts}"

needs() {
  have mpirun "install Open MPI (Debian and Ubuntu: sudo apt install openmpi-bin)"
}

version() {
  mpirun --version | sed -n '1s/^mpirun (\(.*\))/\1/p'
}

rehearse() {
  local slots
  local flags=(--hostfile "$HOSTFILE" --map-by slot --bind-to none --tag-output)
  [ "$(id -u)" -ne 0 ] || flags+=(--allow-run-as-root)
  [ -r "$HOSTFILE" ] || stop 2 "HOSTFILE=$HOSTFILE cannot be read"
  # The slots of all hosts, one for a host that does not say.
  slots=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' -e 's/.*slots=\([0-9]*\).*/\1/' \
    -e 's/^[^0-9].*/1/' "$HOSTFILE" | awk '{ n += $1 } END { print n + 0 }')
  [ "$slots" -ge "$TASKS" ] ||
    stop 2 "$HOSTFILE has $slots slots, and $TASKS tasks need one each"
  export TMPDIR=$SCRATCH # mpirun leaves its session there when it is told to end
  launch mpirun -n "$TASKS" "${flags[@]}" "$PYTHON" "$HERE/adapter.py" "$HOSTFILE" \
    "$SCRIPT" --logdir "$LOGDIR" ${OPTIONS[@]+"${OPTIONS[@]}"}
  follow $!
}

engine "$@"
