#!/usr/bin/python3
"""Traces one exchange over a long way: how many bytes leave node 0, over time, between two nodes that cluster.sh emulates (as root; iproute2).

    bench/way_trace.py --out build/after.csv --label after way-bench all_reduce 67108864
    bench/way_trace.py --out build/plain.csv --label "4 plain sockets" plain-sockets 67108864 4
    bench/way_trace.py --read build/*.csv --picture build/trace.svg       # measures nothing

The program is one that wan.py runs: way-bench, plain-sockets, gloo-way. The trace is that of the later call with the median time. A sampler
on node 0 reads the bytes that its link has sent, every SAMPLE ms. The file has a line "# JSON" with the facts of the call, and rows of CSV:
the begin of an interval in ms since the call's begin, and the bytes that left in the interval. Headers of super-frames count, the headers
of their packets do not. So the line of the rate in the picture is that of payload, 1448 of 1514 bytes.

The link is idle in an interval if less than a tenth of what the rate allows left in it. The summary counts the idle time until the last
interval that is not idle: bytes were still to be sent then. The bound is the time of the bytes that a node must send, at the rate.
--picture draws a panel for each file, in their order. Files side by side in --read share the axis of time; "--read A B --read C D" draws two
axes, one below the other (matplotlib)."""
import argparse
import bisect
import csv
import datetime
import json
import os
import pathlib
import sys
import tempfile
import time

from wan import ROOT, check_cluster, run_cluster

COUNTER = "/sys/class/net/eth0/statistics/tx_bytes"
PAYLOAD = 1448 / 1514
IDLE = 0.1  # of the rate


def rate_of(text):
    """Returns the payload bytes that pass a link in a second."""
    return float(text[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[text[-4]] / 8 * PAYLOAD


def sample(period, path, command):
    """Becomes the command. On node 0 a child samples until the command has ended. It holds the command's stdout open until its file is
    complete."""
    parent = os.getpid()
    if os.environ["RANK"] == "0" and os.fork() == 0:
        counter = os.open(COUNTER, os.O_RDONLY)
        rows = []
        while os.getppid() == parent:
            rows.append((time.monotonic(), int(os.pread(counter, 32, 0))))
            time.sleep(period)
        pathlib.Path(path).write_text("".join(f"{moment:.6f} {count}\n" for moment, count in rows))
        os._exit(0)
    os.execvp(command[0], command)


def measure(options):
    """Returns the JSON line of the later calls, and the samples."""
    program, *words = options.command
    with tempfile.TemporaryDirectory() as folder:
        samples = pathlib.Path(folder, "samples")
        code, output = run_cluster(options.build, "--nodes", 2, "--rate", options.rate, "--delay", options.delay,
                                   sys.executable, "-B", pathlib.Path(__file__).resolve(), "--sample", options.sample_ms / 1e3, samples,
                                   options.build / "bench" / program, "--calls", options.calls, "--rate", options.rate, *words)
        if code != 0:
            sys.exit("way_trace.py: the program failed")
        rows = [line.split() for line in samples.read_text().splitlines()]
    line = next(line for line in map(json.loads, output.splitlines()) if line["call"] == "later")
    if "begun" not in line:
        sys.exit("way_trace.py: the program does not say when this call began")
    return line, [(float(moment), int(count)) for moment, count in rows]


def intervals(samples, begun, seconds, step):
    """Returns the bytes of each interval of `step` seconds, interpolated between samples."""
    moments = [moment for moment, _ in samples]

    def count_at(moment):
        i = min(max(bisect.bisect(moments, moment), 1), len(samples) - 1)
        (t0, n0), (t1, n1) = samples[i - 1], samples[i]
        return n0 + (n1 - n0) * min(max((moment - t0) / (t1 - t0), 0), 1)

    counts = [round(count_at(begun + i * step)) for i in range(int(seconds / step) + 2)]
    return [after - before for before, after in zip(counts, counts[1:])]


def write(path, facts, sent):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        file.write(f"# {json.dumps(facts)}\n")
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("ms", "bytes"))
        rows.writerows((f"{i * facts['step_ms']:g}", count) for i, count in enumerate(sent))


def read(path):
    """Returns the facts and the bytes of each interval."""
    with path.open(newline="") as file:
        facts = json.loads(file.readline().removeprefix("# "))
        return facts, [int(row["bytes"]) for row in csv.DictReader(file)]


def idle_intervals(facts, sent):
    """Returns the numbers of the intervals in which the link was idle although bytes were still to be sent."""
    least = IDLE * rate_of(facts["rate"]) * facts["step_ms"] / 1e3
    last = max((i for i, count in enumerate(sent) if count >= least), default=0)
    return [i for i in range(last) if sent[i] < least]


def idle_seconds(facts, sent):
    return len(idle_intervals(facts, sent)) * facts["step_ms"] / 1e3


def summary(traces):
    texts = ["| trace | call, s | bound, s | idle although bytes were to be sent, s | sent, MB | of them needed |", "|---" * 6 + "|"]
    for facts, sent in traces:
        cells = (facts["label"], f"{facts['seconds']:.3f}", f"{facts['bound']:.3f}", f"{idle_seconds(facts, sent):.3f}", f"{sum(sent) / 1e6:.1f}",
                 f"{100 * facts['sent_bytes'] / sum(sent):.0f} %")
        texts.append("| " + " | ".join(cells) + " |")
    return "\n".join(texts) + "\n"


def draw(groups, path):
    try:
        import matplotlib
    except ImportError:
        sys.exit("way_trace.py: --picture needs matplotlib")
    matplotlib.use("svg")
    # Text stays text, and the file has no date: a picture that is drawn again differs only where the data do.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "way_trace", "font.size": 9, "font.family": "DejaVu Sans"})
    import matplotlib.pyplot as plt

    heights = [0.45 + 1.15 * len(traces) for traces in groups]  # inches
    heights[0] += 0.25  # the legend
    figure = plt.figure(figsize=(8.5, sum(heights)), layout="constrained", facecolor="white")
    parts = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)
    for (part,), traces in zip(parts, groups):
        axes = part.subplots(len(traces), 1, sharex=True, squeeze=False)
        for (axis,), (facts, sent) in zip(axes, traces):
            panel(axis, facts, sent)
        axes[0][0].set_xlim(0, 1.02 * max(facts["seconds"] for facts, _ in traces))
        axes[-1][0].set_xlabel("seconds since the call's begin")
        if traces is groups[0]:
            axes[0][0].legend(loc="lower left", bbox_to_anchor=(0, 1.26), borderpad=0.2, borderaxespad=0, ncol=4, frameon=False, fontsize=8.5)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


