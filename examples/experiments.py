#!/usr/bin/env python3
"""Measures the methods of entrain-train on real text with four replicas. The runs of docs/experiments.md use one model
and one number of steps, those of docs/evidence.md four (evidence.py).

  quality      validation loss at equal tokens: ddp, and edit and diloco over the number of
               synchronous steps at the beginning
  intervals    the same, also over the number of steps between exchanges
  delay        the cost of delayed gradients: acco and dpu beside zero1, at equal updates
  gap          settings that close the gap to ddp without synchronous steps: outer step, learning rate
  penalty      the parts of edit's penalty switched on and off, where one replica learns from
               shuffled labels in one interval in twelve: their effect, and how often they act
  ratio        updates per second of ddp, zero1 and acco over the time of an exchange
  evidence-*   the parts of docs/evidence.md
  evidence     all of these
  all          all of them

  keep         makes no runs: copies the inputs of the tables of finished runs to
               examples/results
  page         makes no runs: writes the tables of that copy to docs/experiments.md and docs/evidence.md, and the
               tables of README.md and docs/choose.md that are made of them

Each run leaves RUN.json, RUN.jsonl and RUN.flags in --out. It is not made again while RUN.flags, or the
copy in examples/results, has the same flags, so a later call continues. A table OUT/TABLE.md has the
complete rows. Times are meaningful on a quiet machine only: those of ratio.

Losses do not depend on the load of the machine. Learning rates and all other searched settings are
chosen by the validation loss of TUNING_SEED. No result uses TUNING_SEED. Results come from other
seeds, that is, from other initial weights and other batches. All differences are between runs of the
same seed. All runs have the same validation text.
"""

import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import evidence  # noqa: E402  (the path comes first)
import tables  # noqa: E402
from runs import (  # noqa: E402
    DEBUG,
    LEFT_OUT,
    STEPS,
    TOP,
    KeptRuns,
    RunFailed,
    TextRuns,
    add_arguments,
    check_paths,
    keep,
    rows_of,
)

TUNING_SEED = 11
FEW, MORE, MOST = (range(1, count + 1) for count in (3, 5, 8))  # seeds
RATES = (0.002, 0.003, 0.005, 0.008, 0.0125)
WARMUPS = (0, 8, 48, 96, 192)
INTERVAL, INTERVALS = 16, (8, 16, 32, 64)


def val_losses(runs, name, flags, seeds, **how):
    """Returns {seed: validation loss} of the runs that exist."""
    found = {
        seed: runs.get(f"{name}-seed{seed}", f"{flags} --seed {seed}", **how) for seed in seeds
    }
    return {seed: summary["val_loss"] for seed, summary in found.items() if summary is not None}


def at_tuning_seed(runs, name, flags, **how):
    return val_losses(runs, name, flags, (TUNING_SEED,), **how).get(TUNING_SEED)


def tuned(loss_at):
    """Returns {rate: loss} for the middle three of RATES. While the best rate is the lowest or the highest, adds
    the next rate on that side. Returns None while a loss is missing. loss_at returns a loss, or None."""
    known, missing = {}, list(RATES[1:-1])
    while missing:
        known |= {rate: loss_at(rate) for rate in missing}
        if None in known.values():
            return None
        at = RATES.index(min(known, key=known.get))
        missing = [rate for rate in RATES[max(at - 1, 0) : at + 2] if rate not in known]
    return known


def best_rate(runs, name, flags, **how):
    """Returns the best rate, or None while a run is missing."""
    losses = tuned(
        lambda rate: at_tuning_seed(runs, f"{name}-lr{rate:g}", f"{flags} --lr {rate:g}", **how)
    )
    return None if losses is None else min(losses, key=losses.get)


# ---- quality -------------------------------------------------------------------------


