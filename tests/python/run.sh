#!/bin/sh
# Tests the Python package against a library: tests/python/run.sh LIBRARY ENTRAIN_RUN [pytest's arguments], all without any.
# In a virtual environment under build/, which is made when it is absent. TEST_PRELOAD: libraries that the interpreter, which
# is no sanitized program, must load first.
set -eu
library=$1
run=$2
shift 2
cd "$(dirname "$0")/../.."
tools/setup.sh python >&2
here=$PWD
export ENTRAIN_LIBRARY="$library" TEST_ENTRAIN_RUN="$run" PYTHONPATH="$here/python" PYTHONDONTWRITEBYTECODE=1
# As torchrun does: ranks that share cores would else fight for them with as many threads each as there are cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
cd tests/python
if [ -n "${TEST_PRELOAD:-}" ]; then
  # The interpreter's own arrays are checked too; what it leaves behind at its end is its own affair.
  export LD_PRELOAD="$TEST_PRELOAD" PYTHONMALLOC=malloc ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
fi
exec "$here/build/python/bin/python" -m pytest -q -p no:cacheprovider --color=no "$@"
