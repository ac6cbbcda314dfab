#!/usr/bin/env bash
# Starts an example with TensorFlowOnSpark on this machine: bash run.sh [EXAMPLE] [OPTION ...]
# A standalone cluster of Spark starts with the run, with an executor for each task.
# INPUT_MODE=SPARK feeds a program of this folder through Spark instead, and beside it
# reads directly, to compare the two: see README.md.
# From the environment: NUM_PS, NUM_WORKERS, LOGDIR, TIMEOUT, BASE_PORT, OPEN_PORTS, PYTHON;
# MAX_RESTARTS (of a task that dies, by Spark); SLOTS (executors; as many as tasks); WAIT
# (seconds for the executors to come).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=TensorFlowOnSpark
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
# shellcheck source=Engines/Spark/spark.sh
source "$HERE/../Spark/spark.sh"

needs() {
  needs_java
}

version() {
  sed -n 's/^tensorflowonspark==/tensorflowonspark /p' "$HERE/requirements.txt"
}

tensorflow() { # shows the environment the TensorFlow that the examples have
  local site there
  there=$("$PYTHON" -c 'import importlib.util as i, os
print(os.path.dirname(os.path.dirname(i.find_spec("tensorflow").origin)))' 2>/dev/null) ||
    stop 3 "$PYTHON has no TensorFlow: bash run.sh in the root of the repository makes .venv with it"
  site=$("$ENGINE_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Driver and executors import TensorFlow to ask for its version; a third of that is Keras.
  printf '%s\n' "$there" 'import sys; sys.modules["keras"] = None' >"$site/examples.pth"
}

rehearse() {
  local MASTER files=$HERE/../tasks.py,$HERE/../Spark/driver.py,$HERE/adapter.py,$HERE/worker.py
  number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0
  number SLOTS "${SLOTS:=$TASKS}" 1
  tensorflow
  quiet
  # It asks the system which address leads to 8.8.8.8; in here all are this machine's.
  if [ -n "$ALONE" ] && command -v ip >/dev/null; then
    ip route add default dev lo src 127.0.0.1
  fi
  local CONF=(--py-files "$files" --conf spark.executor.cores=1 --conf "spark.cores.max=$SLOTS"
    --conf spark.dynamicAllocation.enabled=false --conf "spark.task.maxFailures=$((1 + MAX_RESTARTS))")
  cluster 1 "$SLOTS"
  # The driver imports TensorFlow, and does nothing with it.
  export TF_CPP_MIN_LOG_LEVEL=2 PYTHONWARNINGS=ignore
  case ${INPUT_MODE:-TENSORFLOW} in
    SPARK)
      submit "$HERE/feed.py" --num_ps "$NUM_PS" --num_workers "$NUM_WORKERS" --wait "${WAIT:=120}" \
        --logdir "$LOGDIR" "$FOLDER" ${OPTIONS[@]+"${OPTIONS[@]}"}
      return
      ;;
    TENSORFLOW) ;;
    *) stop 2 "INPUT_MODE=$INPUT_MODE is neither TENSORFLOW nor SPARK" ;;
  esac
  submit "$HERE/job.py" --num_ps "$NUM_PS" --num_workers "$NUM_WORKERS" --wait "${WAIT:=120}" \
    --python "$PYTHON" "$SCRIPT" --logdir "$LOGDIR" ${OPTIONS[@]+"${OPTIONS[@]}"}
}

engine "$@"
