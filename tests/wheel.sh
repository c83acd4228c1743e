#!/bin/sh
# The wheel, as a stranger gets it: builds it (tools/setup.sh wheel), installs it into an empty virtual environment, without a
# compiler or this repository on its path, and runs the demo, the examples and the programs there. Takes minutes the first time.
set -eu
cd "$(dirname "$0")/.."
work=$PWD/build/wheel-test
rm -rf "$work"
mkdir -p "$work"

die() {
  echo "wheel.sh: $*" >&2
  exit 1
}

tools/setup.sh wheel "$work/wheels"
wheel=$(find "$work/wheels" -name 'entrain-*.whl')
[ -n "$wheel" ] || die "no wheel in $work/wheels"
case $wheel in
  *manylinux*) ;;
  *) die "$wheel has no manylinux tag" ;;
esac
echo "wheel.sh: $(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"

python3 -m venv "$work/env"
"$work/env/bin/python" -m pip install -q --disable-pip-version-check "$wheel"
cp examples/python/*.py "$work/"
cd "$work"
PATH=$work/env/bin:/bin:/usr/bin
export PATH
unset ENTRAIN_LIBRARY PYTHONPATH LD_LIBRARY_PATH 2>/dev/null || true
# libentrain.so of the wheel, and no other.
python -c 'import entrain; print("wheel.sh: entrain", entrain.__version__, "from", entrain.__file__)'
entrain-run --help >help || die "entrain-run does not start"
entrain-perf --help >help || die "entrain-perf does not start"
timeout 300 python -m entrain.demo || die "the demo failed"
for example in 01_*.py 02_*.py; do
  echo "wheel.sh: $example"
  timeout 120 entrain-run -n 2 -- python "$example" || die "$example failed"
done
echo "wheel.sh: passed"