def local(method, warmup, interval, outer=""):
    flags = f"--method {method} --local-sgd-warmup-steps {warmup}"
    flags += f" --local-sgd-sync-interval {interval}"
    if outer:
        flags += f" {outer}"
    return flags + (f" {DEBUG}" if method == "edit" else "")


class Quality:
    """The runs of ddp and of the local methods with the default outer step. Several experiments read
    them."""

    def __init__(self, runs):
        self.runs, self.ddp_rate, self.rates = runs, best_rate(runs, "ddp", "--method ddp"), {}

    def rate(self, warmup):
        """Returns the rate of all local methods with this number of synchronous steps. It is the best rate of edit
        at INTERVAL."""
        if warmup not in self.rates:
            flags = local("edit", warmup, INTERVAL)
            self.rates[warmup] = best_rate(self.runs, f"edit-w{warmup}-h{INTERVAL}", flags)
        return self.rates[warmup]

    def ddp(self, seeds):
        if self.ddp_rate is None:
            return {}
        rate = f"{self.ddp_rate:g}"
        return val_losses(self.runs, f"ddp-lr{rate}", f"--method ddp --lr {rate}", seeds)

    def name(self, method, warmup, interval):
        return f"{method}-w{warmup}-h{interval}-lr{self.rate(warmup):g}"

    def local(self, method, warmup, interval, seeds):
        if self.rate(warmup) is None:
            return {}
        flags = f"{local(method, warmup, interval)} --lr {self.rate(warmup):g}"
        return val_losses(self.runs, self.name(method, warmup, interval), flags, seeds)

    def parts(self, warmup, interval, seeds):
        """Returns edit's decisions in these runs, as dictionaries with the keys of runs.DECISION."""
        name = self.name("edit", warmup, interval)
        return [one for seed in seeds for one in self.runs.decisions(f"{name}-seed{seed}")]


def quality(runs):
    made = Quality(runs)
    ddp = made.ddp(MORE)
    if len(ddp) < 2:
        return {}
    rows, parts = [("ddp", STEPS, made.ddp_rate, ddp)], []
    for warmup in WARMUPS:
        losses = made.local("edit", warmup, INTERVAL, MORE)
        if len(losses) > 1:
            rows.append(("edit", warmup, made.rate(warmup), losses))
            parts.append((warmup, INTERVAL, made.parts(warmup, INTERVAL, losses)))
    for warmup in (WARMUPS[0], WARMUPS[-1]):
        losses = made.local("diloco", warmup, INTERVAL, FEW)
        if len(losses) > 1:
            rows.append(("diloco", warmup, made.rate(warmup), losses))
    return {
        "quality": tables.quality(rows, ddp, STEPS),
        "quality-parts": tables.parts(parts, STEPS),
    }


def intervals(runs):
    made = Quality(runs)
    ddp, grid = made.ddp(FEW), {}
    for warmup in WARMUPS:
        for interval in INTERVALS:
            losses = made.local("edit", warmup, interval, FEW)
            if len(losses) > 1:
                grid[warmup, interval] = losses
    return {"intervals": tables.intervals(grid, ddp, WARMUPS, INTERVALS, STEPS)} if grid else {}


# ---- gap -----------------------------------------------------------------------------

OUTER_RATES, MOMENTA = (0.5, 0.7, 1.0), (0, 0.3, 0.6, 0.9)
# (outer learning rate, momentum, Nesterov's momentum): the grid, the default, and two without Nesterov's momentum.
OUTER = [(rate, momentum, True) for rate in OUTER_RATES for momentum in MOMENTA]
OUTER += [(0.7, 0.8, True), (0.7, 0.3, False), (0.7, 0.8, False)]
LONG_RISE = f"--lr-warmup-steps {STEPS // 5}"  # the default is a twentieth


def outer_flags(rate, momentum, nesterov):
    plain = "" if nesterov else " --no-outer-nesterov"
    return f"--outer-lr {rate:g} --outer-momentum {momentum:g}{plain}"


