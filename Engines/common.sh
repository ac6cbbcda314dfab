# shellcheck shell=bash
# Sourced by the run.sh of every engine: what they have in common, kept once, because
# Engines/ is not copied folder by folder as the examples are.
#
# A run.sh sets ENGINE (its name) and HERE (its folder), defines
#   needs      stops with status 3 and a sentence if the engine is not here: see `have`
#   version    prints the engine's version, one line
#   rehearse   starts the tasks with the engine, by `launch` and `follow`
#   finish     optional: ends what it started in the engine's own way
# and calls `engine "$@"`. `rehearse` finds these:
#   EXAMPLE FOLDER SCRIPT   HogWild, its folder, the path of its script
#   OPTIONS                 array: the script's options, without --logdir
#   NUM_PS NUM_WORKERS      as given, or as the example's own run.sh has them
#   TASKS BASE_PORT         their sum; the first of as many free ports in a row
#   LOGDIR SCRATCH          absolute; a folder that is gone afterwards
#   PYTHON                  has TensorFlow; `environment` makes one with requirements.txt
#   ALONE                   not empty in a network of its own; WANTS (set before) is
#                           an array of more flags of unshare; that network is then a must
# Exit status: 0 ok, 2 usage, 3 something is missing here, 124 timeout, 130 Ctrl-C,
# 143 TERM, else what the engine made of the first task that failed.
set -euo pipefail
unset PYTHONSAFEPATH # a script finds what lies beside it

exec 3>&2
ROOT=$(cd "${HERE:?}/../.." && pwd)
reason='' SCRATCH='' RUN="$$-$RANDOM"

stop() { # status sentence
  echo "run.sh: $2" >&3
  exit "$1"
}

have() { # command how-to-install
  command -v "$1" >/dev/null || stop 3 "$ENGINE needs the command $1: $2"
}

number() { # name value least
  case $2 in
    '' | *[!0-9]* | ??????????*) stop 2 "$1=$2 is not a whole number" ;;
  esac
  [ "$((10#$2))" -ge "$3" ] || stop 2 "$1=$2 must be at least $3"
}

