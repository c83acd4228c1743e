#!/usr/bin/env python3
"""Compares two builds of entrain-perf in alternation on the same cores: the ratio of the second's times to the
first's.

  bench/two_builds.py OLD NEW [--rounds 9] [--collectives ...] [--op sum] [--transports shm,tcp] [--ranks 2,4] [--factor 16] [--cells 10]

OLD, NEW: build folders, for example of a worktree of an earlier commit and of this one, both of the preset release.
In every round both measure each collective, in alternating order. A cell is a transport, a number of ranks, a
collective and a size. Its ratio is that of the medians over the rounds. Prints the medians, 90th percentiles and
largest of the ratios, for each transport and number of ranks and for each collective, and the slowest cells. A cell
of under 5 us on two cores varies by a fifth from run to run: measure it alone before you trust it."""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile

COLLECTIVES = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,gather,scatter,all_to_all,barrier,send_recv"


def measure(build, collective, ranks, transport, options):
    """Returns the median times by size, in microseconds."""
    with tempfile.NamedTemporaryFile() as out:
        command = [os.path.join(build, "tools/entrain-perf"), collective, "-n", ranks, "--transport", transport,
                   "--min-bytes", "8", "--max-bytes", options.max_bytes, "--factor", options.factor,
                   "--budget", str(options.budget), "--op", options.op, "--json", out.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"two_builds.py: {' '.join(command)} failed: {done.stderr.strip()[-600:]}")
        with open(out.name) as lines:
            return {line["bytes"]: line["median_us"] for line in map(json.loads, lines)}


def summary(ratios):
    ratios = sorted(ratios)
    return (f"{len(ratios)} | {statistics.median(ratios):.3f} | {ratios[int(len(ratios) * 0.9)]:.3f} | "
            f"{ratios[-1]:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--collectives", default=COLLECTIVES)
    parser.add_argument("--op", default="sum")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--max-bytes", default="8M")
    parser.add_argument("--factor", default="16")
    parser.add_argument("--budget", type=float, default=0.04, help="seconds for each size")
    parser.add_argument("--cells", type=int, default=10, help="how many of the slowest cells are printed")
    options = parser.parse_args()

    times = collections.defaultdict(lambda: ([], []))
    for number in range(options.rounds):
        for transport in options.transports.split(","):
            for ranks in options.ranks.split(","):
                for collective in options.collectives.split(","):
                    for which in (0, 1) if number % 2 == 0 else (1, 0):
                        build = (options.old, options.new)[which]
                        for size, time in measure(build, collective, ranks, transport, options).items():
                            times[transport, ranks, collective, size][which].append(time)
    cells = {cell: tuple(map(statistics.median, both)) for cell, both in times.items()}
    ratio = {cell: new / old for cell, (old, new) in cells.items()}

    print("| | cells | median | 90th percentile | largest |\n|---|---|---|---|---|")
    groups = collections.defaultdict(list)
    for (transport, ranks, collective, _), value in ratio.items():
        groups[f"{transport}, {ranks} ranks"].append(value)
        groups[f"{transport}, {collective}"].append(value)
    for name, ratios in groups.items():
        print(f"| {name} | {summary(ratios)} |")
    print("\n| slowest | old (us) | new (us) | ratio |\n|---|---|---|---|")
    for cell in sorted(ratio, key=ratio.get, reverse=True)[:options.cells]:
        transport, ranks, collective, size = cell
        print(f"| {transport}, {ranks} ranks, {collective} of {size} B | {cells[cell][0]:.2f} | {cells[cell][1]:.2f} | "
              f"{ratio[cell]:.3f} |")


if __name__ == "__main__":
    main()
