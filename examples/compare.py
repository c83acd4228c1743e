#!/usr/bin/env python3
"""Compares methods of entrain-train with optimizers at equal tokens, each with several seeds.

examples/compare.sh [OPTIONS] [-- FLAGS]     FLAGS go to every run of entrain-train

Without FLAGS the model and the batches are so small that a run takes seconds. If FLAGS contain
--task digits, they must give all settings. Names of methods and optimizers are those of
entrain-train; --variant adds methods. "+wsam" or "+wsam-coupled" after an optimizer's name adds
sharpness-aware steps (--wsam decoupled or coupled). The more specific flags win: --method-flags,
then a variant's, then --optimizer-flags, then FLAGS.

Makes OUT/report.html, a page that needs no other file, OUT/report.csv with a row per run, and
OUT/curves.csv. A run in OUT/runs of the same flags, text and programs is not made again. If a run
fails, it is reported, the others continue, and the exit code is 1. It is 75 if --seconds left some
runs out. Times are meaningful on a quiet machine only."""

import argparse
import csv
import datetime
import hashlib
import itertools
import json
import pathlib
import re
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import compare_tables as tables  # noqa: E402  (the path comes first)
from compare_plan import CONDITIONS, BadUsage, Plan, given  # noqa: E402
from runs import (  # noqa: E402
    LAUNCHER,
    LEFT_OUT,
    TRAINER,
    RunFailed,
    Runs,
    add_arguments,
    check_paths,
    machine,
)


def program(build):
    """Returns a text with the version and a hash that differs between builds."""
    hashed = hashlib.sha256()
    for file in [build / LAUNCHER, build / TRAINER, build / "lib/api/libentrain.so"]:
        hashed.update(file.read_bytes())
    stated = re.search(r"^Version: (\S+)", (build / "lib/api/entrain.pc").read_text(), re.M)
    return f"Entrain {stated[1]}, programs {hashed.hexdigest()[:12]}"


def reason_of(failed):
    last = [line for line in failed.output.splitlines() if line.strip()][-8:]
    return "\n".join([f"{failed.how}:", *last, shlex.join(map(str, failed.words))])


def besides(plan, programs):
    """Returns the inputs other than flags on which results depend, as words."""
    text = hashlib.sha256(plan.args.data.read_bytes()).hexdigest()[:12]
    words = [f"{key}={value}" for key, value in sorted(plan.environment().items())]
    return [*words, f"text={text}", f"programs={programs}"]


class Progress:
    """Shows the progress: on a terminal with a bar (tqdm), otherwise by the lines that `runs` prints."""

    def __init__(self, runs, missing):
        self.bar = None
        if sys.stderr.isatty() and missing:
            from tqdm import tqdm  # a log needs no progress bar

            self.bar = tqdm(total=missing, unit="run", dynamic_ncols=True)
            runs.say = lambda line: None
        self.say = print if self.bar is None else self.bar.write

    def begin(self, run):
        if self.bar is not None:
            self.bar.set_description(run.name)

    def end(self):
        if self.bar is not None:
            self.bar.update()

    def close(self):
        if self.bar is not None:
            self.bar.close()


def make_all(plan, wanted, programs):
    """Makes missing runs, and sets each run's summary or reason. Removes from `wanted` the runs whose
    rate is not the best. Returns the number of runs that were left for another call."""
    args = argparse.Namespace(**{**vars(plan.args), "out": plan.args.out / "runs"})
    args.out.mkdir(exist_ok=True)
    runs = Runs(args, len(wanted))
    common = besides(plan, programs)
    words = {run.name: [f"ranks={run.ranks}", *common] for run in wanted}
    missing = [run for run in wanted if not runs.has(run.name, run.flags, words[run.name])]
    progress, longest = Progress(runs, 0 if args.tables else len(missing)), {}
    for run in list(wanted):
        away = tables.tuned_away(run, wanted, plan.tune)
        if away:
            wanted.remove(run)
        elif away is None:  # no rate has been chosen yet
            runs.left_out.add(run.name)
        elif run in missing:
            progress.begin(run)
            make(runs, run, plan, words[run.name], longest, progress)
        else:
            run.summary = runs.get(run.name, run.flags, besides=words[run.name])
        if run in missing and (away or run.summary or run.reason):
            progress.end()
        if run.summary:
            run.points = tables.curve(runs.records(run.name))
    progress.close()
    return len(runs.left_out)


def make(runs, run, plan, words, longest, progress):
    """Makes one run. `longest` is {number of ranks: the longest time of a run so far, in seconds}."""
    expected_s = longest.get(run.ranks, 10.0)
    environment = plan.environment()
    try:
        run.summary = runs.get(run.name, run.flags, expected_s, run.ranks, environment, words)
        if run.summary:
            longest[run.ranks] = max(longest.get(run.ranks, 0), run.summary["wall_s"] + 2)
    except RunFailed as failed:
        run.reason = reason_of(failed)
        progress.say(f"FAILED {run.name}: {run.reason}")


def targets(args, wanted, tune):
    """Returns {number of ranks: target loss}. The report states when each run reaches this loss."""
    found = {}
    for ranks in dict.fromkeys(run.ranks for run in wanted):
        best = tables.entries([run for run in wanted if run.ranks == ranks], tune)
        usual = tables.usual_target([run for entry in best for run in entry.runs])
        found[ranks] = usual if args.target_loss is None else args.target_loss
    return found