class LongRise:
    """ddp with a longer warm-up of the learning rate (LONG_RISE), at its best rate. `Search` tries this warm-up
    for edit, and it may help ddp too."""

    def __init__(self, runs):
        self.runs, flags = runs, f"--method ddp {LONG_RISE}"
        self.inner = tuned(
            lambda rate: at_tuning_seed(runs, f"ddp-rise-lr{rate:g}", f"{flags} --lr {rate:g}")
        )

    def losses(self, seeds):
        if self.inner is None:
            return {}
        rate = min(self.inner, key=self.inner.get)
        flags = f"--method ddp {LONG_RISE} --lr {rate:g}"
        return val_losses(self.runs, f"ddp-rise-lr{rate:g}", flags, seeds)


class Search:
    """Searches settings for edit without synchronous steps, with TUNING_SEED. First the outer step, then the inner
    learning rate with the best outer step, then a longer warm-up of the learning rate with the best of both."""

    def __init__(self, runs, rate):
        self.runs, self.best = runs, None
        self.outer = {one: self.loss(outer_flags(*one), rate) for one in OUTER}
        if None in self.outer.values():
            return
        outer = outer_flags(*min(self.outer, key=self.outer.get))
        losses = tuned(lambda one: self.loss(outer, one))
        if losses is None:
            return
        self.inner = {(one, ""): loss for one, loss in sorted(losses.items())}
        fastest = min(self.inner, key=self.inner.get)[0]
        self.inner[fastest, LONG_RISE] = self.loss(f"{outer} {LONG_RISE}", fastest)
        if None in self.inner.values():
            return
        self.best = (outer, *min(self.inner, key=self.inner.get))

    def loss(self, extra, rate):
        return at_tuning_seed(self.runs, *self.of(0, INTERVAL, extra, rate))

    def of(self, warmup, interval, extra, rate):
        """Returns name and flags of a run."""
        slug = extra.replace("--", "").replace(" ", "-")
        name = f"gap-w{warmup}-h{interval}-{slug}-lr{rate:g}"
        return name, f"{local('edit', warmup, interval, extra)} --lr {rate:g}"

    def losses(self, warmup, interval, seeds):
        """Returns the losses with the best setting."""
        outer, rate, rise = self.best
        return val_losses(
            self.runs, *self.of(warmup, interval, f"{outer} {rise}".strip(), rate), seeds
        )


def gap(runs):
    made = Quality(runs)
    search = None if made.rate(0) is None else Search(runs, made.rate(0))
    if search is None or search.best is None:
        return {}
    ddp, rising, rows = made.ddp(MORE), LongRise(runs), []
    risen = rising.losses(MORE)
    if not risen:
        return {}
    inner = {("edit", *key): loss for key, loss in search.inner.items()}
    inner |= {("ddp", rate, LONG_RISE): loss for rate, loss in sorted(rising.inner.items())}
    cells = [(warmup, INTERVAL, MORE) for warmup in WARMUPS[:3]]
    cells += [(0, interval, FEW) for interval in INTERVALS if interval != INTERVAL]
    for warmup, interval, seeds in cells:
        before = made.local("edit", warmup, interval, seeds)
        after = search.losses(warmup, interval, seeds)
        if min(len(before), len(after)) > 1:
            rows.append((warmup, interval, before, after))
    return {
        "gap-outer": tables.outer(search.outer),
        "gap-inner": tables.inner(inner),
        "gap": tables.gap(rows, ddp, risen, STEPS),
    }


# ---- penalty -------------------------------------------------------------------------

