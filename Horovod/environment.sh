# shellcheck shell=bash
# Sourced by run.sh: makes the environment that Horovod needs, once, and shows how far it
# is.
#
#   make_environment      leaves an interpreter with requirements.txt in HOROVOD_PYTHON
#
# It works if a stamp in it names the interpreter's version and what requirements.txt
# says; the stamp is written last, so that whatever was interrupted is made afresh.
# Knobs: PYTHON (to build from, if Horovod supports it), HOROVOD_VENV (where).

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
HOROVOD_VENV=${HOROVOD_VENV:-$FOLDER/.venv}
[[ $HOROVOD_VENV == /* ]] || HOROVOD_VENV=$PWD/$HOROVOD_VENV
HOROVOD_PYTHON=$HOROVOD_VENV/bin/python
# Into this environment, wherever the user's settings of pip would put it.
HOROVOD_PIP=("$HOROVOD_PYTHON" -m pip install --no-input --disable-pip-version-check
  --no-user --target= --prefix="$HOROVOD_VENV" --root=/)
unset PIP_DRY_RUN PIP_NO_DEPS PIP_PYTHON PIP_QUIET PYTHONHOME
building='' # the process group of what is under way

lacking() { # sentence
  echo "run.sh: $1" >&2
  exit 3
}

wanted() { # what the stamp of a whole environment says
  "$HOROVOD_PYTHON" -V && cat "$FOLDER/requirements.txt"
}

is_made() {
  [ -x "$HOROVOD_PYTHON" ] && [ "$(cat "$HOROVOD_VENV/stamp" 2>/dev/null)" = "$(wanted)" ]
}

base_python() { # prints an interpreter that TensorFlow 2.18 supports
  local name
  for name in ${PYTHON:+"$PYTHON"} python3.12 python3.11 python3.10 python3; do
    # Running it is the only way to know whether a command on the PATH starts.
    if "$name" -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
}

check_tools() { # stops with status 3 and a sentence if something is not installed
  local missing='' name
  for name in cmake make; do
    command -v "$name" >/dev/null || missing+=", $name"
  done
  command -v "${CXX:-g++}" >/dev/null || command -v clang++ >/dev/null || missing+=", g++"
  [ -n "$(base_python)" ] || missing+=", Python 3.10, 3.11 or 3.12 with venv"
  [ -z "$missing" ] || lacking "Horovod is compiled here, once, and this is missing: ${missing#, }; install it (Debian and Ubuntu: sudo apt install cmake make g++ python3-venv) and start again"
}

stage() { # log: says how far pip is
  local text percent
  percent=$(sed -n 's/^ *\[ *\([0-9]*\)%\] .*/\1/p' "$1" | tail -n 1)
  if [ -n "$percent" ]; then
    text="compiles Horovod, $((percent / 10 * 10)) %"
  elif grep -q '^Installing collected packages' "$1"; then
    text='unpacks the packages, a minute or two'
  else
    # Those of 10 MB and more.
    text=$(sed -n 's/^ *Downloading \(.*\/\)\{0,1\}\([^ /-]*\)-\([^ -]*\)[^ ]* (\([0-9]\{2,\}[0-9.]* MB\)).*/downloads \2 \3, \4/p' "$1" | tail -n 1)
  fi
  [ -z "$text" ] || echo "$text"
}

logged() { # log command ...: runs it in a group of its own, saying how far it is
  local log=$1 said='' now status=0
  shift
  : >"$log"
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  building=$!
  set +m
  while kill -0 "$building" 2>/dev/null; do
    now=$(stage "$log")
    if [ "$now" != "$said" ]; then
      echo "run.sh: $((SECONDS - began)) s  $now"
      said=$now
    fi
    sleep 0.3
  done
  wait "$building" || status=$?
  building=''
  return "$status"
}

stop_building() {
  [ -n "$building" ] || return 0
  kill -INT -- "-$building" 2>/dev/null || true
  for _ in {1..50}; do
    kill -0 "$building" 2>/dev/null || break
    sleep 0.1
  done
  # A background job of a script ignores INT, and so does its pip.
  kill -TERM -- "-$building" 2>/dev/null || true
  wait "$building" 2>/dev/null || true
}

make_environment() {
  local began=$SECONDS python jobs log
  ! is_made || return 0
  check_tools
  python=$(base_python)
  mkdir -p "$HOROVOD_VENV" 2>/dev/null || lacking "$HOROVOD_VENV cannot be made: set HOROVOD_VENV to another place"
  exec 8>"$HOROVOD_VENV.lock" # two runs at once: the second waits
  ! command -v flock >/dev/null || flock 8 || : # there may be no locks
  if is_made; then
    exec 8>&-
    return 0
  fi
  echo "run.sh: Horovod comes as source code, and fits no TensorFlow after 2.18. So it is compiled in an"
  echo "run.sh: environment of its own, once: about 5 min on 2 cores, 700 MB to download, 3 GB in $HOROVOD_VENV"
  log=$HOROVOD_VENV.setup
  jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
  grep -v '^horovod==' "$FOLDER/requirements.txt" >"$HOROVOD_VENV.lock"
  # No cache for Horovod: pip would take for its own what was compiled for another
  # TensorFlow. A policy of 3.5 is for the CMake of Gloo, which CMake 4 refuses.
  if ! logged "$log" "$python" -m venv --clear "$HOROVOD_VENV" ||
    ! logged "$log" "${HOROVOD_PIP[@]}" -r "$HOROVOD_VENV.lock" ||
    ! logged "$log" env HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
      HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 CMAKE_POLICY_VERSION_MINIMUM=3.5 \
      MAKEFLAGS="-j$jobs" "${HOROVOD_PIP[@]}" -v --no-deps --no-cache-dir --no-build-isolation \
      "$(grep '^horovod==' "$FOLDER/requirements.txt")"; then
    lacking "Horovod's environment could not be made: see the end of $log"
  fi
  wanted >"$HOROVOD_VENV/stamp"
  rm -f "$log"
  echo "run.sh: $((SECONDS - began)) s  made"
  exec 8>&-
}
