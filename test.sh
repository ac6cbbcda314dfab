#!/usr/bin/env bash
# Sets up the development environment if needed, then lints and runs the tests.
#   bash test.sh                             everything that a change can break
#   bash test.sh --quick                     without tasks, in 2 to 4 minutes
#   THOROUGH=1 bash test.sh                  all combinations, in 3 to 4 hours
#   bash test.sh tests/test_copies.py -x     pytest's own arguments
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
set -euo pipefail
unset PYTHONSAFEPATH # a script finds what lies beside it

cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=tools/setup.sh
source tools/setup.sh
setup_environment requirements-dev.txt

"$SETUP_PYTHON" -c '
import platform
from importlib.metadata import packages_distributions, version
name = packages_distributions()["tensorflow"][0]
print(f"Python {platform.python_version()}, {name} {version(name)}")
'
"$SETUP_PYTHON" -m ruff check .
"$SETUP_PYTHON" -m ruff format --check .
# In small pieces, so that the rules of the schemes are tested in the first minute.
quick=(-n 2 --dist load --maxschedchunk 8 -m quick)
if [ "${1-}" = --quick ]; then
  exec "$SETUP_PYTHON" -m pytest "${quick[@]}" "${@:2}"
elif [ $# -eq 0 ]; then
  "$SETUP_PYTHON" -m pytest "${quick[@]}"
  set -- -m "not quick"
fi
# Four at once on two cores: a test of a cluster mostly waits. A later -n wins.
exec "$SETUP_PYTHON" -m pytest -n 4 --dist worksteal "$@"
