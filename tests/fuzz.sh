#!/bin/sh
# Fuzzes the code that reads bytes from others (tests/fuzz): tests/fuzz.sh [SECONDS [TARGET...]]. Without arguments it runs all
# targets for 10 s each. Installs clang if it is absent, builds the preset fuzz, and runs one target after another with the
# address and undefined sanitizers. Inputs that reach new code are added to tests/fuzz/corpus; all inputs found stay in
# build/fuzz/found, where the next run continues. Ends with a table. Exits 1 if a target found a fault; the input is then in
# build/fuzz/faults.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
[ $# -eq 0 ] || shift
targets=${*:-$(sed -n 's/^ *entrain_fuzz(\([a-z_]*\).*/\1/p' tests/fuzz/CMakeLists.txt)}

tools/setup.sh deps-fuzz
names=
for target in $targets; do
  names="$names fuzz_$target"
done
# $names is a list of words.
# shellcheck disable=SC2086
tools/setup.sh build fuzz $names

build=$PWD/build/fuzz
mkdir -p "$build/faults"
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
failed=0
rows=
for target in $targets; do
  program=$build/tests/fuzz/fuzz_$target
  found=$build/found/$target kept=tests/fuzz/corpus/$target seeds=$build/seeds/$target log=$build/$target.log
  mkdir -p "$found" "$kept"
  "$program" --seeds "$seeds"
  result=none
  # An input may take 10 s and 2 GiB, and one allocation at most 512 MiB.
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=2048 \
    -print_final_stats=1 -artifact_prefix="$build/faults/$target-" "$found" "$kept" "$seeds" >"$log" 2>&1 || result=FOUND
  if [ $result = FOUND ]; then
    failed=1
    tail -n 60 "$log" >&2
  fi
  # Adds a smallest set of inputs that reaches every edge.
  "$program" -set_cover_merge=1 -use_counters=0 -timeout=10 -max_len=2048 -artifact_prefix="$build/faults/$target-" \
    "$kept" "$found" "$seeds" >"$log.merge" 2>&1 ||
    { failed=1; echo "fuzz.sh: merging the inputs of $target failed; see $log.merge" >&2; }
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log" | tail -n 1)
  edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  features=$(sed -n 's/.* ft: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  all=$(sed -n 's/.*Loaded 1 modules *(\([0-9]*\) inline.*/\1/p' "$log" | tail -n 1)
  rows="$rows$(printf '%-16s %12s %8s %8s %8s %10s  %s' "$target" "${executions:-?}" "${rate:-?}" "${edges:-?}" "${all:-?}" \
    "${features:-?}" "$result")
"
done
printf '%-16s %12s %8s %8s %8s %10s  %s\n%s' target executions per_s edges of features faults "$rows"
exit $failed
