#!/usr/bin/env bash
# Starts an example with Spark on this machine: bash run.sh [EXAMPLE] [OPTION ...]
# ps and workers are the tasks of a barrier stage. With GRID the example is
# run many times instead, one whole run per task; with RANDOM_RUNS too, that many draws:
#   GRID='learning_rate=0.05,0.1 batch_size=16,32' bash run.sh HogWild --steps 200
# From the environment: NUM_PS, NUM_WORKERS, LOGDIR, TIMEOUT, BASE_PORT, OPEN_PORTS, PYTHON;
# MAX_RESTARTS (of the stage, when a task dies); SPARK_WORKERS (0, the default: all in one
# process, local[N]; else a standalone cluster of a master and so many workers); SLOTS
# (how many tasks Spark may run at once; as many as there are, 2 with GRID).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=Spark
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
# shellcheck source=Engines/Spark/spark.sh
source "$HERE/spark.sh"

needs() {
  needs_java
}

version() {
  sed -n 's/^pyspark==/pyspark /p' "$HERE/requirements.txt"
}

rehearse() {
  local MASTER files=$HERE/../tasks.py,$HERE/adapter.py,$HERE/driver.py,$HERE/experiments.py
  local CONF=(--py-files "$files")
  number SPARK_WORKERS "${SPARK_WORKERS:=0}" 0
  number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0
  [ -z "${GRID:-}" ] || : "${SLOTS:=2}"
  number SLOTS "${SLOTS:=$TASKS}" 1
  quiet
  MASTER="local[$SLOTS,$((1 + MAX_RESTARTS))]"
  if [ "$SPARK_WORKERS" -gt 0 ]; then
    cluster "$SPARK_WORKERS" $(((SLOTS + SPARK_WORKERS - 1) / SPARK_WORKERS))
  fi
  if [ -n "${GRID:-}" ]; then
    submit "$HERE/sweep.py" --grid "$GRID" --random "${RANDOM_RUNS:-0}" \
      --python "$PYTHON" --logdir "$LOGDIR" "$FOLDER" ${OPTIONS[@]+"${OPTIONS[@]}"}
  else
    submit "$HERE/barrier.py" --num_ps "$NUM_PS" --num_workers "$NUM_WORKERS" --wait 120 \
      --max_restarts "$MAX_RESTARTS" --python "$PYTHON" \
      "$SCRIPT" --logdir "$LOGDIR" ${OPTIONS[@]+"${OPTIONS[@]}"}
  fi
}

engine "$@"
