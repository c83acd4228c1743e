#!/bin/sh
# Builds a preset and runs all of its tests: tests/run.sh [PRESET], dev without an argument. Installs missing Debian
# packages first. Ends with CTest's closing line; exits 0 when every test passed.
set -eu
cd "$(dirname "$0")/.."
preset=${1:-dev}

tools/setup.sh deps
tools/setup.sh build "$preset"

# ThreadSanitizer finds no room for its shadow where the kernel spreads mappings too far apart.
run=
if [ "$preset" = tsan ] && [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ] &&
  setarch -R true 2>/dev/null; then
  run="setarch -R"
fi
exec $run ctest --preset "$preset" --parallel "$(nproc)"
