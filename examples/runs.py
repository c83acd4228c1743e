"""Runs of entrain-train that are made once. Shared by experiments.py and compare.py.

A run NAME leaves NAME.json (its summary), NAME.jsonl (its records) and, last of all, NAME.flags
(its inputs) in one folder. It is not made again while NAME.flags is unchanged.

examples/results has a compact copy of the runs of experiments.py: runs.csv (flags and summaries, and how often the parts of
EDiT's penalty acted), curves.csv.gz (training losses) and decisions.csv.gz (EDiT's decisions on each layer at each
exchange, of the runs of which a table needs each single one)."""

import argparse
import ast
import csv
import functools
import gzip
import io
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

import tables

# A model and batches that are so small that some hundred runs take minutes.
MODEL = "--hidden-size 48 --layers 2 --heads 3 --seq-length 64 --batch-size 4 --val-batches 256"
LAUNCHER, TRAINER = "tools/entrain-run", "examples/trainer/entrain-train"
TEXT = pathlib.Path("/usr/share/dictd/gcide.dict.dz")  # of Debian's dict-gcide
TOP = pathlib.Path(__file__).resolve().parent.parent
DEBUG = "--is-debug"  # the output of a run with this flag is kept as NAME.debug
LONGEST_S = 600
LEFT_OUT = 75  # exit code: there was no time for all runs


class RunFailed(Exception):
    """A run that gave no result: the command, how it ended, and its output."""

    def __init__(self, words, how, output):
        super().__init__(f"{how} of\n  {shlex.join(words)}")
        self.words, self.how, self.output = words, how, output


