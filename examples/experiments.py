#!/usr/bin/env python3
"""Measures what the methods of entrain-train are for, on real text, with four replicas; one model
and one number of steps.

  quality      validation loss of all methods at equal tokens, each at the best learning rate of
               the same grid
  delay        likewise, of what delayed gradients cost: acco, dpu and wp beside zero1
  spikes       one replica learns from shuffled labels in one interval in five: how far the others'
               losses rise
  stragglers   share of ideal throughput with late replicas, beside a Monte-Carlo of the same
  idle         what replicas of a-edit wait when one is 3.3 times slower
  acco         share of the gradients of replicas that only compute, by acco, zero1, dpu and wp,
               where an exchange takes 0.8 of a round's computing (ENTRAIN_FAULT), and where one
               replica computes four times as long
  optimizers   AdamW, AGD, SGD, and WSAM around them, two replicas, each at its best learning
               rate: loss, steps, sharpness
  digits       the same on scikit-learn's digits
  all          all of them

Each run leaves RUN.json, RUN.jsonl and RUN.flags in --out, and is not made again while these are of
the same flags. Tables are made of the rows that are complete: OUT/EXPERIMENT.md, and OUT/runs.csv
of all runs. Times mean something on a quiet machine only.
"""

import argparse
import csv
import datetime
import functools
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import experiment_tables as tables  # noqa: E402  (the path comes first)
import optimizers  # noqa: E402
from runs import LEFT_OUT, MODEL, RunFailed, Runs, add_arguments, check_paths, machine  # noqa: E402

RANKS, STEPS, INTERVAL, SEEDS = 4, 768, 16, 3
RATES = (0.003, 0.005, 0.008)
DELAY_RATES = (0.003, 0.005, 0.008, 0.0125)
WARMUP = STEPS // 4  # synchronous steps of quality and spikes
STEP_MS = 28  # padded steps: some five times what computing takes where two ranks share a core
METHODS = ("ddp", "post-local-sgd", "diloco", "edit", "a-edit")
SHUFFLE_EVERY, SHUFFLED, ARMED_AFTER, SPIKE_RATE = 5, 1, 10, 0.004
EWMA = f"--ewma-warmup-steps {ARMED_AFTER}"
PENALTY = {
    "diloco": "--method diloco",
    "edit, full penalty": f"--method edit --clip-pseudo-grad 1 {EWMA}",
    "without elimination of anomalies": "--method edit --clip-pseudo-grad 1 --no-skip-anomaly",
    "without weights": f"--method edit --clip-pseudo-grad 1 {EWMA} --no-pseudo-gradnorm-reduce",
    "without clip": f"--method edit --clip-pseudo-grad 0 {EWMA}",
}
DELAYS = (0.5, 1, 4)
IDLE_SPEED, IDLE_STEPS = 3.3, 60  # the slow replica's step over the others', and tau in steps
PARAMS, F32_BYTES = 80_112, 4
ACCO_MS = 60  # of a padded micro-batch: four ranks on two cores compute for a fifth of it at most
EXCHANGE = 0.8  # what an exchange takes, over a micro-batch
MICROBATCHES = 200  # of a rank, in runs without a slow one
SLOWNESS = 4
CHANNELS = {  # what a round of each is, in micro-batches of a rank, and rounds of a commit
    "zero1, one round an update": ("zero1", 1, 1),
    "zero1, two rounds' gradients": ("zero1", 2, 1),
    "acco": ("acco", 1, 2),
    "dpu": ("dpu", 1, 1),
    "wp": ("wp", 1, 1),
}


def by_time(steps, together=True):
    """Flags of a-edit that meets every so many padded steps."""
    flags = f"--method a-edit --step-ms {STEP_MS} --local-sgd-sync-time {steps * STEP_MS / 1000:g}"
    return f"{flags} --min-total-global-steps 1" + (" --steps-together" if together else "")


class TextRuns(Runs):
    """Runs of the one model; flags are those that differ, as text."""

    def get(self, name, flags, expected_s=8.0, steps=STEPS, ranks=RANKS, fault=""):
        """fault: ENTRAIN_FAULT of the ranks."""
        words = f"{MODEL} --steps {steps} {flags}".split()
        environment = {"ENTRAIN_FAULT": fault} if fault else {}
        besides = [f"ENTRAIN_FAULT={fault}"] if fault else []
        return super().get(name, words, expected_s, ranks, environment, besides)


def quality_flags(method, rate, seed):
    flags = f"--lr {rate:g} --seed {seed}"
    if method == "ddp":
        return f"--method ddp {flags}"
    flags += f" --local-sgd-warmup-steps {WARMUP}"
    if method == "a-edit":
        return f"{by_time(INTERVAL, together=False)} {flags}"
    return f"--method {method} --local-sgd-sync-interval {INTERVAL} {flags}"


