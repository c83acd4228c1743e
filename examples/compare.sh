#!/bin/sh
# Runs methods of entrain-train x optimizers x seeds at equal tokens, and makes one report of them: a page with pictures,
# and the numbers as CSV. Installs and builds missing parts, then runs compare.py with the arguments given here; --help
# describes them. Existing runs of the same flags, text and programs are not made again.
set -eu
top=$(dirname "$0")/..

"$top/tools/setup.sh" deps-demo
"$top/tools/setup.sh" build release entrain-run entrain-train
exec /usr/bin/python3 -B "$top/examples/compare.py" "$@"
