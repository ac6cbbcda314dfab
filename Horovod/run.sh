#!/usr/bin/env bash
# Horovod on this machine: two workers, started by horovodrun.
# The first run makes an environment, see environment.sh: it takes minutes.
# From the environment: NUM_WORKERS, OPEN_PORTS, PYTHON, HOROVOD_VENV, LOGDIR, TIMEOUT
# (seconds, status 124), MAX_RESTARTS (of all workers, from the last checkpoint), DRY_RUN
# (not empty: only print the command), and Horovod's own HOROVOD_CYCLE_TIME,
# HOROVOD_FUSION_THRESHOLD, ... Every argument goes to the script.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
set -euo pipefail
unset PYTHONSAFEPATH # a script finds what lies beside it

exec 3>&2

fail() {
  echo "run.sh: $1" >&3
  exit 2
}

number() { # name value least
  case $2 in
    '' | *[!0-9]* | ??????????*) fail "$1=$2 is not a whole number" ;;
  esac
  [ "$((10#$2))" -ge "$3" ] || fail "$1=$2 must be at least $3"
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=Horovod/environment.sh
source "$here/environment.sh"
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$here/../.venv/bin/python
  [ -x "$PYTHON" ] || PYTHON=python3
fi
command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such command"
number NUM_WORKERS "${NUM_WORKERS:=2}" 1
number TIMEOUT "${TIMEOUT:=3600}" 1
number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0
[ "${NUM_PS:-0}" = 0 ] || fail "NUM_PS=$NUM_PS: there is no ps in this scheme, the workers are peers"
[ -z "${BASE_PORT:-}" ] || fail "BASE_PORT=$BASE_PORT: Horovod takes any ports that are free"

