#!/usr/bin/env python3
"""Measures the cost of strangers at a rank's tcp port: calls of two ranks, alone and with strangers, in alternation;
and whether ranks still meet.

  bench/strangers.py [--build build/release] [--rounds 9] [--seconds 1] [--bytes 1M] [--transport tcp] [--jobs 8]

Three kinds of strangers:
  idle   256 connections that send nothing
  flood  three processes that connect to the ranks' ports and close, as fast as they can
  busy   the same three processes at a port that is no rank's: the cost of their use of the cores

Prints a row for each kind: the median, over the rounds, of the time of a call with the strangers divided by the time
of a call alone in the same round; the least and the largest such ratio; and the same for the 95th percentiles.
Entrain's part of the cost of flood is flood divided by busy, which is the last row. On a machine with few cores three
busy processes take a large part of the time, so look at that row.

Then, while the flood is at their ports, --jobs jobs of two ranks with a key start, call once and end, one after the
other. Prints how many succeeded, and how long they took, compared with the same jobs alone and with busy processes."""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import tempfile
import time


def ports(count):
    """Returns `count` consecutive ports that were free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        try:
            held = []
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for each in held:
                each.close()


def idle(targets, stop, made):
    """Keeps 256 connections that send nothing at each port. Replaces a connection that is cut."""
    held = {}
    while not stop.is_set():
        for port in targets:
            mine = held.setdefault(port, [])
            for each in list(mine):
                try:
                    if each.recv(4096, socket.MSG_DONTWAIT) == b"":
                        raise OSError
                except BlockingIOError:
                    pass
                except OSError:
                    mine.remove(each)
                    each.close()
            while len(mine) < 256 and not stop.is_set():
                each = socket.socket()
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
                mine.append(each)
                made.value += 1
        time.sleep(0.05)


def flood(targets, stop, made):
    while not stop.is_set():
        for port in targets:
            for _ in range(16):
                each = socket.socket()
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
                each.close()
                made.value += 1


def call_time(options, targets):
    with tempfile.NamedTemporaryFile() as out:
        command = [os.path.join(options.build, "tools/entrain-perf"), "all_reduce", "-n", "2",
                   "--transport", options.transport, "--min-bytes", options.bytes, "--max-bytes", options.bytes,
                   "--budget", str(options.seconds), "--json", out.name]
        environment = dict(os.environ, ENTRAIN_PORTS=f"{targets[0]}-{targets[-1]}")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"strangers.py: {' '.join(command)} failed: {done.stderr.strip()[-600:]}")
        line = json.loads(open(out.name).readline())
        return line["median_us"], line["p95_us"]


def job_time(options, targets):
    """Returns the seconds from start to end of a job of two ranks that makes few calls, or None if it failed."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w") as key:
        key.write(os.urandom(32).hex())
        key.flush()
        environment = dict(os.environ, ENTRAIN_PORTS=f"{targets[0]}-{targets[-1]}", ENTRAIN_KEY_FILE=key.name,
                           ENTRAIN_TIMEOUT="30s")
        command = [os.path.join(options.build, "tools/entrain-perf"), "all_reduce", "-n", "2", "--transport",
                   options.transport, "--min-bytes", "8", "--max-bytes", "8", "--budget", "0.01"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"a job failed: {done.stderr.strip()[-300:]}", flush=True)
            return None
    return time.monotonic() - began


def beside(work, count, at, measure):
    """Returns the result of measure() with `count` processes of `work`, and how many connections per second they
    made."""
    stop = multiprocessing.Event()
    made = [multiprocessing.Value("q", 0, lock=False) for _ in range(count)]
    strangers = [multiprocessing.Process(target=work, args=(at, stop, each)) for each in made]
    for each in strangers:
        each.start()
    began = time.monotonic()
    try:
        result = measure()
        return result, sum(each.value for each in made) / (time.monotonic() - began)
    finally:
        stop.set()
        for each in strangers:
            each.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--bytes", default="1M")
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--jobs", type=int, default=8)
    options = parser.parse_args()

    targets = ports(4)
    bait = socket.socket()
    bait.bind(("127.0.0.1", 0))
    bait.listen(1024)
    elsewhere = [bait.getsockname()[1]]
    kinds = {"idle": (idle, 1, targets), "flood": (flood, 3, targets), "busy": (flood, 3, elsewhere)}
    ratios = {kind: [] for kind in kinds}
    alone = []
    rates = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, (work, count, at) in kinds.items():
            before = call_time(options, targets)
            times, rate = beside(work, count, at, lambda: call_time(options, targets))
            alone.append(before[0])
            ratios[kind].append([x / y for x, y in zip(times, before)])
            rates[kind].append(rate)
    ratios["flood / busy"] = [[x / y for x, y in zip(*pair)] for pair in zip(ratios["flood"], ratios["busy"])]

    print(f"{options.transport}, all_reduce of {options.bytes}, 2 ranks, {options.rounds} rounds of {options.seconds:g} s: "
          f"{statistics.median(alone):.0f} us alone")
    print("| strangers | connects/s | median of a call | least to largest | 95th percentile |")
    print("|---|---|---|---|---|")
    for kind, pairs in ratios.items():
        medians = [pair[0] for pair in pairs]
        rate = f"{statistics.median(rates[kind]):.0f}" if kind in rates else ""
        print(f"| {kind} | {rate} | {statistics.median(medians):.2f} | {min(medians):.2f} to {max(medians):.2f} | "
              f"{statistics.median(pair[1] for pair in pairs):.2f} |")

    if options.jobs > 0:
        def start_jobs():
            return [job_time(options, targets) for _ in range(options.jobs)]

        print(f"\n| a job of two ranks, {options.jobs} times | started | median, slowest (s) |")
        print("|---|---|---|")
        for name, took in (("alone", start_jobs()), ("flood", beside(flood, 3, targets, start_jobs)[0]),
                           ("busy", beside(flood, 3, elsewhere, start_jobs)[0])):
            good = [each for each in took if each is not None]
            times = f"{statistics.median(good):.2f}, {max(good):.2f}" if good else ""
            print(f"| {name} | {len(good)} of {options.jobs} | {times} |")


if __name__ == "__main__":
    main()