def quality(runs):
    results = {}
    for method in METHODS:
        expected_s = STEPS * STEP_MS / 1000 + 4 if method == "a-edit" else 10.0
        results[method] = {}
        for rate in RATES:
            names = [f"quality-{method}-lr{rate:g}-seed{seed}" for seed in range(1, SEEDS + 1)]
            summaries = [
                runs.get(name, quality_flags(method, rate, seed), expected_s)
                for seed, name in enumerate(names, 1)
            ]
            if None not in summaries:
                results[method][rate] = [summary["val_loss"] for summary in summaries]
    complete = {method: rates for method, rates in results.items() if len(rates) == len(RATES)}
    return tables.quality(complete) if "ddp" in complete else None


# The same micro-batches in each commit: acco's of both its rounds are the others' of one.
DELAYED = {
    "zero1": "--method zero1 --gradient-accumulation-steps 2",
    "acco": "--method acco --max-microbatches 1",
    "dpu": "--method dpu --gradient-accumulation-steps 2 --max-microbatches 2",
    "dpu after warm-up": "--method dpu --gradient-accumulation-steps 2 --max-microbatches 2 "
    f"--warmup-rounds {STEPS // 8}",
    "wp": "--method wp --gradient-accumulation-steps 2 --max-microbatches 2",
}


def delay(runs):
    results = {}
    for number, (method, flags) in enumerate(DELAYED.items()):
        results[method] = {}
        for rate in DELAY_RATES:
            summaries = [
                runs.get(
                    f"delay-{number}-lr{rate:g}-seed{seed}",
                    f"{flags} --lr {rate:g} --seed {seed}",
                    steps=STEPS // 2,
                )
                for seed in range(1, SEEDS + 1)
            ]
            if None not in summaries:
                results[method][rate] = [summary["val_loss"] for summary in summaries]
    complete = {method: rates for method, rates in results.items() if len(rates) == len(DELAY_RATES)}
    return tables.quality(complete, "zero1") if "zero1" in complete else None


def spikes(runs):
    results = {}
    shuffle = f" --shuffle-labels-every {SHUFFLE_EVERY} --shuffle-labels-replica {SHUFFLED}"
    armed = WARMUP + INTERVAL * (ARMED_AFTER + 1)
    for number, (variant, flags) in enumerate(PENALTY.items()):
        seeds = results[variant] = []
        for seed in range(1, SEEDS + 1):
            # A constant learning rate: while it falls, so do the norms, and detectors would look
            # back at larger ones.
            rate = f"--lr {SPIKE_RATE} --min-lr {SPIKE_RATE}"
            whole = f"{flags} --local-sgd-warmup-steps {WARMUP} {rate} --seed {seed}"
            names = [f"spikes-{number}-seed{seed}-{kind}" for kind in ("quiet", "shuffled")]
            quiet = runs.get(names[0], whole)
            spiked = runs.get(names[1], whole + shuffle)
            if quiet is None or spiked is None:
                continue
            losses = [tables.clean_losses(runs.records(name), SHUFFLED) for name in names]
            seeds.append(
                {
                    "worst": tables.worst_excursion(*losses, 1),
                    "worst_armed": tables.worst_excursion(*losses, armed + 1),
                    "rejections": spiked["rejections"],
                    "rejections_quiet": quiet["rejections"],
                    "val_loss": spiked["val_loss"],
                    "val_loss_quiet": quiet["val_loss"],
                }
            )
    return (
        tables.spikes(results) if all(len(seeds) == SEEDS for seeds in results.values()) else None
    )


def straggler_flags(method, straggler, ratio):
    flags = by_time(INTERVAL) if method == "a-edit" else f"--method {method} --step-ms {STEP_MS}"
    if method == "edit":
        flags += f" --local-sgd-sync-interval {INTERVAL}"
    if straggler != "none":
        flags += f" --straggler {straggler} --straggler-ms {ratio * STEP_MS:g}"
    return flags + " --lr 0.004"


def stragglers(runs):
    shares, predicted = {}, {}
    for key in [("none", 0)] + [(kind, ratio) for kind in ("random", "fixed") for ratio in DELAYS]:
        shares[key], predicted[key] = {}, {}
        for method in ("ddp", "edit", "a-edit"):
            predicted[key][method] = tables.predict(method, *key, RANKS, INTERVAL)
            expected_s = STEPS * STEP_MS / 1000 / predicted[key][method] * 1.1 + 4
            summary = runs.get(
                f"stragglers-{key[0]}-{key[1]:g}-{method}",
                straggler_flags(method, *key),
                expected_s,
            )
            if summary is not None:
                shares[key][method] = tables.share_of_ideal(summary, STEP_MS)
    complete = {key: row for key, row in shares.items() if len(row) == 3}
    return tables.stragglers(complete, predicted) if complete else None


