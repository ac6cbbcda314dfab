#!/usr/bin/env bash
# Runs an example on several hosts that are in this one: bash run.sh [EXAMPLE] [OPTION ...]
# Each task has a host of its own: a network namespace with its address and name, and a
# cable to a switch. From the environment: NUM_PS, NUM_WORKERS, LOGDIR, TIMEOUT, PYTHON,
# MAX_RESTARTS (of a task that dies), DELAY (milliseconds from host to host, one way) and
# RATE (Mbit/s of each host's cable, each way). Linux, and root or user namespaces.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=Several-Hosts
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
WANTS=(--mount) # for an /etc/hosts with the hosts' names, which nobody else sees
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
number DELAY "${DELAY:=0}" 0
number RATE "${RATE:=0}" 0
number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0

needs() {
  have ip "install iproute2 (Debian and Ubuntu: sudo apt install iproute2); Linux only"
  have unshare "install util-linux; Linux only"
  if [ "$DELAY$RATE" != 00 ] && [ ! -e /dev/net/tun ]; then
    stop 3 "$ENGINE needs /dev/net/tun for a slow cable: load the kernel module tun to install it"
  fi
}

version() {
  ip -V | sed 's/.*iproute2-\([0-9.]*\).*/iproute2 \1/'
}

start() { # index: makes the host and starts its task
  local name=${names[$1]} address=10.77.0.$(($1 + 1)) pid
  rm -f "$SCRATCH/$name.ready"
  launch unshare --net --uts bash "$HERE/host.sh" "$name" "$address" \
    "$PYTHON" "$HERE/adapter.py" "$SCRIPT" --logdir "$LOGDIR" ${OPTIONS[@]+"${OPTIONS[@]}"} \
    > >(sed -u "s/^/[$name] /") 2>&1
  pid=$! pids[$1]=$!
  until [ -e "$SCRATCH/$name.ready" ]; do
    kill -0 "$pid" 2>/dev/null || stop 3 "$ENGINE: the host $name could not be made"
    sleep 0.02
  done
  ip link delete "to-$name" 2>/dev/null || true # of the task before this one
  if [ "$DELAY$RATE" = 00 ]; then
    ip link add "to-$name" type veth peer name eth0 netns "$pid"
  else
    # Half of the delay: a packet goes through two cables.
    launch "$PYTHON" "$HERE/cable.py" "$pid" "to-$name" "$((DELAY * 500))e-6" "${RATE}e6"
    until ip link show "to-$name" >/dev/null 2>&1; do sleep 0.02; done
  fi
  ip link set "to-$name" master switch up
  echo "run.sh: $name is $address, process $pid"
}

rehearse() {
  local k status left until=
  names=() pids=() restarts=()
  for ((k = 0; k < TASKS; k++)); do
    if [ "$k" -lt "$NUM_PS" ]; then names[k]=ps$k; else names[k]=worker$((k - NUM_PS)); fi
    restarts[k]=0
  done
  {
    cat /etc/hosts
    for ((k = 0; k < TASKS; k++)); do echo "10.77.0.$((k + 1)) ${names[k]}"; done
  } >"$SCRATCH/hosts"
  mount --bind "$SCRATCH/hosts" /etc/hosts
  ip link add switch type bridge
  ip link set switch up
  export HOSTS="${names[*]}" SCRATCH
  for ((k = 0; k < TASKS; k++)); do start "$k"; done
  # The first failure ends the run; the chief is the last to leave.
  exec 2>/dev/null # bash itself would report every task that is killed
  while :; do
    left=0
    for ((k = 0; k < TASKS; k++)); do
      [ -n "${pids[k]}" ] || continue
      left=$((left + 1))
      ! kill -0 "${pids[k]}" 2>/dev/null || continue
      status=0
      wait "${pids[k]}" || status=$?
      pids[k]=
      if [ "$status" -gt 2 ] && [ "${restarts[k]}" -lt "$MAX_RESTARTS" ]; then
        restarts[k]=$((restarts[k] + 1))
        echo "run.sh: ${names[k]} ended with status $status; restart ${restarts[k]} of $MAX_RESTARTS"
        start "$k"
      elif [ "$status" -ne 0 ]; then
        reason="${names[k]} ended with status $status"
        return "$status"
      elif [ "$k" -eq "$NUM_PS" ]; then
        until=$((SECONDS + 10))
      fi
    done
    [ "$left" -gt 0 ] && [ "$SECONDS" -lt "${until:-$TIMEOUT}" ] || break
    sleep 0.1
  done
  if [ -z "$until" ]; then
    reason="no end after TIMEOUT=$TIMEOUT s"
    return 124
  fi
}

engine "$@"
