#!/bin/sh
# Four processes learn English from a dictionary: two replicas of two ranks each, once with EDiT and once with
# synchronous data parallel training (ddp) on the same number of bytes. Installs and builds missing parts.
#
#   examples/demo.sh [--data FILE] [--steps N] [--retrain]
#
#   --data FILE   another text, plain or gzip (default: Debian's dict-gcide)
#   --steps N     optimizer steps of each run (default: 500)
#   --retrain     train again; otherwise the results of an earlier call are shown, if text, flags and programs
#                 are the same
set -eu

usage() {
  sed -n '2,10s/^# \{0,1\}//p' "$0"
}

data=
steps=500
retrain=no
while [ $# -gt 0 ]; do
  case "$1" in
    --data)
      [ $# -ge 2 ] || { echo "demo.sh: --data needs a file" >&2; exit 2; }
      data=$(realpath -- "$2")
      shift
      ;;
    --steps)
      [ $# -ge 2 ] || { echo "demo.sh: --steps needs a number" >&2; exit 2; }
      case "$2" in
        '' | 0* | *[!0-9]*) echo "demo.sh: --steps: '$2' is not a positive number" >&2; exit 2 ;;
      esac
      steps=$2
      shift
      ;;
    --retrain) retrain=yes ;;
    --help | -h) usage; exit 0 ;;
    *) echo "demo.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

cd "$(dirname "$0")/.."
if [ -n "$data" ] && [ ! -r "$data" ]; then
  echo "demo.sh: cannot read data file '$data'" >&2
  exit 1
fi
absent=$(tools/setup.sh list-demo)
if [ -n "$absent" ]; then
  echo "demo.sh: will install these packages of Debian and what they need, by apt-get, as root or with sudo:"
  echo "$absent" | fold -s -w 100 | sed 's/^/  /'
fi
[ -x build/demo/examples/trainer/entrain-train ] || echo "demo.sh: will build the library and the trainer into build/demo, and then train"
tools/setup.sh deps-demo
tools/setup.sh build demo entrain-run entrain-train
data=${data:-/usr/share/dictd/gcide.dict.dz}
out=build/demo/results
mkdir -p "$out"

# One BLAS thread per process, because four processes already share the cores.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

common="--shard-size 2 --steps $steps --hidden-size 128 --layers 4 --heads 4 --seq-length 128 --batch-size 8
  --lr 0.004 --seed 1 --val-batches 48 --eval-interval 100 --sample 400"
edit="--local-sgd-sync-interval 16 --local-sgd-warmup-steps 14 --outer-lr 0.8 --outer-momentum 0.3"

# A result depends on the flags, the text, and the programs, which consist of these files.
programs=$(cat build/demo/tools/entrain-run build/demo/examples/trainer/entrain-train \
  build/demo/lib/api/libentrain.so | cksum)

# train METHOD FLAGS...: writes $out/METHOD.{jsonl,json}, unless they exist with the same settings.
train() {
  method=$1
  shift
  settings="programs $programs text $(cksum <"$data") flags $*"
  if [ "$retrain" = no ] && [ -s "$out/$method.json" ] &&
    [ "$(cat "$out/$method.settings" 2>/dev/null)" = "$settings" ]; then
    echo "== $method: results of an earlier call (--retrain trains again)"
    return
  fi
  echo "== $method: 2 replicas x 2 ranks on $data"
  rm -f "$out/$method.json" "$out/$method.settings"
  build/demo/tools/entrain-run -n 4 -- build/demo/examples/trainer/entrain-train --method "$method" \
    --data "$data" --log "$out/$method.jsonl" --summary "$out/$method.json" "$@"
  echo "$settings" >"$out/$method.settings"
}

# The flags contain no blanks inside a word.
# shellcheck disable=SC2086
train edit $common $edit
# shellcheck disable=SC2086
train ddp $common

/usr/bin/python3 examples/plot_loss.py "$out/loss.png" "$out/edit" "$out/ddp"
