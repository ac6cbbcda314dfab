# shellcheck shell=bash
# Sourced by run.sh and test.sh: makes the environment they run in, once.
#
#   setup_environment requirements.txt
#
# leaves the path of an interpreter with those packages in SETUP_PYTHON. It works
# when a stamp in the environment names the interpreter's version and the checksum
# of the requirements; otherwise it is built, or brought up to date, and stamped.
# Knobs: PYTHON (the interpreter to build from), VENV (where; default .venv).

SETUP_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$SETUP_ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
# Lies beside the environment, because building from scratch empties that folder.
SETUP_MARK=$VENV.setup
SETUP_CHILD=
SETUP_BEGAN=$SECONDS
# Of another program: no other interpreter starts with it.
unset PYTHONHOME

fail() {
  echo "setup: $*" >&2
  exit 1
}

# Prints "3.11.7 /path/of/base/python" for an interpreter TensorFlow supports, "venv"
# for one that lacks the modules to make an environment, and nothing for any other.
# Running it is the only way to know: version managers leave commands on the PATH
# that exist and do not start.
probe() {
  "$1" -I -c '
import platform, sys
if sys.version_info[:2] in [(3, 10), (3, 11), (3, 12), (3, 13)]:
    try:
        import ensurepip, venv
        base = getattr(sys, "_base_executable", None) or sys.executable
        print(platform.python_version(), base)
    except ImportError:
        print("venv")
' 2>/dev/null </dev/null || true
}

