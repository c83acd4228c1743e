#!/usr/bin/env python3
"""Measures how long a step of each method takes, waits included, if two replicas have a slow link between them.

    examples/links.py --build build/release --data TEXT      # examples/results/links.csv; then: examples/experiments.py page

A step computes for STEP_MS, padded with sleep, so that ranks do not compete for cores. The link has the rate with which the synchronous exchange of
all parameters in f32 takes as long as the stated number of steps. The first and the last interval are not counted."""

import argparse
import csv
import json
import pathlib
import subprocess
import tempfile

from runs import LAUNCHER, MODEL, TOP, TRAINER

PARAMS, RANKS, STEP_MS, INTERVAL = 80_112, 2, 60, 16
LOADS, PASSES = (1, 4, 16), (1, 2, 3)  # steps that the exchange of all gradients takes
CSV = TOP / "examples/results/links.csv"
LOCAL = f"--local-sgd-sync-interval {INTERVAL} --step-ms {STEP_MS}"
METHODS = {
    "ddp": f"--step-ms {STEP_MS}",
    "zero1": f"--gradient-accumulation-steps 2 --step-ms {STEP_MS}",
    "acco": f"--max-microbatches 1 --step-ms {STEP_MS / 2:g}",  # a step has two halves
    "a-edit": f"--local-sgd-sync-time {INTERVAL * STEP_MS / 1000:g} --min-total-global-steps 1 --step-ms {STEP_MS}",
    **{name: LOCAL for name in ("post-local-sgd", "diloco", "edit", "streaming-diloco", "decoupled-diloco", "co2", "sparseloco")},
}


def rate(load):
    """Returns the value of ENTRAIN_FAULT."""
    return f"rate={2 * (RANKS - 1) / RANKS * 4 * PARAMS / (load * STEP_MS / 1000) / 1e6:.4f}MB/s"


def step_ms(args, method, load):
    synchronous = method in ("ddp", "zero1", "acco")
    first, last = (3, 11) if synchronous else (2 * INTERVAL, 5 * INTERVAL)
    steps = last + 1 if synchronous else last + INTERVAL
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        words = [args.build / LAUNCHER, "-n", RANKS, "--", args.build / TRAINER, "--data", args.data, "--method", method, "--log", log]
        words += [*MODEL.replace("256", "1").split(), "--steps", steps, *METHODS[method].split()]
        subprocess.run([str(word) for word in words], check=True, capture_output=True, env={"ENTRAIN_FAULT": rate(load), "OMP_NUM_THREADS": "1"})
        records = [json.loads(line) for line in log.read_text().splitlines()]
    at = {one["step"]: one["seconds"] for one in records if one["replica"] == 0}
    return 1000 * (at[last] - at[first]) / (last - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rows = []
    for number in PASSES:  # so that other load on the machine affects all methods alike
        for load in LOADS:
            for method in METHODS:
                rows.append([method, load, number, f"{step_ms(args, method, load):.1f}"])
                print(*rows[-1], flush=True)
    with CSV.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([["method", "load", "pass", "step_ms"], *rows])


if __name__ == "__main__":
    main()
