#!/bin/sh
# Trains four replicas with EDiT under entrain-run --elastic. One of them is killed after a third of the steps, and another
# after two thirds (--on-loss finish). entrain-run starts them again, and they take their places (--admit exchange). Trains
# twice more and compares: without kills, and with kills but without replacements. Installs and builds missing parts.
#
#   examples/elastic.sh [--data FILE] [--steps N]
#
#   --data FILE   another text, plain or gzip (default: Debian's dict-gcide)
#   --steps N     optimizer steps of each run (default: 400)
set -eu

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "$0"
}

data=
steps=400
while [ $# -gt 0 ]; do
  case "$1" in
    --data)
      [ $# -ge 2 ] || { echo "elastic.sh: --data needs a file" >&2; exit 2; }
      data=$(realpath -- "$2")
      shift
      ;;
    --steps)
      [ $# -ge 2 ] || { echo "elastic.sh: --steps needs a number" >&2; exit 2; }
      case "$2" in
        '' | 0* | *[!0-9]*) echo "elastic.sh: --steps: '$2' is not a positive number" >&2; exit 2 ;;
      esac
      steps=$2
      shift
      ;;
    --help | -h) usage; exit 0 ;;
    *) echo "elastic.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

cd "$(dirname "$0")/.."
tools/setup.sh deps-demo
tools/setup.sh build demo entrain-train entrain-run
bin=build/demo
data=${data:-/usr/share/dictd/gcide.dict.dz}
out=build/demo/elastic
rm -rf "$out"
mkdir -p "$out"

# One BLAS thread per process, because four processes already share the cores.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

# Starts run $1. entrain-run starts a rank again at most $2 times.
start() {
  "$bin/tools/entrain-run" --elastic --max-restarts "$2" -n 4 "$bin/examples/trainer/entrain-train" --method edit \
    --on-loss finish --admit exchange --data "$data" \
    --steps "$steps" --local-sgd-sync-interval 8 --local-sgd-warmup-steps 8 --hidden-size 64 --layers 2 --heads 2 \
    --seq-length 64 --batch-size 8 --lr 0.004 --seed 1 --val-batches 16 --eval-interval $((steps / 8)) \
    --log "$out/$1.jsonl" --summary "$out/$1.json" &
  launcher=$!
}

# Prints the process of rank $1: the child of the launcher that has this rank in its environment.
process_of() {
  for pid in $(cat "/proc/$launcher/task/"*/children); do
    tr '\0' '\n' < "/proc/$pid/environ" | grep -qx "RANK=$1" && echo "$pid"
  done
}

# Kills rank $2 of run $1 when the run has made $3 steps.
kill_at() {
  until grep -q "\"step\": *$3\b" "$out/$1.jsonl" 2> /dev/null; do
    kill -0 "$launcher" 2> /dev/null || return 0
    sleep 0.1
  done
  echo "killing replica $2"
  kill -9 "$(process_of "$2")"
}

echo "four replicas to the end:"
start whole 3
wait "$launcher"
for run in "replaced 3" "killed 0"; do
  name=${run% *}
  echo "four replicas, of which two are killed ($name):"
  start "$name" "${run#* }"
  kill_at "$name" 2 $((steps / 3))
  kill_at "$name" 1 $((steps * 2 / 3))
  wait "$launcher"
done
/usr/bin/python3 examples/plot_loss.py "$out/elastic.png" "$out/whole" "$out/replaced" "$out/killed"
echo "picture: $out/elastic.png"