SHUFFLE_EVERY, SHUFFLED, ARMED_AFTER, CLIP = 12, 1, 10, 1
PENALTY_WARMUP, PENALTY_RATE = WARMUPS[2], 0.005
# Rate of the anomaly detectors' moving means. With the default, the means follow the falling norms of a short run
# too slowly.
ALPHA = 0.2
PARTS = {
    "detector": (
        f"--ewma-warmup-steps {ARMED_AFTER} --ewma-alpha {ALPHA}",
        "--no-skip-anomaly",
    ),
    "weights": ("--pseudo-gradnorm-reduce", "--no-pseudo-gradnorm-reduce"),
    "clip": (f"--clip-pseudo-grad {CLIP}", "--clip-pseudo-grad 0"),
}


def variants():
    """Returns {label: flags} for all parts, no part, all parts but one, and all parts with the
    default alpha."""
    names = list(PARTS)
    subsets = [names, [], *([one for one in names if one != left] for left in names)]
    found = {}
    for on in subsets:
        label = ", ".join(on) or tables.NO_PARTS
        found[label] = " ".join(PARTS[part][part not in on] for part in names)
    everything = found.pop(", ".join(names))
    usual = everything.replace(f" --ewma-alpha {ALPHA}", "")
    return {"all": everything, **found, "all, with alpha 0.02": usual}


def penalty(runs):
    shuffle = f"--shuffle-labels-every {SHUFFLE_EVERY} --shuffle-labels-replica {SHUFFLED}"
    results = {}
    for number, (label, parts) in enumerate(variants().items()):
        flags = f"{local('edit', PENALTY_WARMUP, INTERVAL)} --lr {PENALTY_RATE} {parts}"
        seeds = {}
        for seed in FEW:
            names = [f"penalty-{number}-{kind}-seed{seed}" for kind in ("quiet", "shuffled")]
            quiet = runs.get(names[0], f"{flags} --seed {seed}")
            spiked = runs.get(names[1], f"{flags} {shuffle} --seed {seed}")
            if quiet is None or spiked is None:
                continue
            seeds[seed] = {
                "worst": tables.worst_excursion(*(runs.curve(one, 1, SHUFFLED) for one in names)),
                "val_loss": spiked["val_loss"],
                "val_loss_quiet": quiet["val_loss"],
                "decisions": runs.decisions(names[1]),
                "decisions_quiet": runs.decisions(names[0]),
            }
        if len(seeds) > 1:
            results[label] = seeds
    if tables.NO_PARTS not in results:
        return {}
    return {
        "penalty": tables.penalty(results),
        "penalty-acts": tables.acts(results, SHUFFLED, SHUFFLE_EVERY),
    }


# ---- delay ---------------------------------------------------------------------------

# All methods have the same number of micro-batches per commit. A commit of acco has two rounds. A commit of
# another method has one.
COMMITS = STEPS // 2
DELAYED = {
    "zero1": ("--method zero1 --gradient-accumulation-steps 2", MOST),
    "acco": ("--method acco --max-microbatches 1", MOST),
    "dpu": ("--method dpu --gradient-accumulation-steps 2 --max-microbatches 2", FEW),
}


def delayed_runs(runs, method):
    """Returns (learning rate, {seed: validation loss}, {seed: name of the run})."""
    flags, seeds = DELAYED[method]
    name = f"delay-{method}"
    rate = best_rate(runs, name, flags, steps=COMMITS)
    if rate is None:
        return None, {}, {}
    losses = val_losses(runs, f"{name}-lr{rate:g}", f"{flags} --lr {rate:g}", seeds, steps=COMMITS)
    return rate, losses, {seed: f"{name}-lr{rate:g}-seed{seed}" for seed in losses}


def delay(runs):
    rows = []
    for method in DELAYED:
        rate, losses, _ = delayed_runs(runs, method)
        if len(losses) > 1:
            rows.append((method, rate, losses))
    return {"delay": tables.delay(rows)} if rows and rows[0][0] == "zero1" else {}


# ---- ratio ---------------------------------------------------------------------------

