"""Runs of the model that the experiments share, and the compact copy of their results in
examples/results. The copy has runs.csv (flags and summaries), curves.csv.gz (training losses) and
decisions.csv.gz (EDiT's decisions on each layer at each exchange)."""

import argparse
import ast
import csv
import gzip
import io
import re
import shlex
import statistics

from runs import DEBUG, MODEL, Runs

RANKS, STEPS = 4, 768
BLOCK = 16  # kept training losses are means over this many steps
# The fields of a summary that the tables use, or that a reader may want to see.
FIELDS = (
    *("params", "steps", "tokens", "wall_s", "tokens_per_s", "final_train_loss", "val_loss"),
    *("bytes_sent_sync", "syncs", "rejections", "replica_steps", "idle_share"),
    *("replica_microbatches", "dropped_microbatches"),
)
DECISION = ("exchange", "layer", "replica", "norm", "z", "limit", "accepted", "weight", "clip")
LINE = re.compile(
    r"edit: rendezvous (\d+), layer (\d+), replica (\d+): norm (\S+), z (\S+) of (\S+), (\w+), "
    r"weight (\S+), clip factor ([^\s,;]+)"
)


def block_means(records, block=BLOCK, without=None):
    """Returns [mean training loss over `block` steps and over all replicas except `without`]."""
    by_block = {}
    for record in records:
        if record["replica"] != without:
            by_block.setdefault((record["step"] - 1) // block, []).append(record["loss"])
    return [statistics.fmean(by_block[at]) for at in sorted(by_block)]


def decision(texts):
    """Returns a dictionary with the keys of DECISION, whose values are converted from texts."""
    row = {field: int(texts[field]) for field in DECISION[:3]}
    row |= {field: float(texts[field]) for field in ("norm", "z", "limit", "weight", "clip")}
    return row | {"accepted": texts["accepted"] == "accepted"}


def parse_decisions(output):
    """Returns the dictionaries of `decision` for the lines that --is-debug prints."""
    found = []
    for words in LINE.findall(output):
        found.append(decision(dict(zip(DECISION, words))))
    return sorted(found, key=lambda row: [row[field] for field in DECISION[:3]])


class TextRuns(Runs):
    """Runs on text. `flags` is a text with the flags that differ from the common flags."""

    def __init__(self, args, total=0):
        super().__init__(args, total)
        self.used = {}  # {run: {(block, without)}}: the runs that the tables use

    def get(self, name, flags, expected_s=8.0, steps=STEPS, ranks=RANKS, fault=""):
        """fault is the value of ENTRAIN_FAULT on the ranks."""
        environment = {"ENTRAIN_FAULT": fault} if fault else {}
        besides = [f"ENTRAIN_FAULT={fault}"] if fault else []
        words = f"{MODEL} --steps {steps} {flags}".split()
        summary = super().get(name, words, expected_s, ranks, environment, besides)
        if summary is not None:
            self.used.setdefault(name, {(BLOCK, None)})
        return summary

    def curve(self, name, block=BLOCK, without=None):
        self.used[name].add((block, without))
        return block_means(self.records(name), block, without)

    def decisions(self, name):
        return parse_decisions(self.path(name, ".debug").read_text())


def text_of(path):
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text(encoding="utf-8")


def rows_of(path):
    return list(csv.DictReader(io.StringIO(text_of(path)))) if path.exists() else []


class KeptRuns(TextRuns):
    """Reads the runs of the kept copy, and makes no runs. A run counts only if its flags are those
    of the experiment."""

    def __init__(self, folder):
        super().__init__(argparse.Namespace(out=folder, tables=True))
        self.kept = {row["run"]: row for row in rows_of(folder / "runs.csv")}
        self.curves, self.decided = {}, {}
        for row in rows_of(folder / "curves.csv.gz"):
            key = row["run"], int(row["block"]), row["without"]
            self.curves[key] = [float(loss) for loss in row["losses"].split()]
        for row in rows_of(folder / "decisions.csv.gz"):
            self.decided.setdefault(row["run"], []).append(decision(row))

    def has(self, name, flags, besides=()):
        return name in self.kept and self.kept[name]["flags"] == shlex.join([*flags, *besides])

    def summary(self, name):
        row = self.kept[name]
        return {field: ast.literal_eval(row[field]) for field in FIELDS if row[field]}

    def curve(self, name, block=BLOCK, without=None):
        return self.curves[name, block, "" if without is None else str(without)]

    def decisions(self, name):
        return self.decided[name]


def rounded(value):
    """Rounds floats to six digits; no table shows more."""
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def csv_text(head, rows):
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return file.getvalue()


def keep(runs, folder):
    """Writes the copy of the runs that the tables use, with the curves that they read."""
    summaries, curves, decisions = [], [], []
    for name, wanted in sorted(runs.used.items()):
        summary = rounded(runs.summary(name))
        words = shlex.split(runs.path(name, ".flags").read_text())
        at = words.index("--data")
        summaries.append([name, shlex.join(words[:at] + words[at + 2 :])])
        summaries[-1] += [summary.get(field, "") for field in FIELDS]
        records = runs.records(name)
        for block, without in sorted(wanted, key=str):
            losses = " ".join(f"{loss:.4f}" for loss in block_means(records, block, without))
            curves.append([name, block, "" if without is None else without, losses])
        if DEBUG in words:
            for row in runs.decisions(name):
                numbers = [float(f"{row[field]:.4g}") for field in ("norm", "z", "limit")]
                decisions.append([name, row["exchange"], row["layer"], row["replica"], *numbers])
                verdict = "accepted" if row["accepted"] else "rejected"
                decisions[-1] += [verdict, round(row["weight"], 4), round(row["clip"], 4)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.csv").write_text(csv_text(["run", "flags", *FIELDS], summaries))
    for name, head, rows in (
        ("curves", ["run", "block", "without", "losses"], curves),
        ("decisions", ["run", *DECISION], decisions),
    ):
        packed = gzip.compress(csv_text(head, rows).encode(), 9, mtime=0)
        (folder / f"{name}.csv.gz").write_bytes(packed)