def panel(axis, facts, sent):
    step, rate = facts["step_ms"] / 1e3, rate_of(facts["rate"]) * 8e-9
    # There is one edge where the speed changes: a long idle time is one interval, so the picture is small.
    speeds = [round(count * 8e-9 / step * 50) / 50 for count in sent]
    edges = [i for i in range(len(speeds)) if i == 0 or speeds[i] != speeds[i - 1]]
    axis.stairs([speeds[i] for i in edges], [step * i for i in (*edges, len(speeds))], fill=True, color="#4c8fcb", linewidth=0,
                label="payload that leaves node 0")
    axis.axhline(rate, color="#444444", linewidth=0.8, linestyle="--", label="rate of the link")
    axis.axvline(facts["bound"], color="#2a8a3e", linewidth=1.4, label="bound: the bytes at the rate")
    axis.axvline(facts["seconds"], color="#c0392b", linewidth=1.4, label="end of the call")
    axis.set(ylim=(0, 1.25 * rate), ylabel="Gbit/s")
    title = f"{facts['label']}: {facts['seconds']:.2f} s; link idle although bytes were to be sent: {idle_seconds(facts, sent):.2f} s"
    axis.set_title(title, loc="left", fontsize=9)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def arguments():
    if sys.argv[1:2] == ["--sample"]:
        sample(float(sys.argv[2]), sys.argv[3], sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of the links (%(default)s)")
    parser.add_argument("--delay", type=int, default=100, help="round trip, ms (%(default)s)")
    parser.add_argument("--calls", type=int, default=3, help="later calls, of which the median is traced (%(default)s)")
    parser.add_argument("--sample-ms", type=float, default=2, help="between two samples (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=5, help="of an interval in the file (%(default)s)")
    parser.add_argument("--label", help="of the trace (the command)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="folder (build/release)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "trace.csv", help="file of the trace (build/trace.csv)")
    parser.add_argument("--read", type=pathlib.Path, nargs="+", action="append", metavar="FILE", help="traces of earlier runs: print their summary")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="draw the traces as SVG")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM ARGUMENTS", help="a program of BUILD/bench that wan.py runs")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.read and options.command:
        parser.error("--read measures nothing: it takes no program")
    if not options.read:
        if not options.command:
            parser.error("a program is missing, as: way-bench all_reduce 67108864")
        check_cluster(options.build, ("delay-frames", options.command[0]))
    return options


def main():
    options = arguments()
    groups = options.read
    if not groups:
        line, samples = measure(options)
        command = " ".join(options.command)
        facts = {"label": options.label or command, "command": command, "rate": options.rate, "delay_ms": options.delay, "step_ms": options.step_ms,
                 "date": datetime.date.today().isoformat()}
        facts.update((name, line[name]) for name in ("seconds", "least", "most", "bound", "sent_bytes"))
        write(options.out, facts, intervals(samples, line["begun"], line["seconds"], options.step_ms / 1e3))
        groups = [[options.out]]
    groups = [[read(path) for path in paths] for paths in groups]
    print(summary([trace for traces in groups for trace in traces]), end="")
    if options.picture:
        draw(groups, options.picture)


if __name__ == "__main__":
    main()
