#!/usr/bin/env bash
# Rehearses a Slurm job on this machine: bash run.sh [EXAMPLE] [OPTION ...]
# Starts munged, slurmctld and a slurmd for each of NODES (3) virtual nodes, submits
# job.sbatch, shows its output, ends them. From the environment: NUM_PS, NUM_WORKERS,
# LOGDIR, TIMEOUT, PYTHON, NODES, MAX_RESTARTS (0: of the whole job), and RATES="0.1 0.3":
# then it submits sweep.sbatch instead, a run for each learning rate.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=Slurm
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
WANTS=(--mount) # for an /etc/hosts with the nodes' names, which nobody else sees
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
OVER='COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL' # for good
SLOTS=8 # tasks that a virtual node takes
number NODES "${NODES:=3}" 1
number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0

needs() {
  local name
  for name in sbatch slurmctld slurmd munged; do
    PATH=$PATH:/usr/sbin have "$name" \
      "install Slurm (Debian and Ubuntu: sudo apt install slurmctld slurmd slurm-client munge)"
  done
  have ip "install iproute2"
  # Mapped to root in a user namespace, slurmd cannot drop its supplementary groups.
  [ -n "${ALONE:-}" ] || [ "$(id -u)" -eq 0 ] ||
    stop 3 "Slurm's rehearsal needs root, which its daemons begin as: sudo bash Engines/Slurm/run.sh"
  PATH=$PATH:/usr/sbin
}

version() {
  slurmctld -V # sbatch would look for a configuration first
}

# cred_expire is also what a requeued job waits before it starts again, by default 120 s.
daemons() { # starts them, and waits until every node is ready
  local k
  mkdir "$SCRATCH/state" "$SCRATCH/munge"
  chmod 755 "$SCRATCH" "$SCRATCH/munge"
  {
    cat /etc/hosts
    for ((k = 1; k <= NODES; k++)); do echo "10.99.1.$k node$k"; done
  } >"$SCRATCH/hosts"
  mount --bind "$SCRATCH/hosts" /etc/hosts
  # With loopback's address alone, getaddrinfo says that this machine has no IPv4.
  for ((k = 1; k <= NODES; k++)); do ip address add "10.99.1.$k/32" dev lo; done
  head -c 1024 /dev/urandom >"$SCRATCH/munge/key"
  chmod 400 "$SCRATCH/munge/key"
  cat >"$SCRATCH/slurm.conf" <<CONF
ClusterName=rehearsal
SlurmctldHost=$(hostname)(10.99.1.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$SCRATCH/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$SCRATCH/state
SlurmdSpoolDir=$SCRATCH/%n
SlurmctldPidFile=$SCRATCH/slurmctld.pid
SlurmdPidFile=$SCRATCH/%n.pid
SlurmctldLogFile=$SCRATCH/slurmctld.log
SlurmdLogFile=$SCRATCH/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
MinJobAge=300
KillWait=5
NodeName=node[1-$NODES] NodeHostname=$(hostname) NodeAddr=10.99.1.[1-$NODES] Port=[17001-$((17000 + NODES))] CPUs=$SLOTS RealMemory=1000000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  export SLURM_CONF=$SCRATCH/slurm.conf
  ENGINE_RUN=$RUN munged --force --key-file="$SCRATCH/munge/key" --socket="$SCRATCH/munge/socket" \
    --pid-file="$SCRATCH/munge/pid" --log-file="$SCRATCH/munge/log" --seed-file="$SCRATCH/munge/seed"
  ENGINE_RUN=$RUN slurmctld
  for ((k = 1; k <= NODES; k++)); do
    mkdir "$SCRATCH/node$k"
    ENGINE_RUN=$RUN slurmd -N "node$k"
  done
  for ((k = 0; k < 200; k++)); do
    [ "$(sinfo --noheader --format=%D --states=idle 2>/dev/null || true)" != "$NODES" ] || return 0
    sleep 0.1
  done
  cat "$SCRATCH"/*.log >"$LOGDIR/slurm-daemons.log"
  stop 3 "Slurm's daemons did not come up: see slurm-daemons.log in $LOGDIR"
}

rehearse() {
  local job waiter tail status signal rate rates file=job.sbatch
  local flags=(--parsable --ntasks="$TASKS" --nodes="1-$NODES")
  # As evenly over the nodes as can be; without this, Slurm fills one node first.
  flags+=(--ntasks-per-node="$(((TASKS + NODES - 1) / NODES))")
  [ "$TASKS" -le $((SLOTS * NODES)) ] ||
    stop 2 "NODES=$NODES virtual nodes take $SLOTS tasks each, which is not enough for $TASKS"
  if [ -n "${RATES:-}" ]; then
    read -r -a rates <<<"$RATES"
    file=sweep.sbatch
    flags+=(--array="0-$((${#rates[@]} - 1))%1")
    for rate in "${rates[@]}"; do
      check --learning_rate "$rate"
    done
  fi
  daemons
  sinfo --Node --long
  unset BASE_PORT # from the job's id, as on a cluster that others use too
  export ADAPTER=$HERE/adapter.py MAX_RESTARTS
  : >"$LOGDIR/slurm.out"
  job=$(ENGINE_RUN=$RUN sbatch "${flags[@]}" --output="$LOGDIR/slurm.out" --chdir="$LOGDIR" \
    "$HERE/$file" "$SCRIPT" ${OPTIONS[@]+"${OPTIONS[@]}"})
  echo "run.sh: job $job is submitted"
  watch_job "$job" &
  waiter=$!
  launch tail --pid="$waiter" --sleep-interval=0.2 --lines=+1 --follow "$LOGDIR/slurm.out"
  tail=$!
  follow "$waiter"
  wait "$tail" || true
  scontrol show job "$job" | grep -E 'JobId|JobState|Restarts|RunTime|NodeList=n'
  # The status of the batch script; of the worst run, if there are several.
  read -r status signal <<<"$(scontrol show job "$job" |
    sed -n 's/.* ExitCode=\([0-9]*\):\([0-9]*\).*/\1 \2/p' | sort -n | tail -n 1)"
  [ "$signal" -eq 0 ] || status=$((128 + signal))
  # A sweep has a result for each rate; the best is the sweep's.
  if [ -n "${RATES:-}" ]; then sweep; fi
  return "$status"
}

watch_job() { # job: returns when all of it is over
  local states
  while states=$(squeue --noheader --jobs "$1" --states=all --format=%T); do
    states=$(grep -Ev "^($OVER)\$" <<<"$states" || true)
    [ -n "$states" ] || return 0
    sleep 0.5
  done
}

sweep() { # prints the accuracies, the best first, and makes the best one's result the run's
  local rate
  for rate in "${rates[@]}"; do
    [ -s "$LOGDIR/$rate/result.json" ] || continue
    printf '%s  learning rate %s\n' "$(sed -n 's/.*"test_accuracy": \([0-9.]*\).*/\1/p' \
      "$LOGDIR/$rate/result.json")" "$rate"
  done | sort -rn | tee "$LOGDIR/sweep.txt"
  read -r _ _ _ rate <"$LOGDIR/sweep.txt" || return 0
  cp "$LOGDIR/$rate/result.json" "$LOGDIR/"
}

engine "$@"
