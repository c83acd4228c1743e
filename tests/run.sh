#!/bin/sh
# Builds a preset and runs all of its tests: tests/run.sh [PRESET] [--torch | --frameworks], dev without an argument. Installs missing
# Debian packages first, and --torch also CPU builds of PyTorch and JAX in build/python, for the tests that need them (skipped where
# they cannot be imported). --frameworks runs other tests instead: those with transformers, accelerate, Lightning and torchtitan, in an
# environment of their own. Ends with CTest's closing line (with --frameworks: pytest's); exits 0 when every test passed.
set -eu
cd "$(dirname "$0")/.."
preset=dev
environment=
for argument in "$@"; do
  case $argument in
    --torch) environment=torch ;;
    --frameworks) environment=frameworks ;;
    -*) echo "run.sh: no option $argument" >&2 && exit 2 ;;
    *) preset=$argument ;;
  esac
done

tools/setup.sh deps
tools/setup.sh etcd || echo "run.sh: without etcd its tests skip" >&2
# Most of this time is for the network, so this runs in parallel to the build.
{ tools/setup.sh python $environment && { tools/setup.sh site || echo "run.sh: without its packages site_test skips" >&2; }; } &
python=$!
trap 'kill $python 2>/dev/null || true' EXIT
tools/setup.sh build "$preset"
wait $python
trap - EXIT
if [ "$environment" = frameworks ]; then
  exec tests/python/run.sh "$PWD/build/$preset/lib/api/libentrain.so" "$PWD/build/$preset/tools/entrain-run" -rs with_frameworks
fi

# ThreadSanitizer finds no room for its shadow where the kernel spreads mappings too far apart.
run=
if [ "$preset" = tsan ] && [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ] &&
  setarch -R true 2>/dev/null; then
  run="setarch -R"
fi
# Three more than cores, because many tests wait for a deadline.
exec $run ctest --preset "$preset" --parallel "$(($(nproc) + 3))"