# Sets BASE_VERSION and BASE_PYTHON: $PYTHON if given, else the newest that will do.
# Where none does, BASE_PYTHON is empty and NO_PYTHON says what is missing.
choose_python() {
  local name found lacks_venv=
  BASE_PYTHON=
  for name in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3.10 \
    python3 python; do
    found=$(probe "$name")
    if [[ $found == venv ]]; then
      lacks_venv=${lacks_venv:-$name}
    elif [[ -n $found ]]; then
      BASE_VERSION=${found%% *}
      BASE_PYTHON=${found#* }
      return
    fi
    [[ -z ${PYTHON:-} ]] || break
  done
  if [[ -n $lacks_venv ]]; then
    NO_PYTHON="$lacks_venv cannot make an environment: install its venv module"
    NO_PYTHON+=" (Debian and Ubuntu: sudo apt install python3-venv) and try again."
  elif [[ -n ${PYTHON:-} ]]; then
    NO_PYTHON="PYTHON=$PYTHON is not a Python 3.10, 3.11, 3.12 or 3.13 that starts;"
    NO_PYTHON+=" TensorFlow 2.21 supports no other."
  else
    NO_PYTHON="no Python 3.10, 3.11, 3.12 or 3.13 found, and TensorFlow 2.21 supports no"
    NO_PYTHON+=" other: install uv, which brings one, by"
    NO_PYTHON+=" \`curl -LsSf https://astral.sh/uv/install.sh | sh\` and try again."
  fi
  [[ -z ${PYTHON:-} ]] || fail "$NO_PYTHON"
}

# Makes the environment with uv, which brings an interpreter. uv itself comes by pip, into
# an environment that is thrown away, if it is not here: a Python that is too new for
# TensorFlow will do for that.
make_with_uv() {
  local log=$1 uv name
  uv=$(command -v uv || command -v "${HOME:-}/.local/bin/uv" || true)
  if [[ -z $uv ]]; then
    for name in python3 python; do
      if run_logged "$log" "$name" -I -m venv --clear "$VENV.uv" &&
        run_logged "$log" pip_install "$VENV.uv" --retries 1 uv==0.13.9; then
        uv=$VENV.uv/bin/uv
        break
      fi
    done
    if [[ -z $uv ]]; then
      rm -rf "$VENV.uv" "$SETUP_MARK"
      fail "$NO_PYTHON"
    fi
    # Of a uv that nobody asked for, nothing is left outside of this folder.
    export UV_PYTHON_INSTALL_DIR=${UV_PYTHON_INSTALL_DIR:-$VENV.python}
  fi
  # The variable stands for --clear, which not every uv has. pip comes from the interpreter,
  # because uv does not read where pip's settings have it from.
  UV_VENV_CLEAR=1 run_logged "$log" "$uv" venv --no-cache --python 3.13 \
    --python-preference only-managed "$VENV" &&
    run_logged "$log" "$SETUP_PYTHON" -I -m ensurepip || return
  BASE_VERSION=$(venv_version)
  rm -rf "$VENV.uv"
}

# Prints the package of TensorFlow for this machine: tensorflow-cpu is the same module
# without the code for NVIDIA's GPUs. An environment of version $1 keeps the one that it
# has, because each would delete files of the other.
tensorflow_package() {
  local path name=tensorflow
  if [[ $(uname -sm) == "Linux x86_64" && ! -e /proc/driver/nvidia ]] &&
    ! command -v nvidia-smi >/dev/null; then
    name="tensorflow-cpu"
  fi
  for path in "$VENV"/lib/python3*/site-packages/tensorflow{,_cpu}-[0-9]*.dist-info; do
    [[ -z $1 || ! -e $path ]] || { name=${path##*/} && name=${name%%-*}; }
  done
  echo "${name/_/-}"
}

# The pip of environment $1 installs there, wherever the user's settings of pip would put
# it; those that say where packages come from, and by which proxy, hold.
pip_install() {
  unset PIP_DRY_RUN PIP_NO_DEPS PIP_PYTHON PIP_QUIET
  exec "$1/bin/python" -I -m pip install --no-input --disable-pip-version-check \
    --no-user --target= --prefix="$1" --root=/ "${@:2}"
}

# The stamp that says requirements file $1 is installed for interpreter version $2.
# The development requirements include the others, so their stamp covers both files.
stamp() {
  local files=(requirements.txt)
  [[ $1 == requirements.txt ]] || files+=("$1")
  (cd "$SETUP_ROOT" && echo "$2" && cksum "${files[@]}")
}

stamped() {
  [[ $(cat "$VENV/$1.stamp" 2>/dev/null) == "$(stamp "$1" "$2")" ]]
}

venv_version() {
  "$VENV/bin/python" -I -c 'import platform; print(platform.python_version())' \
    2>/dev/null </dev/null || true
}

# Says which large packages pip has begun with, read from its output in the file $1, as
# long as it runs.
follow() {
  local log=$1 seen=0 line shown
  while kill -0 "$SETUP_CHILD" 2>/dev/null; do
    while IFS= read -r line; do
      seen=$((seen + 1))
      case $line in
        *Downloading\ *" MB)" | *"Using cached "*" MB)")
          shown=${line##*ing } shown=${shown##*cached }
          echo "setup: $((SECONDS - SETUP_BEGAN)) s  ${shown##*/}"
          ;;
        "Installing collected packages: "*)
          shown=${line//[^,]/}
          echo "setup: $((SECONDS - SETUP_BEGAN)) s  unpacking $((${#shown} + 1)) packages, about a minute"
          ;;
      esac
    done < <(tail -n "+$((seen + 1))" "$log" 2>/dev/null)
    sleep 0.2
  done
}

# Runs a command with its output in the file $1. It is a job with a process group of
# its own, so that the trap is served at once whoever sends the signal, and passes
# an interrupt on: pip then removes what it has half unpacked.
run_logged() {
  local log=$1 status=0
  shift
  set -m
  "$@" >>"$log" 2>&1 </dev/null &
  SETUP_CHILD=$!
  set +m
  follow "$log"
  wait "$SETUP_CHILD" || status=$?
  SETUP_CHILD=
  return "$status"
}

interrupted() {
  trap '' INT TERM HUP PIPE
  if [[ -n $SETUP_CHILD ]]; then
    kill -INT -- "-$SETUP_CHILD" 2>/dev/null || true
    for _ in {1..50}; do
      kill -0 "$SETUP_CHILD" 2>/dev/null || break
      sleep 0.1
    done
    # A background job of a script ignores INT, and so does its pip.
    kill -TERM -- "-$SETUP_CHILD" 2>/dev/null || true
    wait "$SETUP_CHILD" 2>/dev/null || true
  fi
  rm -rf "$VENV.uv"
  echo "setup: interrupted; the next run starts it again." >&2 || true # nobody reads it
  exit "$1"
}

explain_pip_failure() {
  local log=$1
  grep -E '^ *(ERROR|error)' "$log" | head -n 5 >&2 || true
  if grep -qE 'Retrying \(|NewConnectionError|name resolution' "$log"; then
    fail "the packages could not be downloaded: check the network connection" \
      "or pip's proxy and index settings, then run the same command again."
  elif grep -q 'No space left on device' "$log"; then
    fail "the disk is full: the environment $VENV needs up to 3 GB."
  elif grep -q 'No matching distribution found for tensorflow' "$log"; then
    fail "there is no TensorFlow 2.21 for this machine ($(uname -sm), Python" \
      "$BASE_VERSION): use 64-bit Linux, an Apple-silicon Mac, or WSL on Windows."
  fi
  fail "pip failed; its whole output is in $log."
}

# Makes sure that the requirements file named $1 is installed; sets SETUP_PYTHON.
setup_environment() {
  local requirements=$1 have pid tensorflow size
  SETUP_PYTHON=$VENV/bin/python
  have=$(venv_version)
  BASE_VERSION=
  if [[ -n ${PYTHON:-} ]]; then
    choose_python
    [[ $have == "$BASE_VERSION" ]] || have=
  fi
  if [[ -n $have && ! -e $SETUP_MARK ]] && stamped "$requirements" "$have"; then
    return
  fi

  if [[ -e $SETUP_MARK ]]; then
    pid=$(cat "$SETUP_MARK" 2>/dev/null || true)
    # In a container process 1 may not ask how an orphan has ended: a zombie is gone.
    if [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null &&
      [[ $(ps -o stat= -p "$pid" 2>/dev/null || true) != Z* ]]; then
      fail "process $pid is setting up $VENV already: wait for it, or end it and" \
        "remove $SETUP_MARK."
    fi
    have= # it was interrupted, so what lies there may be half of a package
  fi
  case $have in
    3.10.* | 3.11.* | 3.12.* | 3.13.*) BASE_VERSION=$have ;;
    *)
      have=
      choose_python
      ;;
  esac

  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
  trap 'interrupted 129' HUP
  trap 'interrupted 141' PIPE # the `tee` behind it was told to end
  local log=$VENV/setup.log
  if [[ -z $have && -e $VENV && ! -e $VENV/pyvenv.cfg && ! -e $SETUP_MARK ]]; then
    fail "$VENV is in the way: it is not a Python environment; move it or set VENV."
  fi
  { mkdir -p "$(dirname "$VENV")" && echo "$$" >"$SETUP_MARK"; } 2>/dev/null ||
    fail "cannot write $SETUP_MARK: set VENV to a place that can be written."
  tensorflow=$(tensorflow_package "$have")
  if [[ -z $have ]]; then
    size="700 MB to download, 2.4 GB of disk"
    [[ $tensorflow == tensorflow ]] || size="400 MB to download, 1.8 GB of disk"
    echo "setup: making $VENV with Python ${BASE_VERSION:-3.13, which uv brings,} and the" \
      "packages of $requirements (once; about $size)"
    local venv_log status=0
    venv_log=$(mktemp) # not in the folder: venv --clear would delete it
    if [[ -n $BASE_PYTHON ]]; then
      run_logged "$venv_log" "$BASE_PYTHON" -I -m venv --clear "$VENV" || status=$?
    else
      make_with_uv "$venv_log" || status=$?
    fi
    [[ $status -eq 0 ]] || cat "$venv_log" >&2
    rm -f "$venv_log"
    [[ $status -eq 0 ]] ||
      fail "${BASE_PYTHON:-uv} could not make the environment $VENV."
  else
    echo "setup: bringing $VENV (Python $have) up to $requirements"
  fi
  : >"$log"
  (cd "$SETUP_ROOT" && cat requirements.txt "$requirements") |
    sed -e '/^-r /d' -e "s/^tensorflow==/$tensorflow==/" | sort -u >"$VENV/requirements.txt"
  if ! run_logged "$log" pip_install "$VENV" -r "$VENV/requirements.txt"; then
    # A failure before this line has changed nothing, so nothing needs redoing.
    grep -q '^Installing collected packages' "$log" || rm -f "$SETUP_MARK"
    explain_pip_failure "$log"
  fi
  stamp "$requirements" "$BASE_VERSION" >"$VENV/$requirements.stamp"
  stamp requirements.txt "$BASE_VERSION" >"$VENV/requirements.txt.stamp"
  rm -f "$SETUP_MARK"
  trap - INT TERM HUP PIPE
}
