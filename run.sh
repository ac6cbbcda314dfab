#!/usr/bin/env bash
# Runs an example: sets up the environment if needed, then hands over to its run.sh.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
set -euo pipefail
unset PYTHONSAFEPATH # a script finds what lies beside it

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DEFAULT=HogWild
# shellcheck source=tools/setup.sh
source "$ROOT/tools/setup.sh"

usage() {
  cat <<EOF
usage: bash run.sh [EXAMPLE | Engines/ENGINE [EXAMPLE]] [OPTION ...]

Runs an example on this machine, $DEFAULT unless another is named, in an environment
that is made on first use (.venv, pinned versions, Python 3.10 to 3.13).

  bash run.sh                      run $DEFAULT
  bash run.sh AGN --window 8       run another; its options follow its name
  bash run.sh AGN --help           say which options it has
  bash run.sh AGN --watch          run it, and show on a page who waits for whom
  bash run.sh --lab [N]            twelve exercises: predict what a run does, and see
  bash run.sh Engines/MPI AGN      start it with another engine than bash
  bash run.sh --list               name the examples and the engines
  bash run.sh --help               this text

From the environment: PYTHON (the interpreter to build .venv from), VENV (where to
build it), and the knobs of the example's launcher: NUM_PS, NUM_WORKERS, BASE_PORT,
TIMEOUT, MAX_RESTARTS, LOGDIR.
EOF
}

names() {
  local path
  for path in "$ROOT"/*/run.sh "$ROOT"/Engines/*/run.sh; do
    path=${path#"$ROOT/"}
    [[ ! -f $ROOT/$path || $path == originals/run.sh ]] || echo "${path%/run.sh}"
  done
}

# Runs a program of tools/ that any Python 3 reads; there need be no environment yet.
plain() {
  local python
  for python in ${PYTHON:+"$PYTHON"} "$ROOT/.venv/bin/python" python3 python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3,))' >/dev/null 2>&1; then
      PYTHONDONTWRITEBYTECODE=1 "$python" "$ROOT/tools/$1" "${@:2}"
      return
    fi
  done
  echo "run.sh: no Python 3 that starts, and ${2:-$1} needs one: name it with PYTHON" >&2
  return 1
}

case ${1:-} in
  --help | -h)
    usage
    exit
    ;;
  --list)
    plain registry.py --list
    exit
    ;;
  --lab)
    if [[ $# -eq 1 ]]; then
      plain lab.py
      exit
    fi
    setup_environment requirements.txt
    exec "$SETUP_PYTHON" -B "$ROOT/tools/lab.py" "${@:2}"
    ;;
esac

watch=
for word in "$@"; do
  shift
  if [[ $word == --watch ]]; then watch=yes; else set -- "$@" "$word"; fi
done

name=$DEFAULT
if [[ $# -gt 0 && $1 != -* ]]; then
  name=${1#./} name=${name%/} # as completion of the folder's name leaves it
  shift
fi
known=$(names)
case $'\n'$known$'\n' in
  *$'\n'"$name"$'\n'*) ;;
  *)
    if [[ -n $name && -f $ROOT/$name/README.md ]]; then
      echo "run.sh: $name has nothing to start; see $name/README.md" >&2
      exit 2
    fi
    near=$(plain registry.py --nearest "$name" 2>/dev/null || true)
    if [[ -n $near ]]; then
      echo "run.sh: there is no example \"$name\"; did you mean $near?" >&2
    else
      echo "run.sh: there is no example \"$name\", only: ${known//$'\n'/, }" >&2
    fi
    exit 2
    ;;
esac

case $name in
  # What an engine prints may be for a file: no words of the set-up belong there.
  Engines/*) setup_environment requirements.txt >&2 ;;
  *) setup_environment requirements.txt ;;
esac
export PYTHON=$SETUP_PYTHON
[[ -z $watch ]] || exec "$PYTHON" -B "$ROOT/tools/watch.py" --run "$name" "$@"
# No cd: a path among the options is relative to where the user stands. And exec, so
# that signals and the exit status are the example's own.
exec bash "$ROOT/$name/run.sh" "$@"
