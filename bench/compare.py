#!/usr/bin/env python3
"""Entrain (shm and tcp) and Gloo (tcp) side by side: interleaved size by size, medians over rounds.

Runs entrain-perf and gloo-bench of a build folder; of Gloo's algorithms the fastest counts. Prints a
table of medians in microseconds and how many times longer Gloo takes; --json FILE keeps every line that
the programs wrote, with "library" and "round" added.

A program that fails or hangs is named on standard error, with its exit code or the time it had, and
the rest is measured all the same. Exit code: 0 when all ran and no element was wrong, otherwise 1."""

import argparse
import collections
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

SIZES = ["8", "64", "512", "4K", "32K", "256K", "1M", "4M", "16M", "64M"]
NO_SIZE = "-"  # in the column of sizes: a barrier has none
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def to_bytes(size):
    return int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)


def how_it_ended(code):
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def measure(command, timeout):
    """The JSON lines that a program wrote, and what went wrong with it: one line, or None."""
    failure = None
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
        command = [*command, "--json", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
            if done.returncode != 0:
                said = "; ".join(done.stderr.strip().splitlines()) or "no message"
                failure = f"{shlex.join(command)}: {how_it_ended(done.returncode)}: {said}"
        except subprocess.TimeoutExpired:
            failure = f"{shlex.join(command)}: no end within {timeout} s"
        return complete_lines(pathlib.Path(file.name).read_text()), failure


def complete_lines(text):
    """JSON lines; a last one that its writer did not live to end is left out."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def sizes_of(options, collective):
    return [NO_SIZE] if collective == "barrier" else options.sizes.split(",")


def commands(options, collective, ranks, size):
    common = [collective, "-n", str(ranks), "--budget", str(options.budget)]
    if size != NO_SIZE:
        common += ["--min-bytes", size, "--max-bytes", size]
    for transport in options.transports.split(","):
        yield "entrain", [options.build / "tools/entrain-perf", *common, "--transport", transport], 60
    gloo = [options.build / "bench/gloo-bench", *common]
    if collective in ("all_reduce", "reduce_scatter"):
        # Busy-polling pairs never give their core away: hopeless when ranks share cores. They also
        # stop for ever in large transfers.
        busy = ranks <= options.cores and to_bytes(size) <= 4 << 20
        names = ["halving_doubling"] + (["halving_doubling_sync"] if busy else [])
        names += ["ring", "bcube"] if collective == "all_reduce" else []
        gloo += ["--algorithm", ",".join(names)]
    yield "gloo", [*gloo, "--timeout", "20"], 100


def run(options):
    lines, failures = [], 0
    for ranks in map(int, options.ranks.split(",")):
        for collective in options.collectives.split(","):
            for size in sizes_of(options, collective):
                for turn in range(options.rounds):
                    for library, command, timeout in commands(options, collective, ranks, size):
                        got, failure = measure(list(map(str, command)), timeout)
                        lines += [{"library": library, "round": turn, "wanted": size, **line} for line in got]
                        if failure is not None:
                            failures += 1
                            print(f"compare.py: {failure}", file=sys.stderr)
            print_table(lines, collective, ranks, options)
    return lines, failures


def print_table(lines, collective, ranks, options):
    times = collections.defaultdict(list)
    for line in lines:
        if line["collective"] == collective and line["ranks"] == ranks:
            column = line["algorithm"] if line["library"] == "gloo" else "entrain " + line["transport"]
            times[line["wanted"], line["library"], column].append(line["median_us"])
    ours = ["entrain " + transport for transport in options.transports.split(",")]
    ratios = ["gloo / " + name.split()[1] for name in ours]
    print(f"\n{collective}, {ranks} ranks, f32, median us")
    print("| size | " + " | ".join(ours) + " | gloo tcp (algorithm) | " + " | ".join(ratios) + " |")
    print("|---|" + "---|" * (2 * len(ours) + 1))
    for size in sizes_of(options, collective):
        gloo = [(statistics.median(values), name) for (wanted, library, name), values in times.items()
                if wanted == size and library == "gloo"]
        best, name = min(gloo, default=(None, ""))
        mine = [statistics.median(values) if (values := times[size, "entrain", column]) else None for column in ours]
        peer = "failed" if best is None else f"{best:.2f} ({name})"
        shown = ["failed" if one is None else f"{one:.2f}" for one in mine]
        quotients = ["-" if best is None or one is None else f"{best / one:.2f}" for one in mine]
        print(f"| {size} | " + " | ".join(shown) + f" | {peer} | " + " | ".join(quotients) + " |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"),
                        help="folder that holds tools/entrain-perf and bench/gloo-bench (%(default)s)")
    parser.add_argument("--ranks", default="2,4", help="rank counts (%(default)s)")
    parser.add_argument("--collectives", default="all_reduce,reduce_scatter,all_gather,broadcast,barrier,send_recv",
                        help="(%(default)s)")
    parser.add_argument("--transports", default="shm,tcp", help="Entrain's (%(default)s)")
    parser.add_argument("--sizes", default=",".join(SIZES), help="(%(default)s)")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of calls a program and size (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is repeated (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="write every line here")
    options = parser.parse_args()
    for program in ("tools/entrain-perf", "bench/gloo-bench"):
        if not (options.build / program).exists():
            parser.error(f"--build: {options.build / program} does not exist; is Gloo installed?")
    options.cores = len(os.sched_getaffinity(0))
    lines, failures = run(options)
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wrong = sum(line["wrong"] or 0 for line in lines if line["library"] == "entrain")
    if wrong:
        print(f"compare.py: {wrong} wrong elements", file=sys.stderr)
    if failures:
        print(f"compare.py: {failures} of the runs failed; see above", file=sys.stderr)
    return 1 if wrong or failures else 0


if __name__ == "__main__":
    sys.exit(main())
