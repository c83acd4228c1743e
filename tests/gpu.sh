#!/bin/sh
# Runs the programs of its folder on a machine with a GPU. The target gpu-folder of a build on another machine makes the folder;
# nothing is installed, and no network is needed. Every program's output goes to logs/. Ends with a line of counts; exits 0 if
# all programs passed.
#
#     cmake --build --preset dev --target gpu-folder      # then carry build/dev/gpu-folder to the machine
#     ./gpu.sh
set -u
cd "$(dirname "$0")" || exit 2
if [ ! -d bin ] || [ ! -f gpu-commands ]; then
  echo "gpu.sh: no programs beside it; build the target gpu-folder, and run the copy that lies there" >&2
  exit 2
fi
mkdir -p logs
passed=0
failed=0

# run NAME SECONDS COMMAND...: prints how the command ended, and the end of its output if it failed.
run() {
  name=$1 limit=$2
  shift 2
  if timeout "$limit" "$@" >"logs/$name.log" 2>&1; then
    passed=$((passed + 1))
    echo "passed  $name"
  else
    echo "FAILED  $name (exit code $?)"
    failed=$((failed + 1))
    tail -n 20 "logs/$name.log" | sed 's/^/        /'
  fi
}

date -u
uname -srm
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "no nvidia-smi"

# Real devices, not the fake driver.
TEST_GPU=1
export TEST_GPU
unset ENTRAIN_CUDA_LIBRARY
number=0
while read -r program arguments; do
  if [ -n "$program" ]; then
    number=$((number + 1))
    # shellcheck disable=SC2086  # arguments are words
    run "$number-$program" 600 "bin/$program" $arguments </dev/null
  fi
done <gpu-commands

for figures in logs/*_bench.log; do
  [ -f "$figures" ] && cat "$figures"
done

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck initcheck synccheck; do
    run "compute-sanitizer-$tool" 600 "$sanitizer" --tool "$tool" --error-exitcode 1 bin/cuda_kernels_test
  done
else
  echo "no compute-sanitizer here"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