PARAMS, F32_BYTES = 80_112, 4
ACCO_MS = 60  # time of a padded micro-batch
RATIOS = (0.1, 0.25, 0.5, 0.8, 1, 2, 4)  # time of a round's exchange relative to a micro-batch
RATIO_RANKS, RATIO_UPDATES, RATIO_PASSES = 2, 20, (1, 2, 3)


def linked(exchange):
    """Returns the value of ENTRAIN_FAULT with which the reduce-scatter and the all-gather of a round
    together take as long as `exchange` micro-batches."""
    sent = 2 * (RATIO_RANKS - 1) / RATIO_RANKS * PARAMS * F32_BYTES
    return f"rate={sent / (exchange * ACCO_MS / 1000) / 1e6:.4f}MB/s"


# An update has two micro-batches of each rank. In acco-free it has as many as fit into the time of an
# exchange.
RATIO_METHODS = {
    "ddp": f"--method ddp --gradient-accumulation-steps 2 --step-ms {2 * ACCO_MS}",
    "zero1": f"--method zero1 --gradient-accumulation-steps 2 --step-ms {2 * ACCO_MS}",
    "acco": f"--method acco --max-microbatches 1 --step-ms {ACCO_MS}",
    "acco-free": f"--method acco --max-microbatches 0 --step-ms {ACCO_MS}",
}


def ratio(runs):
    found = {}
    for number in RATIO_PASSES:  # so that other load on the machine affects all methods alike
        for exchange in RATIOS:
            for method, flags in RATIO_METHODS.items():
                words = f"{flags} --lr 0.004 --seed {number}"
                name = f"ratio-{exchange:g}-{method}-{number}"
                expected_s = RATIO_UPDATES * ACCO_MS / 1000 * (2 + 2 * exchange)
                fault = linked(exchange)
                summary = runs.get(name, words, expected_s, RATIO_UPDATES, RATIO_RANKS, fault)
                if summary is not None:
                    tables.check_params(summary, PARAMS)
                    found.setdefault(exchange, {}).setdefault(method, []).append(summary)
    complete = {key: row for key, row in found.items() if len(row) == len(RATIO_METHODS)}
    if not complete:
        return {}
    return {"ratio": tables.ratio(complete, updates_to_a_loss(runs))}


def updates_to_a_loss(runs):
    """Returns {method: mean number of updates until the target loss}, from the runs of `delay`. The
    target is the highest final training loss of all runs."""
    curves = {}
    for method in ("zero1", "acco"):
        names = delayed_runs(runs, method)[2]
        curves[method] = {seed: runs.curve(names[seed]) for seed in MOST if seed in names}
    return tables.updates_to_a_loss(curves)


# ---- docs/choose.md --------------------------------------------------------------------


def searched(runs, method, settings, rates, losses, against, names):
    """Returns a row of tables.expect, with rates that were searched on TUNING_SEED. rates, losses ({seed: loss}) and names (of a run) are those
    of the method and of its baseline."""
    own, base = (runs.summary(name) for name in names)
    return {
        "method": method,
        "settings": settings,
        "params": own["params"],
        "against": against,
        "rates": rates,
        "chosen": "on another seed",
        "loss": losses,
        "bytes": own["bytes_sent_sync"] / own["tokens"] / base["bytes_sent_sync"] * base["tokens"],
    }


