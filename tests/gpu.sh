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

# The trainer with every method, two ranks on one GPU, on a text that this script makes. The loss must fall well below that of a
# model that only counts bytes.
for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" "${CUDA_HOME:-/usr/local/cuda}/targets/$(uname -m)-linux/lib"; do
  for library in "$folder/libcublas.so.13" "$folder/libcublas.so.12"; do
    [ -n "${TRAINER_CUBLAS_LIBRARY:-}" ] || [ ! -e "$library" ] || TRAINER_CUBLAS_LIBRARY=$library
  done
done
[ -z "${TRAINER_CUBLAS_LIBRARY:-}" ] || export TRAINER_CUBLAS_LIBRARY
if [ -n "${TRAINER_CUBLAS_LIBRARY:-}" ] || ldconfig -p 2>/dev/null | grep -q 'libcublas\.so\.1[23]'; then
  methods="ddp post-local-sgd diloco streaming-diloco co2 sparseloco edit a-edit zero1 acco dpu wp"
  text_maker='BEGIN { srand(1); split("sync drift replica anchor again step", word, " ")
                      for (i = 0; i < 20000; i++) printf "%s%s", word[1 + int(6 * rand())], rand() < 0.1 ? "\n" : " " }'
else
  methods=""
  echo "no cuBLAS here: the trainer is not run"
fi
[ -z "$methods" ] || run trainer_gpu_test 600 bin/trainer_gpu_test </dev/null
for method in $methods; do
  [ -f logs/text ] || awk "$text_maker" >logs/text
  case $method in
    a-edit) how="--local-sgd-sync-time 0.1 --min-total-global-steps 8" ;;
    ddp | zero1 | acco | dpu | wp) how="" ;;
    *) how="--local-sgd-sync-interval 8 --local-sgd-warmup-steps 8" ;;
  esac
  # shellcheck disable=SC2086  # flags are words
  run "trainer-$method" 300 bin/entrain-run -n 2 -- bin/entrain-train --device cuda --method "$method" $how --data logs/text \
    --steps 120 --lr 0.01 --hidden-size 64 --layers 2 --seq-length 64 --summary "logs/trainer-$method.json" </dev/null
  # shellcheck disable=SC2016  # a variable of awk
  run "trainer-$method-learned" 10 awk -F'[:,]' '
    { print }
    /"val_loss"/ { loss = $2 + 0 }
    /"unigram_entropy"/ { counting = $2 + 0 }
    END { exit !(loss > 0 && loss < 0.6 * counting) }' "logs/trainer-$method.json"
done

for figures in logs/*_bench.log; do
  [ -f "$figures" ] && cat "$figures"
done

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
  some='LargeArrays.*:CudaKernels.*:Tables/ArraysTest.Weighted*:Tables/UpdatesTest.*'
  for tool in memcheck racecheck initcheck synccheck; do
    run "compute-sanitizer-$tool" 600 "$sanitizer" --tool "$tool" --error-exitcode 1 \
      bin/cuda_kernels_test "--gtest_filter=$some"
  done
  [ -z "$methods" ] || run compute-sanitizer-trainer 600 "$sanitizer" --tool memcheck --error-exitcode 1 bin/trainer_gpu_test
else
  echo "no compute-sanitizer here"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