def end_group(process):
    """Asks the program and the processes in its session to end, then kills them."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


class Runs:
    """Makes missing runs, one after the other, and reads existing ones."""

    def __init__(self, args, total=0):
        """args.build, args.data and args.out are paths. A run that would end after args.seconds is not begun (0: no
        limit). If args.tables is true, no run is made. total is the number of runs (0: not known)."""
        self.args, self.total, self.seen = args, total, 0
        self.left_out = set()  # names of the runs that are still to be made
        self.began = time.monotonic()
        # If SIGTERM ends this program, the program must also end the ranks, because they are in a session of their
        # own.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self.say = lambda line: print(line, flush=True)

    def path(self, name, ending):
        return self.args.out / (name + ending)

    def words(self, name, flags, ranks, program=()):
        program = program or [self.args.build / TRAINER, "--data", self.args.data]
        words = [self.args.build / LAUNCHER, "-n", ranks, "--", *program, *flags]
        words += ["--log", self.path(name, ".jsonl"), "--summary", self.path(name, ".json")]
        return [str(word) for word in words]

    def settings(self, flags, besides):
        return shlex.join([*flags, "--data", str(self.args.data), *besides]) + "\n"

    def has(self, name, flags, besides=()):
        kept = self.path(name, ".flags")
        return kept.exists() and kept.read_text() == self.settings(flags, besides)

    def get(
        self,
        name,
        flags,
        expected_s=8.0,
        ranks=4,
        environment=None,
        besides=(),
        program=(),
        make=None,
    ):
        """Returns the summary of a run. Makes the run if it does not exist. Returns None if there was no time for the run.
        flags are words. environment has additional variables. besides has words for the inputs other than flags and text.
        program is the command of a rank, if it is not entrain-train on the text. make makes a run in another way, and
        returns its summary. Throws RunFailed."""
        self.seen += 1
        if not self.has(name, flags, besides):
            spent = time.monotonic() - self.began
            if self.args.tables or (self.args.seconds and spent + expected_s > self.args.seconds):
                self.left_out.add(name)
                return None
            place = f"{self.seen}/{self.total}" if self.total else f"{self.seen}"
            self.say(f"[{place}] {name}: {shlex.join(flags)}")
            began = time.monotonic()
            self.path(name, ".flags").unlink(missing_ok=True)
            longest_s = max(LONGEST_S, 8 * expected_s)
            if make:
                self.path(name, ".json").write_text(json.dumps(make(longest_s)))
                self.path(name, ".jsonl").write_text("")
            else:
                words = self.words(name, flags, ranks, program)
                output = self.make(words, environment or {}, longest_s)
                if DEBUG in flags:
                    self.path(name, ".debug").write_text(output)
            self.path(name, ".flags").write_text(self.settings(flags, besides))
            now = time.monotonic()
            self.say(f"    {now - began:.1f} s; {(now - self.began) / 60:.1f} min so far")
        return self.summary(name)

    def summary(self, name):
        with open(self.path(name, ".json"), encoding="utf-8") as file:
            return json.load(file)

    def make(self, words, environment, longest_s=LONGEST_S):
        """Runs the program, and returns its output. Throws RunFailed."""
        # One BLAS thread per process, because the ranks already share the cores.
        alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            words,
            env={**os.environ, **alone, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=longest_s)[0]
        except BaseException as error:  # even after an interrupt no process may be left behind
            end_group(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output = process.communicate()[0]
            raise RunFailed(words, f"no end within {longest_s:g} s", output) from None
        if process.returncode != 0:
            raise RunFailed(words, f"exit code {process.returncode}", output)
        return output

    def records(self, name):
        with open(self.path(name, ".jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    model = names[0] if names else platform.machine()
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def add_arguments(parser, out):
    """Adds the flags of every command that makes runs. `out` is the folder within build/ for
    results."""
    paths = {
        "build": (TOP / "build/release", "with the programs"),
        "data": (TEXT, "text, plain or gzip; by default that of Debian's dict-gcide"),
        "out": (TOP / "build" / out, "for results"),
    }
    for name, (default, text) in paths.items():
        parser.add_argument(
            f"--{name}", type=pathlib.Path, default=default, help=f"{text} (%(default)s)"
        )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0,
        help="begin no run that would end later; call again for the rest",
    )
    parser.add_argument(
        "--tables", action="store_true", help="make no runs, only tables of those that are there"
    )


def check_paths(parser, args):
    """Ends the program with a line if a path does not exist. Makes the folder for results."""
    for needed in (args.data, args.build / LAUNCHER, args.build / TRAINER):
        if not needed.exists():
            parser.error(f"there is no {needed}")
    args.out.mkdir(parents=True, exist_ok=True)


# ---- Runs of experiments.py, and the copy of their results

RANKS, STEPS = 4, 768
BLOCK = 16  # kept training losses are means over this many steps
# The fields of a summary that the tables use, or that a reader may want to see.
FIELDS = (
    *("params", "steps", "tokens", "wall_s", "tokens_per_s", "final_train_loss", "val_loss"),
    *("bytes_sent_sync", "syncs", "rejections", "replica_steps", "idle_share"),
    *("replica_microbatches", "dropped_microbatches", "storm"),
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
    """Runs on text. `flags` is a text with the flags that differ from the common flags. A run that the kept copy has with
    the same flags is read from there, and not made again."""

    def __init__(self, args, total=0, kept=None):
        super().__init__(args, total)
        self.kept, self.found_there = kept, set()  # KeptRuns or None; names of the runs that it has
        self.used = {}  # {run: {(block, without)}}: the runs that the tables use
        self.each, self.counted = set(), set()  # names of the runs of which they need each decision, and counts of them

    def get(
        self, name, flags, expected_s=8.0, steps=STEPS, ranks=RANKS, fault="", model=MODEL, **how
    ):
        """fault is the value of ENTRAIN_FAULT on the ranks."""
        environment = {**how.pop("environment", {}), **({"ENTRAIN_FAULT": fault} if fault else {})}
        besides = [*how.pop("besides", ()), *([f"ENTRAIN_FAULT={fault}"] if fault else [])]
        flags = f"{model} --steps {steps} {flags}".split()
        summary = super().get(name, flags, expected_s, ranks, environment, besides, **how)
        if summary is not None:
            self.used.setdefault(name, {(BLOCK, None)})
        return summary

    def in_torch(self):
        """Returns the arguments of `get` for torch_gpt.py."""
        if self.args.tables:
            return {}
        library = self.args.build / "lib/api/libentrain.so"
        environment = {"PYTHONPATH": str(TOP / "python"), "ENTRAIN_LIBRARY": str(library)}
        program = [self.args.python, TOP / "examples/torch_gpt.py", "--data", self.args.data]
        return {"program": program, "environment": environment}

    def storm(self, name, flags, expected_s):
        """Returns the summary of a job of tests/storm.py and of the undisturbed one."""

        def make(longest_s):
            words = [sys.executable, TOP / "tests/storm.py", "--train", self.args.build / TRAINER]
            words += ["--data", self.args.data, *flags.split()]
            output = self.make([str(word) for word in words], {}, longest_s)
            rows = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("| ")]
            row = dict(zip(rows[0], rows[-1]))
            kills = int(row["kills / stops / cuts / holder"].split(" / ")[0])
            return {"storm": {"kills": kills, "loss": float(row["loss"].split()[0]), "equal": row["equal"]}}

        summary = Runs.get(self, name, flags.split(), expected_s, besides=["storm.py"], make=make)
        if summary is not None:
            self.used.setdefault(name, set())
        return summary

    def has(self, name, flags, besides=()):
        if self.kept and self.kept.has(name, flags, besides):
            self.found_there.add(name)
            return True
        return super().has(name, flags, besides)

    def flags(self, name):
        """Returns the words of a run that say what it was: flags and conditions, without the text's path."""
        if name in self.found_there:
            return shlex.split(self.kept.rows[name]["flags"])
        words = shlex.split(self.path(name, ".flags").read_text())
        at = words.index("--data")
        return words[:at] + words[at + 2 :]

    def summary(self, name):
        return self.kept.summary(name) if name in self.found_there else super().summary(name)

    def curve(self, name, block=BLOCK, without=None):
        self.used[name].add((block, without))
        if name in self.found_there:
            return self.kept.curve(name, block, without)
        return block_means(self.records(name), block, without)

    def decisions(self, name):
        self.each.add(name)
        if name in self.found_there:
            return self.kept.decisions(name)
        return parse_decisions(self.path(name, ".debug").read_text())

    def acted(self, name):
        """Returns what tables.acted returns for the decisions of the run."""
        self.counted.add(name)
        if name in self.found_there:
            return self.kept.acted(name)
        return tables.acted(parse_decisions(self.path(name, ".debug").read_text()))


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
        self.rows = {row["run"]: row for row in rows_of(folder / "runs.csv")}
        self.folder = folder

    @functools.cached_property
    def curves(self):
        return {
            (row["run"], int(row["block"]), row["without"]): [
                float(loss) for loss in row["losses"].split()
            ]
            for row in rows_of(self.folder / "curves.csv.gz")
        }

    @functools.cached_property
    def decided(self):
        found = {}
        for row in rows_of(self.folder / "decisions.csv.gz"):
            found.setdefault(row["run"], []).append(decision(row))
        return found

    def has(self, name, flags, besides=()):
        return name in self.rows and self.rows[name]["flags"] == shlex.join([*flags, *besides])

    def summary(self, name):
        row = self.rows[name]
        return {field: ast.literal_eval(row[field]) for field in FIELDS if row.get(field)}

    def curve(self, name, block=BLOCK, without=None):
        return self.curves[name, block, "" if without is None else str(without)]

    def decisions(self, name):
        return self.decided[name]

    def acted(self, name):
        return ast.literal_eval(self.rows[name]["acted"])