def expected(runs, report):
    """Returns the rows of the table of docs/choose.md: what each method loses and sends, beside a synchronous one that is tuned alike. Rows
    of other models go below these. report are the rows of compare.py's report.csv."""
    made, rising, rows = Quality(runs), LongRise(runs), []
    search, ddp = Search(runs, made.rate(0)), f"ddp-lr{made.ddp_rate:g}-seed1"
    for method, seeds in (("edit", MORE), ("diloco", FEW)):
        warmup = WARMUPS[-1]
        losses = made.local(method, warmup, INTERVAL, seeds), made.ddp(seeds)
        words = f"H = {INTERVAL}, {100 * warmup // STEPS} % synchronous"
        names = f"{made.name(method, warmup, INTERVAL)}-seed1", ddp
        rows.append(searched(runs, method, words, (made.rate(warmup), made.ddp_rate), losses, "ddp", names))
    outer, rate, rise = search.best
    base = min(rising.inner, key=rising.inner.get)
    for interval in INTERVALS:
        seeds = MORE if interval == INTERVAL else FEW
        losses = search.losses(0, interval, seeds), rising.losses(seeds)
        extra = f"{outer} {rise}".strip()
        names = f"{search.of(0, interval, extra, rate)[0]}-seed1", ddp
        words = f"H = {interval}, none synchronous, `{extra}`"
        rows.append(searched(runs, "edit", words, (rate, base), losses, f"ddp, `{LONG_RISE}`", names))
    zero1, acco = delayed_runs(runs, "zero1"), delayed_runs(runs, "acco")
    rates, losses, names = zip(acco, zero1)
    words = "as many micro-batches in an update as zero1"
    rows.append(searched(runs, "acco", words, rates, losses, "zero1", [one[1] for one in names]))
    return rows + tables.compared(report, ("post-local-sgd", "a-edit", "streaming-diloco", "co2"))


# ---- The command ---------------------------------------------------------------------

EXPERIMENTS = {
    "quality": quality,
    "delay": delay,
    "gap": gap,
    "penalty": penalty,
    "intervals": intervals,
    "ratio": ratio,
    **evidence.EXPERIMENTS,
}
GROUPS = {"all": EXPERIMENTS, "evidence": evidence.EXPERIMENTS, "keep": EXPERIMENTS}
RESULTS = TOP / "examples/results"
PAGES = tuple(TOP / page for page in ("docs/experiments.md", "docs/evidence.md", "docs/choose.md", "README.md"))
REPORT = TOP / "examples/report.csv"  # the table of compare.sh
TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def kept_tables(folder=RESULTS):
    """Returns {name: Markdown} for the tables of the kept copy, and for the table of compare.sh."""
    runs = KeptRuns(folder)
    found = {"methods": tables.methods(rows_of(REPORT))}
    for make in EXPERIMENTS.values():
        found |= make(runs)
    if folder == RESULTS:  # a copy of a test may lack experiments
        found["figures"] = tables.figures(found)
        found["expect"] = tables.expect(expected(runs, rows_of(REPORT)))
        found["links"] = tables.links(rows_of(RESULTS / "links.csv"))
        found["evidence-claims"] = tables.claims(found)
    return {name: tables.markdown(rows) for name, rows in found.items()}


def with_tables(page, found):
    """Returns the page with its tables replaced. Throws KeyError for a table that does not exist."""
    return TABLE.sub(lambda match: match[1] + found[match[2]] + match[3], page)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, *GROUPS, "page"])
    add_arguments(parser, "experiments")
    parser.add_argument(
        "--python",
        type=pathlib.Path,
        default=TOP / "build/python/bin/python",
        help="with PyTorch, for muon (%(default)s)",
    )
    parser.add_argument(
        "--results", type=pathlib.Path, default=RESULTS, help="the kept copy of runs (%(default)s)"
    )
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
    chosen = GROUPS.get(args.experiment) or {args.experiment: EXPERIMENTS[args.experiment]}
    runs = TextRuns(args, kept=KeptRuns(args.results))
    for make in chosen.values():
        for name, rows in make(runs).items():
            text = tables.markdown(rows)
            (args.out / f"{name}.md").write_text(text)
            print(f"\n{name}\n\n{text}", flush=True)
    if args.experiment == "keep":
        keep(runs, args.results)
    if runs.left_out:
        print(f"{len(runs.left_out)} runs are still to be made", flush=True)
        sys.exit(0 if args.tables else LEFT_OUT)


if __name__ == "__main__":
    try:
        main()
    except RunFailed as failed:
        sys.exit(f"{failed.output}experiments.py: {failed}")
