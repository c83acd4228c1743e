#!/bin/sh
# The wheel, as a stranger gets it: tests/wheel.sh [--torch] [WHEEL]. Installs the wheel (without an argument it builds one first:
# tools/setup.sh wheel, minutes) into an empty virtual environment, and runs the demo, the examples and the programs there. Nothing
# is on their path but that environment's programs: no compiler, no tool of the system, not this repository. --torch also installs
# the PyTorch and the JAX that tests/python/requirements-torch.txt names (hundreds of megabytes) and runs the examples that need them.
set -eu

die() {
  echo "wheel.sh: $*" >&2
  exit 1
}

torch=
wheel=
for argument in "$@"; do
  case $argument in
    --torch) torch=1 ;;
    -*) die "no option $argument" ;;
    *) wheel=$(realpath "$argument") ;;
  esac
done
cd "$(dirname "$0")/.."
work=$PWD/build/wheel-test
rm -rf "$work"
mkdir -p "$work"

if [ -z "$wheel" ]; then
  tools/setup.sh wheel "$work/wheels"
  wheel=$(find "$work/wheels" -name 'entrain-*.whl')
fi
[ -f "$wheel" ] || die "no wheel in $work/wheels"
case $wheel in
  *manylinux*) ;;
  *) die "$wheel has no manylinux tag" ;;
esac
echo "wheel.sh: $(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"

python3 -m venv "$work/env"
"$work/env/bin/python" -m pip install -q --disable-pip-version-check "$wheel" ${torch:+-r tests/python/requirements-torch.txt}
cp examples/python/*.py README.md "$work/"
cd "$work"
limit=$(command -v timeout)
PATH=$work/env/bin
export PATH
for tool in cc gcc c++ g++ clang ld as make cmake python3-config; do
  ! command -v $tool || die "$tool is on the path"
done
unset ENTRAIN_LIBRARY PYTHONPATH LD_LIBRARY_PATH 2>/dev/null || true
# As torchrun does; ranks share the cores.
export OMP_NUM_THREADS=1

# example RANKS FILE [ARGUMENT...]
example() {
  ranks=$1
  shift
  echo "wheel.sh: $*"
  "$limit" 300 entrain-run -n "$ranks" -- python "$@" || die "$1 failed"
}

# libentrain.so of the wheel, and no other.
python -c 'import entrain; print("wheel.sh: entrain", entrain.__version__, "from", entrain.__file__)'
entrain-run --help >help || die "entrain-run does not start"
entrain-perf --help >help || die "entrain-perf does not start"
"$limit" 300 python -m entrain.demo || die "the demo failed"
example 2 01_all_reduce.py
example 2 02_numpy_edit.py
if [ -n "$torch" ]; then
  gpt="--data README.md --width 32 --layers 2 --length 32 --batch 4"
  example 2 03_torch_ddp.py
  # $gpt is a list of words.
  # shellcheck disable=SC2086
  example 2 04_torch_edit_gpt.py $gpt --steps 20 --interval 4 --warmup 3
  example 4 05_torch_fsdp2_aedit.py --seconds 6 --sync-time 2.5 --sleep 0.6 --width 32
  # shellcheck disable=SC2086
  example 2 06_torch_acco.py $gpt --steps 30
  example 4 07_resume.py --shards 2 --steps 60 --width 32 --save checkpoint
  example 3 07_resume.py --steps 60 --width 32 --load checkpoint
  example 2 08_jax_edit.py
  example 2 09_jax_acco.py
fi
echo "wheel.sh: passed"