def idle(runs):
    delay = (IDLE_SPEED - 1) * STEP_MS
    flags = f"{by_time(IDLE_STEPS)} --straggler fixed --straggler-ms {delay:g} --lr 0.004"
    summary = runs.get("idle", flags, 45.0)
    return None if summary is None else tables.idle(summary)


def capped(ranks):
    """ENTRAIN_FAULT with which the reduce-scatter and the all-gather of a round take EXCHANGE."""
    sent = 2 * (ranks - 1) / ranks * PARAMS * F32_BYTES
    return f"rate={sent / (EXCHANGE * ACCO_MS / 1000) / 1e6:.4f}MB/s"


def channel_run(runs, ranks, number, channel, slow, fault):
    """Share of the gradients of so many replicas that compute and never wait, and what they
    waited."""
    method, grouped, rounds = channel
    steps = MICROBATCHES // (grouped * rounds)
    if slow:
        steps //= SLOWNESS if method == "zero1" else 2
    flags = f"--method {method} --gradient-accumulation-steps {grouped} --lr 0.004"
    flags += f" --step-ms {ACCO_MS * grouped}"
    if slow:
        flags += f" --straggler fixed --straggler-ms {(SLOWNESS - 1) * ACCO_MS * grouped}"
    name = f"acco-{ranks}-{number}{'-slow' if slow else ''}{'-capped' if fault else ''}"
    summary = runs.get(name, flags, 30.0, steps, ranks, fault)
    return None if summary is None else tables.channel(summary, ACCO_MS, PARAMS)


def acco(runs):
    rows = []
    for ranks in (2, 4):
        for number, (label, channel) in enumerate(CHANNELS.items()):
            found = channel_run(runs, ranks, number, channel, False, capped(ranks))
            rows.append((ranks, label, "exchange 0.8 of a round", found, channel, EXCHANGE, 1))
    for fault, exchange in (("", 0), (capped(RANKS), EXCHANGE)):
        for number, label in enumerate(("zero1, one round an update", "acco")):
            channel = CHANNELS[label]
            found = channel_run(runs, RANKS, number, channel, True, fault)
            late = "one 4 x slower" + (", exchange 0.8" if fault else "")
            rows.append((RANKS, label, late, found, channel, exchange, SLOWNESS))
    return tables.acco([row for row in rows if row[3] is not None])


EXPERIMENTS = {
    "quality": (quality, len(METHODS) * len(RATES) * SEEDS),
    "delay": (delay, len(DELAYED) * len(DELAY_RATES) * SEEDS),
    "spikes": (spikes, len(PENALTY) * SEEDS * 2),
    "stragglers": (stragglers, 3 * (1 + 2 * len(DELAYS))),
    "idle": (idle, 1),
    "acco": (acco, 2 * len(CHANNELS) + 4),
    "optimizers": (functools.partial(optimizers.compare, "text"), optimizers.fewest_runs("text")),
    "digits": (functools.partial(optimizers.compare, "digits"), optimizers.fewest_runs("digits")),
}


def write_csv(out):
    """All finished runs, a line each: name, flags, and what the summaries say."""
    rows = []
    for kept in sorted(out.glob("*.flags")):
        with open(kept.with_suffix(".json"), encoding="utf-8") as file:
            summary = json.load(file)
        rows.append(
            {
                "run": kept.stem,
                "flags": kept.read_text().strip(),
                **{key: value for key, value in summary.items() if key != "sample"},
            }
        )
    fields = dict.fromkeys(
        key for row in rows for key in row
    )  # programs of several days may differ
    with open(out / "runs.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(fields))
        writer.writeheader()
        writer.writerows(rows)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all"])
    add_arguments(parser, "experiments")
    args = parser.parse_args()
    check_paths(parser, args)
    return args


def main():
    args = parse()
    chosen = (
        EXPERIMENTS
        if args.experiment == "all"
        else {args.experiment: EXPERIMENTS[args.experiment]}
    )
    runs = TextRuns(args, sum(count for _, count in chosen.values()))
    for name, (make, _) in chosen.items():
        rows = make(runs)
        if rows is not None:
            text = tables.markdown(rows)
            today = datetime.date.today().isoformat()
            (args.out / f"{name}.md").write_text(
                f"{machine()}, {today}: `experiments.py {name}`\n\n{text}"
            )
            print(f"\n{name}\n\n{text}", flush=True)
    write_csv(args.out)
    if runs.left_out:
        print(f"{runs.left_out} of {runs.total} runs are still to be made", flush=True)
        sys.exit(0 if args.tables else LEFT_OUT)


if __name__ == "__main__":
    try:
        main()
    except RunFailed as failed:
        sys.exit(f"{failed.output}experiments.py: {failed}")