export PYTHONDONTWRITEBYTECODE=1 # nothing is written outside LOGDIR
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
: "${LOGDIR:=$here/logdir/$(date +%Y-%m-%d_%H-%M-%S)-$$}"
previous=
for argument; do
  case $argument in
    --check) CHECK=yes ;;
    -h | --help) exec "$PYTHON" "$here/horovod_sgd.py" --help ;;
    --logdir=*) LOGDIR=${argument#--logdir=} ;;
  esac
  [ "$previous" != --logdir ] || LOGDIR=$argument
  previous=$argument
done
case $LOGDIR in \~/*) LOGDIR=$HOME${LOGDIR#\~} ;; esac # which no shell does behind =

[[ $LOGDIR == /* ]] || LOGDIR=$PWD/$LOGDIR
horovodrun=("$HOROVOD_VENV/bin/horovodrun" -np "$NUM_WORKERS" --gloo "$HOROVOD_PYTHON"
  "$here/horovod_sgd.py" --logdir "$LOGDIR" "$@")
if [ -n "${DRY_RUN:-}" ]; then
  printf '%q ' "${horovodrun[@]}"
  echo
  exit
fi

reason='' runner=''

cleanup() {
  local status=$? wait=150
  trap - EXIT
  trap '' INT TERM HUP PIPE
  exec 2>/dev/null # bash itself would report who is killed
  stop_building
  # horovodrun ends the workers of this machine and of others, for which it takes 5 s.
  [ -z "$runner" ] || kill "$runner" || true
  while [ -n "$(jobs -rp)" ] && [ $((wait -= 1)) -gt 0 ]; do
    sleep 0.1
  done
  # shellcheck disable=SC2046 # a word is a pid
  kill -KILL $(jobs -rp) || true
  rm -f "$LOGDIR/.printing"
  [ -z "$reason" ] || echo "run.sh: $reason" >&3 || true # nobody may read it
  exit "$status"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 141' PIPE # the `tee` behind it was told to end
what() { # prints what a signal has ended
  if [ -n "$runner" ]; then
    echo "$NUM_WORKERS workers, logdir $LOGDIR"
  else
    echo "the start"
  fi
}
trap 'reason="Ctrl-C ended $(what)"; exit 130' INT
trap 'reason="TERM ended $(what)"; exit 143' TERM

check() { # python arguments: flags and data, in one process, before anything starts
  local python=$1
  shift
  # The script takes this shell for the launcher, and leaves the model out.
  LAUNCHER=$$ "$python" "$here/horovod_sgd.py" --logdir "$LOGDIR" "$@" --check
}

alone='' network=(unshare --net)
[ "$(id -u)" -eq 0 ] || network=(unshare --user --map-root-user --net)
[ "${ALONE:-}" != "$$" ] || alone=yes
# Switches loopback on: linux/sockios.h, linux/if.h.
up=("$PYTHON" -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x41))
socket.create_connection(socket.create_server(("localhost", 0)).getsockname())')
if [ -n "$alone" ]; then
  "${up[@]}"
else
  # A mistake is found before minutes are spent, if this Python has what that needs.
  if is_made; then
    check "$HOROVOD_PYTHON" "$@"
  elif "$PYTHON" -c 'import numpy, sklearn' 2>/dev/null; then
    check "$PYTHON" "$@"
  fi
  [ -z "${CHECK:-}" ] || exit 0 # flags and data alone
  is_made || {
    make_environment
    check "$HOROVOD_PYTHON" "$@"
  }
  # Whoever reaches a port of horovodrun can read and change what is sent. So the workers
  # get a network of their own, in which this script is started again.
  if [ -z "${OPEN_PORTS:-}" ]; then
    if "${network[@]}" "${up[@]}" 2>/dev/null; then
      export ALONE=$$ LOGDIR PYTHON
      exec "${network[@]}" bash "$here/run.sh" "$@"
    fi
    echo "run.sh: no network of its own here: anyone who reaches this machine reaches the run"
  fi
fi

prefix() { # standard input: horovodrun's lines, each labelled as in the other examples
  local line worker
  trap '' INT TERM HUP
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      \[*\]\<std*\>:*)
        worker=${line%%]*}
        printf '[worker %s] %s\n' "${worker#[}" "${line#*>:}"
        ;;
      *) printf '%s\n' "$line" >>"$LOGDIR/horovodrun.log" ;;
    esac
  done
  rm -f "$LOGDIR/.printing"
}

printed() { # waits until the last line of the workers is on the screen
  local wait=40
  while [ -e "$LOGDIR/.printing" ] && [ $((wait -= 1)) -gt 0 ]; do
    sleep 0.05
  done
}

failed_first() { # the worker that ended first, and its status, from horovodrun's words
  sed -n 's/^Process name: \([0-9]*\)$/\1/p; s/^Exit code: \(-\{0,1\}[0-9]*\)$/\1/p' \
    "$LOGDIR/horovodrun.log" | tail -n 2 | tr '\n' ' '
}

mkdir -p "$LOGDIR" 2>/dev/null || fail "LOGDIR=$LOGDIR cannot be made"
LOGDIR=$(cd "$LOGDIR" && pwd)
echo "run.sh: horovodrun starts $NUM_WORKERS workers on localhost, logdir $LOGDIR"
SECONDS=0
restarts=0
exec 2>/dev/null # bash itself would report a process that is killed
while :; do
  : >"$LOGDIR/horovodrun.log"
  : >"$LOGDIR/.printing"
  "${horovodrun[@]}" > >(prefix) 2>&1 &
  runner=$!
  while kill -0 "$runner" 2>/dev/null; do
    if [ "$SECONDS" -ge "$TIMEOUT" ]; then
      reason="no end after TIMEOUT=$TIMEOUT s"
      exit 124
    fi
    sleep 0.1
  done
  status=0
  wait "$runner" || status=$?
  runner=''
  printed
  [ "$status" -ne 0 ] || break
  read -r worker status <<<"$(failed_first)" || true
  [ -n "${worker:-}" ] || worker=0 status=1
  [ "$status" -ge 0 ] || status=$((128 - status)) # by a signal
  if [ "$status" -le 2 ] || [ "$restarts" -ge "$MAX_RESTARTS" ]; then
    reason="worker $worker ended with status $status; see worker-$worker.log and horovodrun.log in $LOGDIR"
    exit "$status"
  fi
  restarts=$((restarts + 1))
  echo "run.sh: worker $worker ended with status $status; restart $restarts of $MAX_RESTARTS of all"
done
