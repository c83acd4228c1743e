#!/bin/sh
# Tests the Python package with a library: tests/python/run.sh LIBRARY ENTRAIN_RUN [pytest's arguments]. Without arguments for pytest
# it runs all tests but those of with_frameworks, which need an argument that names this folder. Uses a virtual environment under build/, and
# creates it if it is absent. TEST_PRELOAD: libraries that the interpreter must load first, because it is not compiled with a sanitizer.
set -eu
library=$1
run=$2
shift 2
cd "$(dirname "$0")/../.."
here=$PWD
environment=python
for argument in "$@"; do
  case $argument in with_frameworks*) environment=frameworks ;; esac
done
if [ $environment = frameworks ]; then
  tools/setup.sh python frameworks >&2
else
  tools/setup.sh python >&2
  set -- "$@" --ignore=with_frameworks
fi
export ENTRAIN_LIBRARY="$library" TEST_ENTRAIN_RUN="$run" PYTHONPATH="$here/python" PYTHONDONTWRITEBYTECODE=1
# As torchrun does. Otherwise each rank would start one thread for each core, and ranks that share cores would compete for them.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
cd tests/python
if [ -n "${TEST_PRELOAD:-}" ]; then
  # Checks the interpreter's own arrays too, but ignores its leaks at the end.
  export LD_PRELOAD="$TEST_PRELOAD" PYTHONMALLOC=malloc ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
fi
exec "$here/build/$environment/bin/python" -m pytest -q -p no:cacheprovider --color=no "$@"