def rounded(value):
    """Rounds floats to eight digits, so that rounding again in the tables changes none of their digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


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
        words = runs.flags(name)
        summaries.append([name, shlex.join(words)])
        summaries[-1] += [summary.get(field, "") for field in FIELDS]
        summaries[-1].append(rounded(runs.acted(name)) if name in runs.counted else "")
        for block, without in sorted(wanted, key=str):
            losses = " ".join(f"{loss:.4f}" for loss in runs.curve(name, block, without))
            curves.append([name, block, "" if without is None else without, losses])
        if name in runs.each:
            for row in runs.decisions(name):
                numbers = [float(f"{row[field]:.4g}") for field in ("norm", "z", "limit")]
                decisions.append([name, row["exchange"], row["layer"], row["replica"], *numbers])
                verdict = "accepted" if row["accepted"] else "rejected"
                decisions[-1] += [verdict, round(row["weight"], 4), round(row["clip"], 4)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.csv").write_text(csv_text(["run", "flags", *FIELDS, "acted"], summaries))
    for name, head, rows in (
        ("curves", ["run", "block", "without", "losses"], curves),
        ("decisions", ["run", *DECISION], decisions),
    ):
        packed = gzip.compress(csv_text(head, rows).encode(), 9, mtime=0)
        (folder / f"{name}.csv.gz").write_bytes(packed)
