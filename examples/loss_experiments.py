"""Experiments whose results are losses. Losses do not depend on the load of the machine.

Learning rates and all other searched settings are chosen by the validation loss of TUNING_SEED. No result uses
TUNING_SEED. Results come from other seeds, that is, from other initial weights and other batches. All differences
are between runs of the same seed. All runs have the same validation text."""

import loss_tables as tables
from runs import DEBUG
from text_runs import STEPS

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

    def ddp(self, seeds, steps=STEPS):
        if self.ddp_rate is None:
            return {}
        name = f"ddp-lr{self.ddp_rate:g}" + (f"-steps{steps}" if steps != STEPS else "")
        return val_losses(
            self.runs, name, f"--method ddp --lr {self.ddp_rate:g}", seeds, steps=steps
        )

    def name(self, method, warmup, interval):
        return f"{method}-w{warmup}-h{interval}-lr{self.rate(warmup):g}"

    def local(self, method, warmup, interval, seeds, steps=STEPS):
        if self.rate(warmup) is None:
            return {}
        name = self.name(method, warmup, interval) + (f"-steps{steps}" if steps != STEPS else "")
        flags = f"{local(method, warmup, interval)} --lr {self.rate(warmup):g}"
        return val_losses(self.runs, name, flags, seeds, steps=steps)

    def parts(self, warmup, interval, seeds):
        """Returns edit's decisions in these runs, as dictionaries with the keys of text_runs.DECISION."""
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
LENGTHS = (1, 2, 4)


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

    def losses(self, warmup, interval, seeds, steps=STEPS):
        """Returns the losses with the best setting."""
        outer, rate, rise = self.best
        name, flags = self.of(warmup, interval, f"{outer} {rise}".strip(), rate)
        name += f"-steps{steps}" if steps != STEPS else ""
        return val_losses(self.runs, name, flags, seeds, steps=steps)


def searched(runs):
    made = Quality(runs)
    if made.rate(0) is None:
        return made, None
    search = Search(runs, made.rate(0))
    return made, search if search.best is not None else None


def gap(runs):
    made, search = searched(runs)
    if search is None:
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


def length(runs):
    """Makes runs of more steps, without synchronous steps at the beginning. The learning rates are the best ones
    for STEPS steps."""
    made, search = searched(runs)
    if search is None:
        return {}
    rows = []
    for times in LENGTHS:
        steps = times * STEPS
        ddp = made.ddp(FEW, steps)
        plain = made.local("edit", 0, INTERVAL, FEW, steps)
        better = search.losses(0, INTERVAL, FEW, steps)
        if min(len(ddp), len(plain), len(better)) > 1:
            rows.append((steps, ddp, plain, better))
    return {"length": tables.length(rows)} if len(rows) > 1 else {}


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
    "dpu after warm-up": (
        "--method dpu --gradient-accumulation-steps 2 --max-microbatches 2 "
        f"--warmup-rounds {COMMITS // 4}",
        FEW,
    ),
    "wp": ("--method wp --gradient-accumulation-steps 2 --max-microbatches 2", FEW),
}


def delayed_runs(runs, method):
    """Returns (learning rate, {seed: validation loss}, {seed: name of the run})."""
    flags, seeds = DELAYED[method]
    name = f"delay-{method.replace(' ', '-')}"
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


EXPERIMENTS = {
    "quality": quality,
    "delay": delay,
    "gap": gap,
    "penalty": penalty,
    "intervals": intervals,
    "length": length,
}
