#!/usr/bin/env python3
"""Measures the methods of entrain-train on real text with four replicas. All runs use one model and,
except in `length`, one number of steps.

  quality      validation loss at equal tokens: ddp, and edit and diloco over the number of
               synchronous steps at the beginning
  intervals    the same, also over the number of steps between exchanges
  delay        the cost of delayed gradients: acco, dpu and wp beside zero1, at equal updates
  gap          settings that close the gap to ddp without synchronous steps: outer step, learning rate
  penalty      the parts of edit's penalty switched on and off, where one replica learns from
               shuffled labels in one interval in five: their effect, and how often they act
  length       the gap over the number of steps
  ratio        updates per second of ddp, zero1 and acco over the time of an exchange
  slow         gradients of acco and zero1 if one of four replicas is four times slower
  stragglers   share of ideal throughput with late replicas, beside a Monte-Carlo simulation
  idle         waiting time of a-edit's replicas if one is 3.3 times slower
  optimizers   AdamW, AGD, SGD, and WSAM around them, two replicas, each at its best learning
               rate: loss, steps, sharpness
  digits       the same on scikit-learn's digits
  all          all of them

  keep         makes no runs: copies the inputs of the tables of finished runs to
               examples/results
  page         makes no runs: writes the tables of that copy to docs/experiments.md, and the table of
               README.md that is made of them

Each run leaves RUN.json, RUN.jsonl and RUN.flags in --out, and is not made again while RUN.flags has
the same flags. A table OUT/TABLE.md has the complete rows. Times are meaningful on a quiet machine
only: those of ratio, slow, stragglers and idle.
"""

import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import experiment_tables as tables  # noqa: E402  (the path comes first)
import loss_experiments  # noqa: E402
import loss_tables  # noqa: E402
import optimizers  # noqa: E402
import text_runs  # noqa: E402
import time_experiments  # noqa: E402
from runs import LEFT_OUT, TOP, RunFailed, add_arguments, check_paths  # noqa: E402


def optimizers_of(task):
    def make(runs):
        rows = optimizers.compare(task, runs)
        return {} if rows is None else {task if task != "text" else "optimizers": rows}

    return make


KEPT = {**loss_experiments.EXPERIMENTS, **time_experiments.EXPERIMENTS}
EXPERIMENTS = {**KEPT, "optimizers": optimizers_of("text"), "digits": optimizers_of("digits")}
RESULTS, PAGES = TOP / "examples/results", (TOP / "docs/experiments.md", TOP / "README.md")
REPORT = TOP / "examples/report.csv"  # the table of compare.sh
TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def kept_tables(folder=RESULTS):
    """Returns {name: Markdown} for the tables of the kept copy, and for the table of compare.sh."""
    runs = text_runs.KeptRuns(folder)
    found = {"methods": loss_tables.methods(text_runs.rows_of(REPORT))}
    for make in KEPT.values():
        found |= make(runs)
    if folder == RESULTS:  # a copy of a test may lack experiments
        found["figures"] = loss_tables.figures(found)
    return {name: tables.markdown(rows) for name, rows in found.items()}


def with_tables(page, found):
    """Returns the page with its tables replaced. Throws KeyError for a table that does not exist."""
    return TABLE.sub(lambda match: match[1] + found[match[2]] + match[3], page)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all", "keep", "page"])
    add_arguments(parser, "experiments")
    args = parser.parse_args()
    if args.experiment == "keep":
        args.tables = True
    if args.experiment != "page":
        check_paths(parser, args)
    return args


def main():
    args = parse()
    if args.experiment == "page":
        found = kept_tables()
        for page in PAGES:
            page.write_text(with_tables(page.read_text(encoding="utf-8"), found), encoding="utf-8")
        return
    chosen = {"all": EXPERIMENTS, "keep": KEPT}.get(args.experiment)
    runs = text_runs.TextRuns(args)
    for make in (chosen or {args.experiment: EXPERIMENTS[args.experiment]}).values():
        for name, rows in make(runs).items():
            text = tables.markdown(rows)
            (args.out / f"{name}.md").write_text(text)
            print(f"\n{name}\n\n{text}", flush=True)
    if args.experiment == "keep":
        text_runs.keep(runs, RESULTS)
    if runs.left_out:
        print(f"{runs.left_out} runs are still to be made", flush=True)
        sys.exit(0 if args.tables else LEFT_OUT)


if __name__ == "__main__":
    try:
        main()
    except RunFailed as failed:
        sys.exit(f"{failed.output}experiments.py: {failed}")
