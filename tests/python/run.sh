#!/bin/sh
# Tests the Python package against a library: tests/python/run.sh LIBRARY ENTRAIN_RUN [pytest's arguments], all without any.
# In a virtual environment under build/, which is made when it is absent.
set -eu
library=$1
run=$2
shift 2
cd "$(dirname "$0")/../.."
tools/setup.sh python >&2
here=$PWD
export ENTRAIN_LIBRARY="$library" TEST_ENTRAIN_RUN="$run" PYTHONPATH="$here/python" PYTHONDONTWRITEBYTECODE=1
cd tests/python
exec "$here/build/python/bin/python" -m pytest -q -p no:cacheprovider --color=no "$@"
