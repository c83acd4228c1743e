#!/bin/sh
# Makes random calls on many communicators for a long time: tests/stress.sh [PRESET [SECONDS [SEED]]]. The defaults are dev, 120 s
# for each of the settings, and a seed from the clock. The seed is printed; equal seeds draw equal calls.
set -eu
cd "$(dirname "$0")/.."
preset=${1:-dev}
seconds=${2:-120}
seed=${3:-$(date +%s)}

tools/setup.sh deps
tools/setup.sh build "$preset"
echo "stress.sh: preset $preset, $seconds s a setting, seed $seed"
exec "build/$preset/tests/comm/stress_test" "--seconds=$seconds" "--seed=$seed"
