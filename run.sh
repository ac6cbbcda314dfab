#!/usr/bin/env bash
# Runs an example: sets up the environment if needed, then hands over to its run.sh.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DEFAULT=HogWild

usage() {
  cat <<EOF
usage: bash run.sh [EXAMPLE] [OPTION ...]

Runs an example on this machine, $DEFAULT unless another is named, in an environment
that is made on first use (.venv, pinned versions, Python 3.10 to 3.13).

  bash run.sh                      run $DEFAULT
  bash run.sh AGN --window 8       run another; its options follow its name
  bash run.sh AGN --help           say which options it has
  bash run.sh --list               name the examples
  bash run.sh --help               this text

From the environment: PYTHON (the interpreter to build .venv from), VENV (where to
build it), and the knobs of the example's launcher: NUM_PS, NUM_WORKERS, BASE_PORT,
TIMEOUT, MAX_RESTARTS, LOGDIR.
EOF
}

names() {
  local path
  for path in "$ROOT"/*/run.sh; do
    [[ ! -f $path ]] || basename "$(dirname "$path")"
  done
}

# The first line of a script's docstring is "Name: what it does."
list() {
  local name script line
  names | while IFS= read -r name; do
    script=$(echo "$name" | tr 'A-Z-' 'a-z_').py
    line=
    [[ ! -f $ROOT/$name/$script ]] || IFS= read -r line <"$ROOT/$name/$script" || true
    line=${line#\"\"\"*: }
    printf '%-40s  %s\n' "$name" "${line%\"\"\"}"
  done
}

case ${1:-} in
  --help | -h) usage && exit ;;
  --list) list && exit ;;
esac

name=$DEFAULT
if [[ $# -gt 0 && $1 != -* ]]; then
  name=${1#./} name=${name%/} # as completion of the folder's name leaves it
  shift
fi
known=$(names)
case $'\n'$known$'\n' in
  *$'\n'"$name"$'\n'*) ;;
  *)
    echo "run.sh: there is no example \"$name\", only: ${known//$'\n'/, }" >&2
    exit 2
    ;;
esac

# shellcheck source=tools/setup.sh
source "$ROOT/tools/setup.sh"
setup_environment requirements.txt
export PYTHON=$SETUP_PYTHON
# No cd: a path among the options is relative to where the user stands. And exec, so
# that signals and the exit status are the example's own.
exec bash "$ROOT/$name/run.sh" "$@"