arguments() { # [EXAMPLE] [OPTION ...]: sets EXAMPLE, FOLDER, SCRIPT, OPTIONS, LOGDIR
  local name known='' path previous='' argument near
  for path in "$ROOT"/*/run.sh; do
    grep -q '^SCRIPT=' "$path" || continue # a launcher of its own, which is in the script too
    name=${path%/run.sh}
    known+=", ${name##*/}"
  done
  EXAMPLE=HogWild
  if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    EXAMPLE=${1#./} EXAMPLE=${EXAMPLE%/}
    shift
  fi
  case "$known, " in
    *", $EXAMPLE, "*) ;;
    *)
      near=$("$PYTHON" -B "$ROOT/tools/registry.py" --nearest "$EXAMPLE" 2>/dev/null || true)
      case "$known, " in
        *", ${near:-,}, "*) stop 2 "there is no example \"$EXAMPLE\"; did you mean $near?" ;;
      esac
      stop 2 "there is no example \"$EXAMPLE\", only: ${known#, }"
      ;;
  esac
  FOLDER=$ROOT/$EXAMPLE
  eval "$(grep '^SCRIPT=' "$FOLDER/run.sh")"
  SCRIPT=$FOLDER/$SCRIPT
  OPTIONS=()
  for argument; do
    if [ "$previous" = --logdir ]; then
      LOGDIR=$argument previous=
      continue
    fi
    previous=
    case $argument in
      -h | --help) exec "$PYTHON" "$SCRIPT" --help ;;
      --job_name* | --task_index* | --ps_hosts* | --worker_hosts*)
        stop 2 "$argument: $ENGINE decides it"
        ;;
      --logdir=*) LOGDIR=${argument#--logdir=} ;;
      --logdir) previous=$argument ;;
      *) OPTIONS+=("$argument") ;;
    esac
  done
  [ -z "$previous" ] || stop 2 "--logdir wants a folder behind it"
  : "${LOGDIR:=$FOLDER/logdir/$(date +%Y-%m-%d_%H-%M-%S)-$$}"
  case $LOGDIR in \~/*) LOGDIR=$HOME${LOGDIR#\~} ;; esac # which no shell does behind =
}

default() { # name: what the example's own run.sh has
  # ${NUM_PS:-1}, or a bare number where there is no choice.
  sed -n "s/^$1=[^0-9]*\([0-9]*\)}\{0,1\}\$/\1/p" "$FOLDER/run.sh"
}

# shellcheck disable=SC2120 # Slurm's run.sh passes some
check() { # [OPTION ...]: flags and data, once, before anything starts
  local i list ps='' workers='' config
  for ((i = 0; i < TASKS; i++)); do
    list=", \"localhost:$((BASE_PORT + i))\""
    if [ "$i" -lt "$NUM_PS" ]; then ps+=$list; else workers+=$list; fi
  done
  config="{\"cluster\": {${ps:+\"ps\": [${ps#, }], }\"worker\": [${workers#, }]},"
  config+=' "task": {"type": "worker", "index": 0}}'
  # What it says, of a download for instance, are words: stdout may be for a file.
  # As a launcher's own check it does not build the model, which takes seconds.
  LAUNCHED_BY=$$ TF_CONFIG=$config "$PYTHON" "$SCRIPT" --logdir "$LOGDIR" ${OPTIONS[@]+"${OPTIONS[@]}"} \
    "$@" --check >&2
}

ports() { # sets BASE_PORT: the one that was given, or one with TASKS - 1 free ones above
  local i tool=("$PYTHON" "$ROOT/Engines/ports.py" ${ALONE:+up} "$TASKS")
  if [ -n "${BASE_PORT:-}" ]; then
    "${tool[@]}" "$BASE_PORT" >/dev/null
    return
  fi
  for ((i = 0; i < 50; i++)); do
    BASE_PORT=$((15000 + RANDOM % 16000))
    ! "${tool[@]}" "$BASE_PORT" >/dev/null 2>&1 || return 0
  done
  stop 1 "no $TASKS free ports in a row were found"
}

environment() { # makes .venv of requirements.txt in the engine's folder; sets ENGINE_PYTHON
  local wanted
  ENGINE_PYTHON=$HERE/.venv/bin/python
  [ -z "$ALONE" ] || return 0 # it was made before, where there was a way out
  exec 8>"$HERE/.venv.lock" # two rehearsals at once: the second waits
  ! command -v flock >/dev/null || flock 8 || : # there may be no locks
  wanted=$("$PYTHON" -V && cat "$HERE/requirements.txt")
  if [ "$(cat "$HERE/.venv/stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "run.sh: makes an environment with $ENGINE's packages (once)" >&2
    if ! "$PYTHON" -m venv --clear "$HERE/.venv" >&2 ||
      ! "$ENGINE_PYTHON" -m pip install --quiet --no-input --disable-pip-version-check \
        --no-user --target= --prefix="$HERE/.venv" --root=/ -r "$HERE/requirements.txt" >"$HERE/.venv/setup.log" 2>&1; then
      stop 3 "$ENGINE's packages could not be installed: see Engines/$ENGINE/.venv/setup.log"
    fi
    echo "$wanted" >"$HERE/.venv/stamp"
  fi
  exec 8>&-
}

alone() { # ARGUMENTS: starts this script again in a network with nobody else in it
  # Whoever reaches a port of TensorFlow owns the machine, and most engines' daemons
  # have open ports too.
  local network=(unshare --net ${WANTS[@]+"${WANTS[@]}"})
  [ -n "${WANTS:-}" ] || [ -z "$given${OPEN_PORTS:-}" ] || return 0
  [ "$(id -u)" -eq 0 ] || network=("${network[@]}" --user --map-root-user)
  if "${network[@]}" "$PYTHON" "$ROOT/Engines/ports.py" up 2>/dev/null; then
    export ALONE=$$ LOGDIR PYTHON BASE_PORT=$given
    exec "${network[@]}" bash ${DEBUG:+-x} "$HERE/run.sh" "$@"
  fi
  [ -z "${WANTS:-}" ] || stop 3 \
    "$ENGINE's rehearsal needs Linux, and root or user namespaces (unshare ${network[*]:1}: refused)"
  echo "run.sh: no network of its own here: anyone who reaches this machine reaches the run"
}

launch() { # COMMAND ...: starts it in the background, marked as of this run; see `left`
  ENGINE_RUN=$RUN "$@" &
}

follow() { # pid: waits for it, TIMEOUT seconds at most, and returns its status
  while kill -0 "$1" 2>/dev/null; do
    if [ "$SECONDS" -ge "$TIMEOUT" ]; then
      reason="no end after TIMEOUT=$TIMEOUT s"
      exit 124
    fi
    sleep 0.1
  done
  wait "$1"
}

left() { # prints the processes of this run, whoever their parents are by now
  # A process that has just gone makes grep fail.
  { grep -lsz "^ENGINE_RUN=$RUN\$" /proc/[0-9]*/environ || true; } | cut -d/ -f3
  [ -n "$ALONE" ] || return 0
  # slurmstepd clears its environment: who is in this network is of this run too.
  local pid
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    [ "$pid" = "$$" ] || [ "$pid" = "$BASHPID" ] ||
      ! [ "/proc/$pid/ns/net" -ef /proc/self/ns/net ] || echo "$pid"
  done
}

