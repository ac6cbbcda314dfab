# shellcheck shell=bash
# Sourced by the run.sh of Spark and TensorFlowOnSpark, behind common.sh: Java, a cluster
# of Spark's own on this machine, and spark-submit.

needs_java() { # Spark 4 runs on Java 17 and newer
  local how="install Java 17 or newer (Debian and Ubuntu: sudo apt install default-jre-headless)"
  local java=java major
  [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
  have "$java" "$how"
  major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
  [ "${major:-0}" -ge 17 ] || stop 3 "$ENGINE: $java is of version ${major:-unknown}; $how"
}

quiet() { # Spark's own messages, addresses and temporary files
  export SPARK_HOME SPARK_LOG=$LOGDIR/spark.log SPARK_LOCAL_DIRS=$SCRATCH
  export SPARK_CONF_DIR=$ROOT/Engines/Spark/conf PYSPARK_PYTHON=$ENGINE_PYTHON
  export SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_HOSTNAME=localhost TMPDIR=$SCRATCH
  # Nothing in /tmp, and a quick start: these programs of Java compute nothing.
  JVM="-Djava.io.tmpdir=$SCRATCH -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
  export SPARK_LAUNCHER_OPTS=$JVM SPARK_SUBMIT_OPTS=$JVM SPARK_DAEMON_JAVA_OPTS=$JVM
  SPARK_HOME=$("$ENGINE_PYTHON" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
}

cluster() { # WORKERS CORES: a master and so many workers of so many slots; sets MASTER
  local port worker
  port=$("$PYTHON" "$ROOT/Engines/ports.py" 1)
  MASTER=spark://localhost:$port
  export SPARK_WORKER_DIR=$LOGDIR/spark
  launch "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
    --host localhost --port "$port" --webui-port 0 2>>"$SPARK_LOG"
  for ((worker = 0; worker < $1; worker++)); do
    launch "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker "$MASTER" \
      --host localhost --webui-port 0 --cores "$2" --memory "$((2 * $2))g" 2>>"$SPARK_LOG"
  done
  launch bash -c "$(declare -f show) && show" 2>/dev/null # what the executors print, in their files
}

show() {
  local file shown=' '
  while sleep 0.5; do
    for file in "$SPARK_WORKER_DIR"/app-*/*/stderr; do
      case "$shown" in
        *" $file "*) continue ;;
      esac
      [ ! -e "$file" ] || {
        shown+="$file "
        tail -n +1 -f "$file" | grep --line-buffered '^\[' &
      }
    done
  done
}

sentences() { # the own sentences of $1 go to stderr, all other lines to stdout
  local line
  while IFS= read -r line; do
    case $line in
      "WARNING: Using incubator modules"*) ;; # of Java
      "WARNING: All log messages before"* | I0000* | "To enable the following"*) ;; # TensorFlow
      "$1: "*) echo "$line" >&3 ;;
      *) echo "$line" ;;
    esac
  done
}

submit() { # PROGRAM.py ARGUMENTS: spark-submit, to its end
  launch "$SPARK_HOME/bin/spark-submit" --master "$MASTER" \
    --conf spark.ui.enabled=false --conf spark.executor.memory=512m \
    --conf "spark.executor.extraJavaOptions=$JVM" ${CONF[@]+"${CONF[@]}"} "$@" \
    > >(sentences "${1##*/}") 2>&1
  follow $!
}
