#!/bin/sh
# Trains four replicas with EDiT, kills one of them after a third of the steps and another after two thirds, and shows
# that the others go on (--on-loss finish). Trains once more without kills, and compares. Installs and builds missing
# parts.
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
tools/setup.sh build demo entrain-train
train=build/demo/examples/trainer/entrain-train
data=${data:-/usr/share/dictd/gcide.dict.dz}
out=build/demo/elastic
rm -rf "$out"
mkdir -p "$out"

# One thread per process for the BLAS, because four processes share the cores already.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 WORLD_SIZE=4

# Starts the ranks of run $1; ids are in $out/$1.pids. No launcher: it would end all ranks when one dies.
start() {
  mkdir "$out/$1.store"
  : > "$out/$1.pids"
  for rank in 0 1 2 3; do
    RANK=$rank LOCAL_RANK=$rank ENTRAIN_STORE="file:$PWD/$out/$1.store" "$train" --method edit --on-loss finish --data "$data" \
      --steps "$steps" --local-sgd-sync-interval 8 --local-sgd-warmup-steps 8 --hidden-size 64 --layers 2 --heads 2 \
      --seq-length 64 --batch-size 8 --lr 0.004 --seed 1 --val-batches 16 --eval-interval $((steps / 8)) \
      --log "$out/$1.jsonl" --summary "$out/$1.json" &
    echo $! >> "$out/$1.pids"
  done
}

# Kills rank $2 of run $1 when the run has made $3 steps.
kill_at() {
  until grep -q "\"step\": *$3\b" "$out/$1.jsonl" 2> /dev/null; do
    kill -0 "$(sed -n 1p "$out/$1.pids")" 2> /dev/null || return 0
    sleep 0.1
  done
  echo "killing replica $2"
  kill -9 "$(sed -n "$(($2 + 1))p" "$out/$1.pids")"
}

echo "four replicas to the end:"
start whole
wait
echo "four replicas, of which two are killed:"
start killed
kill_at killed 2 $((steps / 3))
kill_at killed 1 $((steps * 2 / 3))
wait
/usr/bin/python3 examples/plot_loss.py "$out/elastic.png" "$out/whole" "$out/killed"
echo "picture: $out/elastic.png"
