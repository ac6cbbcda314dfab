#!/usr/bin/env bash
# Starts an example with Ray on this machine: bash run.sh [EXAMPLE] [OPTION ...]
# From the environment: NUM_PS, NUM_WORKERS, LOGDIR, TIMEOUT, BASE_PORT, OPEN_PORTS, PYTHON;
# MAX_RESTARTS (of a task that dies); RAYLETS (1, the default: Ray starts with the run; else
# a cluster of so many nodes, which `ray start` starts, with at most one task more on one
# than on another); SLOTS (CPUs that Ray believes to have; as many as there are tasks).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=Ray
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"

needs() {
  :
}

version() {
  sed -n 's/^ray.*==/ray /p' "$HERE/requirements.txt"
}

raylets() { # starts RAYLETS nodes, each with an address of its own; sets RAY_ADDRESS
  local node port cpus=$(((SLOTS + RAYLETS - 1) / RAYLETS))
  port=$("$PYTHON" "$ROOT/Engines/ports.py" 1)
  RAY_ADDRESS=127.0.0.1:$port
  export RAY_ADDRESS
  for ((node = 1; node <= RAYLETS; node++)); do
    local where=(--address "$RAY_ADDRESS")
    [ "$node" -eq 1 ] || where+=(--include-log-monitor false) # they share a folder for logs
    [ "$node" -gt 1 ] || where=(--head --port "$port" --include-dashboard false --temp-dir "$SCRATCH")
    launch "$HERE/.venv/bin/ray" start "${where[@]}" --node-ip-address "127.0.0.$node" \
      --min-worker-port 0 --max-worker-port 0 --num-cpus "$cpus" \
      --object-store-memory 100000000 --block >>"$LOGDIR/ray.log" 2>&1
    # One after the other: two that start at once choose the same name for a socket.
    until [ "$(grep -c 'Ray runtime started' "$LOGDIR/ray.log")" -eq "$node" ]; do
      kill -0 $! 2>/dev/null || stop 1 "ray start has failed: see ray.log in $LOGDIR"
      sleep 0.2
    done
  done
}

rehearse() {
  number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0
  number RAYLETS "${RAYLETS:=1}" 1
  number SLOTS "${SLOTS:=$TASKS}" 1
  # Every line once, nothing reported to anybody, and tasks that are not nice, as 15 would be.
  export RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN # or Ray writes one into the home directory
  RAY_AUTH_TOKEN=$("$PYTHON" -c 'import secrets; print(secrets.token_hex(32))')
  local where=(--local "$SLOTS" --temp "$SCRATCH")
  unset RAY_ADDRESS
  if [ "$RAYLETS" -gt 1 ]; then
    raylets
    where=(--strategy SPREAD --wait 120)
  fi
  # Ray's own label of a line goes, "(worker 0 pid=123) ", the task's stays.
  PYTHONPATH=$HERE/.. launch "$ENGINE_PYTHON" "$HERE/job.py" --num_ps "$NUM_PS" --num_workers "$NUM_WORKERS" \
    --max_restarts "$MAX_RESTARTS" --python "$PYTHON" "${where[@]}" \
    "$SCRIPT" --logdir "$LOGDIR" ${OPTIONS[@]+"${OPTIONS[@]}"} \
    > >(sed -u $'s/^\033\\[[0-9]*m([^)]*)\033\\[0m //') 2> >(sed -u '/ network_util.cc:/d' >&3) # no way out, it says
  follow $!
}

engine "$@"
