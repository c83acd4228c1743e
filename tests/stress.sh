#!/bin/sh
# Random calls on many communicators for a long time: tests/stress.sh [PRESET [SECONDS [SEED]]]; dev, 120 s for each of the
# settings, and a seed from the clock without arguments. The seed is printed; the same seed draws the same calls.
set -eu
cd "$(dirname "$0")/.."
preset=${1:-dev}
seconds=${2:-120}
seed=${3:-$(date +%s)}

tools/setup.sh deps
tools/setup.sh build "$preset"
echo "stress.sh: preset $preset, $seconds s a setting, seed $seed"
exec "build/$preset/tests/comm/stress_test" "--seconds=$seconds" "--seed=$seed"
