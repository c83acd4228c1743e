#!/usr/bin/python3
"""Compares runs of entrain-train: a picture of their losses, a table, and a sample.

usage: plot_loss.py PICTURE RUN...     RUN.jsonl and RUN.json are what --log and --summary wrote
"""
import json
import os
import sys
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)


def read_run(name):
    """Returns the summary, and for each step the tokens, the mean training loss over replicas, and
    the validation loss or None."""
    with open(name + ".json", encoding="utf-8") as file:
        summary = json.load(file)
    steps = defaultdict(list)
    with open(name + ".jsonl", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            steps[record["step"]].append(record)
    curve = []
    for _, records in sorted(steps.items()):
        loss = sum(r["loss"] for r in records) / len(records)
        curve.append((records[0]["tokens"], loss, records[0].get("val_loss")))
    return summary, curve


def smooth(values, keep=0.95):
    """Returns an exponential mean without the bias of its start."""
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        out.append(mean / weight)
    return out


def draw(picture, runs):
    figure, axes = plt.subplots(figsize=(9, 5.5))
    for summary, curve in runs:
        megabytes = [tokens / 1e6 for tokens, _, _ in curve]
        line, = axes.plot(megabytes, smooth([loss for _, loss, _ in curve]), linewidth=1.2,
                          label=f"{summary['method']}, training")
        seen = [(t / 1e6, val) for t, _, val in curve if val is not None]
        seen.append((summary["tokens"] / 1e6, summary["val_loss"]))
        axes.plot(*zip(*seen), "o", markersize=4, color=line.get_color(),
                  label=f"{summary['method']}, validation (end {summary['val_loss']:.3f})")
    entropy = runs[0][0]["unigram_entropy"]
    axes.axhline(entropy, color="gray", linestyle="--", linewidth=1, label="counting bytes alone")
    axes.set_xlabel("bytes of text read by all ranks, millions")
    axes.set_ylabel("loss, nats per byte")
    axes.set_ylim(top=entropy * 1.15)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def table(runs):
    rows = [
        ("validation loss, nats per byte", lambda s: f"{s['val_loss']:.4f}"),
        ("counting bytes alone", lambda s: f"{s['unigram_entropy']:.4f}"),
        ("bytes of text read", lambda s: f"{s['tokens']:,}"),
        ("seconds", lambda s: f"{s['wall_s']:.1f}"),
        ("of them waiting for others", lambda s: f"{s['exposed_comm_s']:.1f}"),
        ("MB sent within a replica, per rank", lambda s: f"{s['bytes_sent_shard'] / 1e6:,.1f}"),
        ("MB sent across replicas, per rank", lambda s: f"{s['bytes_sent_sync'] / 1e6:,.1f}"),
    ]
    print(f"{'':36}" + "".join(f"{summary['method']:>14}" for summary, _ in runs))
    for name, show in rows:
        print(f"{name:36}" + "".join(f"{show(summary):>14}" for summary, _ in runs))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    picture = sys.argv[1]
    try:
        runs = [read_run(name) for name in sys.argv[2:]]
        draw(picture, runs)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"plot_loss.py: {error}")
    print()
    table(runs)
    first, base = runs[0][0], runs[-1][0]
    if len(runs) == 2 and base["bytes_sent_sync"] > 0:
        loss = first["val_loss"] / base["val_loss"]
        sent = first["bytes_sent_sync"] / base["bytes_sent_sync"]
        print(f"\n{first['method']} / {base['method']}: validation loss {loss:.4f} ({100 * (loss - 1):+.2f} %), "
              f"bytes_sent_sync {sent:.4f}")
    print(f"\nsample of the model that {first['method']} trained:\n{first['sample']}")
    print(f"\nloss curves: {os.path.abspath(picture)}")


if __name__ == "__main__":
    main()