cleanup() {
  local status=$? signal pids wait
  trap - EXIT
  trap '' INT TERM HUP
  exec 2>/dev/null # bash itself would report every process that is killed
  if declare -F finish >/dev/null; then finish || true; fi
  for signal in TERM KILL; do
    wait=50
    while pids=$(left) && [ -n "$pids" ] && [ $((wait -= 1)) -gt 0 ]; do
      # Again and again: one may start another meanwhile.
      # shellcheck disable=SC2086 # a word is a pid
      kill "-$signal" $pids || true
      sleep 0.1
    done
  done
  # shellcheck disable=SC2046
  kill $(jobs -rp) || true
  [ -z "$SCRATCH" ] || rm -rf "$SCRATCH"
  [ -z "$reason" ] || echo "run.sh: $reason" >&3
  exit "$status"
}

engine() { # [EXAMPLE] [OPTION ...]
  local given
  case ${1:-} in
    --version)
      needs
      version
      exit
      ;;
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$HERE/run.sh"
      exit
      ;;
  esac
  [ "${ALONE:-}" = "$$" ] || ALONE=
  if [ -z "${PYTHON:-}" ]; then
    PYTHON=$ROOT/.venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=python3
  fi
  arguments "$@"
  : "${NUM_PS:=$(default NUM_PS)}" "${NUM_WORKERS:=$(default NUM_WORKERS)}"
  number NUM_PS "$NUM_PS" 0
  number NUM_WORKERS "$NUM_WORKERS" 1
  number TIMEOUT "${TIMEOUT:=3600}" 1
  [ -z "${BASE_PORT:-}" ] || number BASE_PORT "$BASE_PORT" 1
  TASKS=$((NUM_PS + NUM_WORKERS))
  if [ -n "${CHECK:-}" ]; then # flags and data alone, whatever engines are here
    BASE_PORT=${BASE_PORT:-2222} check
    exit
  fi
  needs
  command -v "$PYTHON" >/dev/null || stop 2 "PYTHON=$PYTHON: no such command"
  export PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
  [ ! -e "$HERE/requirements.txt" ] || environment
  given=${BASE_PORT:-}
  ports
  if [ -z "$ALONE" ]; then
    # shellcheck disable=SC2119
    check
    alone "$@"
  fi
  mkdir -p "$LOGDIR" 2>/dev/null || stop 2 "LOGDIR=$LOGDIR cannot be made"
  LOGDIR=$(cd "$LOGDIR" && pwd)
  trap cleanup EXIT
  trap 'exit 129' HUP
  local what="$NUM_PS ps and $NUM_WORKERS workers, logdir $LOGDIR"
  trap 'reason="Ctrl-C ended $what"; exit 130' INT
  trap 'reason="TERM ended $what"; exit 143' TERM
  # Engines put sockets into SCRATCH. A socket's path has at most 103 bytes on macOS, and Ray adds
  # 66 to SCRATCH, which is 14 longer than its folder: a longer TMPDIR leaves no room.
  local temporary=${TMPDIR:-/tmp}
  [ ${#temporary} -le 23 ] || temporary=/tmp
  SCRATCH=$(mktemp -d "$temporary/engine-XXXXXX")
  export NUM_PS NUM_WORKERS LOGDIR BASE_PORT
  echo "run.sh: $ENGINE starts $NUM_PS ps and $NUM_WORKERS workers of $EXAMPLE, logdir $LOGDIR"
  SECONDS=0
  rehearse # not `rehearse ||`, which would switch off `set -e` in all that it calls
  if [ ! -s "$LOGDIR/result.json" ]; then
    reason="$ENGINE ended with status 0, and there is no result.json in $LOGDIR"
    exit 1
  fi
}
