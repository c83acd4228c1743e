#!/bin/sh
# Runs entrain-train with each method, optimizer and seed at equal tokens. Makes one report: a page with pictures, and
# the numbers as CSV. Installs and builds missing parts, then runs compare.py with the arguments given here. --help
# describes the arguments. A run is not repeated if its flags, text and programs have not changed.
set -eu
top=$(dirname "$0")/..

"$top/tools/setup.sh" deps-compare
"$top/tools/setup.sh" build release entrain-run entrain-train
exec /usr/bin/python3 -B "$top/examples/compare.py" "$@"