def write_csv(args, wanted, target):
    rows = []
    for run in wanted:
        row = {"run": run.name, "status": run.status(), "entry": run.method, "ranks": run.ranks}
        row |= {"optimizer": run.optimizer, "lr": run.rate, "seed": run.seed}
        row |= {"flags": shlex.join(run.flags), "reason": run.reason}
        for key, value in (run.summary or {}).items():
            row[key] = json.dumps(value) if isinstance(value, list) else value
        if run.summary:
            row |= {"target_loss": target[run.ranks], **tables.costs(run, target[run.ranks])}
        rows.append(row)
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with open(args.out / "report.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=fields)
        writer.writeheader()
        writer.writerows(rows)
    with open(args.out / "curves.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "tokens", "seconds", "loss"])
        for run in wanted:
            for point in run.points:
                cells = (f"{point.tokens:.1f}", f"{point.seconds:.4f}", f"{point.loss:.6f}")
                writer.writerow([run.name, *cells])


def about(plan, wanted, programs):
    """Returns the report's facts about itself: [(topic, text)]."""
    args = plan.args
    environment = [f"{key}={value}" for key, value in sorted(plan.environment().items())]
    sleeps = [word for flag in CONDITIONS for word in given(args, flag)]
    common = [word for words in plan.common.values() for word in words]
    read = next((run.summary["tokens"] for run in wanted if run.summary), None)
    shape = next((run.summary["params"] for run in wanted if run.summary), None)
    rows = [
        ("date", datetime.date.today().isoformat()),
        ("machine", machine()),
        ("programs", programs),
        ("command", command(sys.argv[1:])),
        ("data", str(args.data)),
        ("every run", shlex.join([*plan.amount, *common])),
        ("conditions", shlex.join(sleeps + environment) or "none emulated"),
    ]
    if read:
        rows.insert(5, ("model", f"{shape:,} parameters; {read:,} tokens a run"))
    for name, (method, flags) in plan.variants.items():
        rows.append((f"variant {name}", shlex.join([method, *itertools.chain(*flags.values())])))
    for what, flags in (("method", plan.of_method), ("optimizer", plan.of_optimizer)):
        for name, own in flags.items():
            rows.append(
                (f"{what} {name}", shlex.join(word for words in own.values() for word in words))
            )
    return rows


def command(words):
    """Returns the command as it was called, without the flags that limit the work of one call."""
    kept = list(words)
    if "--tables" in kept:
        kept.remove("--tables")
    if "--seconds" in kept:
        at = kept.index("--seconds")
        del kept[at : at + 2]
    return shlex.join(["examples/compare.sh", *kept])


def parse(words):
    parser = argparse.ArgumentParser(
        prog="compare.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--methods", metavar="A,B", help="default: all that entrain-train has")
    add(
        "--variant",
        metavar="NAME=METHOD FLAGS",
        action="append",
        default=[],
        help="one more method: another with flags of its own; may be repeated",
    )
    add("--optimizers", metavar="A,B", default="adamw", help="(%(default)s)")
    add("--seeds", metavar="N", default="3", help="1 to N (%(default)s)")
    add(
        "--tune-seeds",
        metavar="N",
        help="only the first N seeds choose among several learning rates; the others take the best",
    )
    add("--ranks", metavar="N,N", default="4", help="a section each (%(default)s)")
    add("--shard-size", metavar="N", default="1", help="ranks that share a replica (%(default)s)")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--tokens", metavar="N", default="768K", help="of each run, over all ranks (%(default)s)"
    )
    amount.add_argument("--steps", metavar="N", help="instead")
    add(
        "--lr",
        metavar="R | NAME=R,...",
        help="learning rates: of METHOD/OPTIMIZER, METHOD or OPTIMIZER, the first that is given; "
        "R:R:R: of several the best. Default: entrain-train's",
    )
    for kind in ("method", "optimizer"):
        add(
            f"--{kind}-flags",
            metavar="A,B=FLAGS",
            action="append",
            default=[],
            help=f"further flags of these {kind}s; may be repeated",
        )
    add(
        "--target-loss",
        metavar="X",
        type=float,
        help="the training loss that time is measured to;"
        " default: the highest at which a run ends",
    )
    for flag in CONDITIONS:
        add(flag, metavar="X", help="a condition of all runs: see entrain-train --help")
    add("--fault", metavar="SPEC", help="a condition: ENTRAIN_FAULT of the ranks")
    add_arguments(parser, "comparison")
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    check_paths(parser, args)
    return args, words[split + 1 :]


def main():
    args, flags = parse(sys.argv[1:])
    try:
        plan = Plan(args, flags)
    except BadUsage as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(2)
    programs = program(args.build)
    wanted = plan.runs()
    left_out = make_all(plan, wanted, programs)
    target = targets(args, wanted, plan.tune)
    write_csv(args, wanted, target)
    # Imported late: the plotting library takes a second to load, and error messages should not wait for
    # it.
    import compare_report as report

    asked = args.target_loss is not None
    page = report.page(wanted, about(plan, wanted, programs), target, asked, plan.tune)
    (args.out / "report.html").write_text(page, encoding="utf-8")
    failed = sum(bool(run.reason) for run in wanted)
    print(f"report: {args.out / 'report.html'}")
    if failed:
        print(f"{failed} of {len(wanted)} runs failed")
    if left_out:
        print(f"{left_out} of {len(wanted)} runs are still to be made")
    sys.exit(1 if failed else LEFT_OUT if left_out and not args.tables else 0)


if __name__ == "__main__":
    main()
