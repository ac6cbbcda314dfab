#!/usr/bin/env bash
# Large-Minibatch on this machine: two workers.
SCRIPT=large_minibatch.py
NUM_PS=${NUM_PS:-0}
NUM_WORKERS=${NUM_WORKERS:-2}
PEERS=yes # no ps is needed
# --- identical in every example below this line ---
# Starts the tasks on free ports of localhost, waits for them, ends them on every way out.
# From the environment: NUM_PS, NUM_WORKERS, BASE_PORT, OPEN_PORTS, PYTHON, LOGDIR,
# TIMEOUT (seconds, status 124), MAX_RESTARTS (of a task that dies). Every argument goes
# to the script.
set -euo pipefail

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
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$here/../.venv/bin/python
  [ -x "$PYTHON" ] || PYTHON=python3
fi
command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such command"
number NUM_PS "$NUM_PS" 0
number NUM_WORKERS "$NUM_WORKERS" 1
number TIMEOUT "${TIMEOUT:=3600}" 1
number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0
[ -z "${BASE_PORT:-}" ] || number BASE_PORT "$BASE_PORT" 1

export PYTHONDONTWRITEBYTECODE=1 # nothing is written outside LOGDIR
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
export LAUNCHER=$$ # a task ends when this process is gone
: "${LOGDIR:=$here/logdir/$(date +%Y-%m-%d_%H-%M-%S)-$$}"
previous=
for argument; do
  case $argument in
    -h | --help) exec "$PYTHON" "$here/$SCRIPT" --help ;;
    --job_name* | --task_index* | --ps_hosts* | --worker_hosts*)
      fail "$argument: run.sh sets it; start the tasks by hand to choose (see README.md)"
      ;;
    --logdir=*) LOGDIR=${argument#--logdir=} ;;
  esac
  [ "$previous" != --logdir ] || LOGDIR=$argument
  previous=$argument
done

# Whoever reaches a port of TensorFlow owns the machine. So the tasks get a network of
# their own, with nothing in it but them, if the system gives one to this user. In there
# this script is started again, under the same number.
alone='' network=(unshare --net)
[ "$(id -u)" -eq 0 ] || network=(unshare --user --map-root-user --net)
[ "${ALONE:-}" != "$$" ] || alone=yes

# A run without ps is a single process: no cluster, no ports; unless the header says that
# the workers are peers, which do without one.
: "${PEERS:=}"
cluster=()
if [ "$NUM_PS" -gt 0 ] && [ -n "$PEERS" ]; then
  fail "NUM_PS=$NUM_PS: there is no ps in this scheme, the workers are peers"
elif [ "$NUM_PS" -gt 0 ] || [ -n "$PEERS" ]; then
  ports=$("$PYTHON" "$here/cluster/ports.py" ${alone:+up} $((NUM_PS + NUM_WORKERS)) ${BASE_PORT:+"$BASE_PORT"})
  ps_hosts='' worker_hosts='' count=0
  for port in $ports; do
    if [ $((count += 1)) -le "$NUM_PS" ]; then
      ps_hosts+=,localhost:$port
    else
      worker_hosts+=,localhost:$port
    fi
  done
  cluster=(${ps_hosts:+--ps_hosts "${ps_hosts#,}"} --worker_hosts "${worker_hosts#,}")
elif [ "$NUM_WORKERS" -gt 1 ]; then
  fail "NUM_PS=0 with NUM_WORKERS=$NUM_WORKERS: workers meet at a ps"
fi

task() { # job index arguments: one task of the run, in this process
  local role=()
  [ ${#cluster[@]} -eq 0 ] || role=(--job_name "$1" --task_index "$2" "${cluster[@]}")
  if declare -F task_env >/dev/null; then task_env "$1" "$2"; fi
  shift 2
  exec "$PYTHON" "$here/$SCRIPT" ${role[@]+"${role[@]}"} --logdir "$LOGDIR" "$@"
}

if [ -z "$alone" ]; then
  probe=
  if [ ${#cluster[@]} -gt 0 ] && [ -z "${BASE_PORT:-}${OPEN_PORTS:-}" ]; then
    "${network[@]}" "$PYTHON" "$here/cluster/ports.py" up 2>/dev/null &
    probe=$!
  fi
  # Flags and data are checked once, in one process, before any server starts.
  (task worker 0 "$@" --check)
  if [ -n "$probe" ] && wait "$probe"; then
    export ALONE=$$ LOGDIR
    exec "${network[@]}" bash "$here/run.sh" "$@"
  elif [ -n "$probe" ]; then
    echo "run.sh: no network of its own here: whoever reaches this machine reaches the run"
  fi
fi

jobs=() indexes=() pids=() restarts=() reason=

end() { # seconds pids: ends these tasks, in so many seconds at the latest
  local pid wait=${1}0
  shift
  for pid; do
    kill "$pid" 2>/dev/null || true
  done
  for pid; do
    while kill -0 "$pid" 2>/dev/null && [ $((wait -= 1)) -gt 0 ]; do
      sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
  done
}

cleanup() {
  local status=$? pid wait ps workers=
  trap - EXIT
  trap '' INT TERM HUP
  # The workers first: the chief saves what the ps hold, for which it gets 4 s. Not from
  # `pids`, where a task that has just been started may not be noted yet.
  ps=" ${pids[*]+${pids[*]:0:NUM_PS}} "
  for pid in $(jobs -rp); do
    case $ps in *" $pid "*) ;; *) workers+=" $pid" ;; esac
  done
  # shellcheck disable=SC2086 # a word is a pid
  end 4 $workers
  # shellcheck disable=SC2046
  end 2 $(jobs -rp)
  # The tasks' last lines are printed first; then come the reason and the prompt.
  wait=20
  while compgen -G "$LOGDIR/.printing-*" >/dev/null && [ $((wait -= 1)) -gt 0 ]; do
    sleep 0.05
  done
  rm -f "$LOGDIR"/.printing-*
  [ -z "$reason" ] || echo "run.sh: $reason" >&3
  exit "$status"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

prefix() { # [job index] marker: standard input, each line labelled
  local line
  trap '' INT TERM HUP
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s %s\n' "$1" "$line"
  done
  rm -f "$2"
}

launch() { # slot arguments: starts the task of this slot
  local slot=$1 job=${jobs[$1]} index=${indexes[$1]}
  local marker=$LOGDIR/.printing-$job-$index
  shift
  : >"$marker"
  # Not `task | prefix`: $! would be the pid of prefix.
  (
    trap - EXIT INT TERM HUP
    task "$job" "$index" "$@"
  ) > >(prefix "[$job $index]" "$marker") 2>&1 &
  pids[slot]=$!
}

mkdir -p "$LOGDIR" 2>/dev/null || fail "LOGDIR=$LOGDIR cannot be made"
LOGDIR=$(cd "$LOGDIR" && pwd)
echo "run.sh: $NUM_PS ps and $NUM_WORKERS workers on localhost, logdir $LOGDIR"
for ((slot = 0; slot < NUM_PS + NUM_WORKERS; slot++)); do
  if [ "$slot" -lt "$NUM_PS" ]; then
    jobs[slot]=ps indexes[slot]=$slot
  else
    jobs[slot]=worker indexes[slot]=$((slot - NUM_PS))
  fi
  restarts[slot]=0
  launch "$slot" "$@"
done

why() { # task status: what is known of a failure, for the screen
  case $2 in
    137) echo 'killed by signal 9, perhaps for want of memory; ' ;;
    134 | 139) tail -n 1 "$LOGDIR/${1/ /-}.log" | cut -c 1-200 && echo '; ' ;;
  esac | tr -d '\n'
}

# The first failure ends the run, unless MAX_RESTARTS allows another start; a task that
# ended with 1 or 2 would fail again. The chief is the last to leave: what still runs 10 s
# after it ended with status 0 is ended too.
SECONDS=0
until=
exec 2>/dev/null # bash itself would report every killed task
while :; do
  left=0
  if declare -F look >/dev/null; then look "$@"; fi
  for ((slot = 0; slot < NUM_PS + NUM_WORKERS; slot++)); do
    pid=${pids[slot]}
    [ -n "$pid" ] || continue
    left=$((left + 1))
    ! kill -0 "$pid" 2>/dev/null || continue
    status=0
    wait "$pid" || status=$?
    pids[slot]=
    left=$((left - 1))
    name="${jobs[slot]} ${indexes[slot]}"
    if [ "$status" -eq 0 ]; then
      [ "$name" != 'worker 0' ] || until=$((SECONDS + 10))
    elif [ "$status" -gt 2 ] && [ "${restarts[slot]}" -lt "$MAX_RESTARTS" ]; then
      restarts[slot]=$((restarts[slot] + 1))
      echo "run.sh: $name ended with status $status; restart ${restarts[slot]} of $MAX_RESTARTS"
      launch "$slot" "$@"
      left=$((left + 1))
    else
      reason="$name ended with status $status; $(why "$name" "$status")see ${name/ /-}.log in $LOGDIR"
      exit "$status"
    fi
  done
  if [ "$left" -eq 0 ] || [ "$SECONDS" -ge "${until:-$TIMEOUT}" ]; then
    break
  fi
  sleep 0.1
done
if [ -z "$until" ]; then
  reason="no end after TIMEOUT=$TIMEOUT s"
  exit 124
fi
if declare -F after >/dev/null; then after "$@"; fi
