"""The plan of docs/evidence.md, for experiments.py: models of four sizes, every method tuned with the same budget.

Sizes differ in width, layers, batch and steps, so that a run has 10 tokens for each parameter. Settings are chosen by the
validation loss of TUNING_SEED, which no result uses. The plan is in an order in which what is finished is a whole result."""

import dataclasses

import tables
from runs import RANKS
from tables import acted_together

TUNING_SEED = 11
INTERVAL = 16
WARMUPS, INTERVALS = (0, 1 / 16, 1 / 4), (8, 16, 64)  # shares of the steps; steps
LONGER = (4,)  # micro-batches of a round of acco
RATES = (0.002, 0.004, 0.008, 0.016, 0.032)
LONG_RISE = "--lr-warmup-steps {fifth}"  # a fifth of the steps; the default is a twentieth


@dataclasses.dataclass(frozen=True)
class Size:
    name: str
    shape: str
    rows: int  # sequences of a replica and step
    steps: int
    expected_s: float
    seeds: tuple

    def model(self, rows):
        """Returns the flags of the model. All batch sizes have the same validation text."""
        return f"{self.shape} --seq-length 64 --batch-size {rows} --val-batches {1024 // rows}"


TINY = Size("0.03M", "--hidden-size 24 --layers 2 --heads 4", 2, 528, 5, (1, 2, 3, 4, 5))
SMALL = Size("0.1M", "--hidden-size 56 --layers 2 --heads 4", 4, 1056, 8, (1, 2, 3, 4, 5))
MIDDLE = Size("0.5M", "--hidden-size 112 --layers 3 --heads 4", 8, 2528, 100, (1, 2, 3))
LARGE = Size("2M", "--hidden-size 224 --layers 3 --heads 8", 16, 4752, 1200, (1, 2, 3))

# The settings of each kind of method that are tried beside the default.
SYNCHRONOUS = ("--beta2 0.99", "--weight-decay 0.1")
LOCAL = ("--outer-lr 1 --outer-momentum 0", "--outer-lr 0.8 --outer-momentum 0.4")
# EDiT's detectors arm after 10 exchanges, and its clip is so low that it acts.
DETECTOR, CLIP = "--ewma-warmup-steps 10 --ewma-alpha 0.2", "--clip-pseudo-grad 1"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the comparison."""

    name: str
    flags: str
    others: tuple  # settings that are tried
    local: bool = True
    rows: float = 1  # of the size's
    together: bool = False  # exchanges when all replicas together have made so many steps

    def words(self, size, warmup=None, interval=INTERVAL):
        if not self.local:
            return self.flags
        warmup = size.steps // 16 if warmup is None else warmup
        words = f"{self.flags} --local-sgd-warmup-steps {warmup}"
        if self.together:
            return f"{words} --local-sgd-sync-time 1e-6 --min-total-global-steps {RANKS * interval}"
        return f"{words} --local-sgd-sync-interval {interval}"


DDP = Entry("ddp", "--method ddp", SYNCHRONOUS, False)
ACCO = Entry("acco", "--method acco --max-microbatches 1", SYNCHRONOUS, False, 0.5)
EDIT = Entry("edit", f"--method edit --is-debug {DETECTOR} {CLIP}", LOCAL)
# A-EDiT by steps: by time, its result would not repeat.
A_EDIT = Entry("a-edit", f"--method a-edit {DETECTOR} {CLIP}", LOCAL, together=True)
DILOCO = Entry("diloco", "--method diloco", LOCAL)
STREAMING = Entry("streaming-diloco", "--method streaming-diloco", LOCAL)
# Rounds wait for all replicas, because a loss that depends on the time of arrival would not repeat.
DECOUPLED = Entry("decoupled-diloco", "--method decoupled-diloco --quorum 4", LOCAL)
ENTRIES = (DDP, EDIT, DILOCO, ACCO, STREAMING, DECOUPLED)
FEWER = ENTRIES[:4]


class Plan:
    """The runs of one size."""

    def __init__(self, runs, size):
        self.runs, self.size = runs, size

    def get(self, entry, settings, seed, kind="", steps=0, rows=0, **how):
        """Returns (name, summary or None) of a run. settings are words besides those of the entry. kind and the keyword
        arguments are parts of the name."""
        size = self.size
        where = {key: how[key] for key in ("warmup", "interval") if key in how}
        words = f"{entry.words(size, **where)} {settings}".replace("{fifth}", str(size.steps // 5))
        slug = settings.replace("--", "").replace(" ", "-").replace("{fifth}", "fifth")
        parts = [size.name, entry.name, kind, *(f"{key}{value}" for key, value in where.items())]
        name = "-".join([*filter(None, parts), slug, f"seed{seed}"])
        model = size.model(int(rows or size.rows * entry.rows))
        rest = {key: value for key, value in how.items() if key not in where}
        summary = self.runs.get(
            name, f"{words} --seed {seed}", size.expected_s, steps or size.steps, model=model, **rest
        )
        return name, summary

    def at_tuning_seed(self, entry, settings, **how):
        summary = self.get(entry, settings, TUNING_SEED, **how)[1]
        return None if summary is None else summary["val_loss"]

    def best(self, entry, chosen, **how):
        """Returns the best of the settings at the tuning seed, or None while one is missing."""
        losses = {one: self.at_tuning_seed(entry, one, **how) for one in chosen}
        return None if None in losses.values() else min(losses, key=losses.get)

    def results(self, entry, settings, **how):
        """Returns {seed: (name, summary)}."""
        found = {seed: self.get(entry, settings, seed, **how) for seed in self.size.seeds}
        return {seed: one for seed, one in found.items() if one[1] is not None}

    def acted(self, results):
        """Returns how often the parts of EDiT's penalty acted in these runs."""
        return acted_together([self.runs.acted(name) for name, _ in results.values()])


def losses_of(results):
    return {seed: summary["val_loss"] for seed, (_, summary) in results.items()}


def tune(plan, entry):
    """Returns (settings, {settings tried: loss}), or None while a run is missing. Tries three rates, and further ones
    while the best is the last on its side; at the best rate two settings; with the best of these a longer rise of the rate."""
    tried = {}

    def best(chosen):
        """Tries settings. Returns the best of all tried, or None."""
        for settings in chosen:
            if settings not in tried:
                tried[settings] = plan.at_tuning_seed(entry, settings)
            if tried[settings] is None:
                return None
        return min(tried, key=tried.get)

    found, missing = None, RATES[1:-1]
    while missing:
        found = best([f"--lr {rate:g}" for rate in missing])
        if found is None:
            return None
        at = [f"--lr {rate:g}" for rate in RATES].index(found)
        missing = [rate for rate in RATES[max(at - 1, 0) : at + 2] if f"--lr {rate:g}" not in tried]
    found = best([f"{found} {one}" for one in entry.others])
    if found is None or best([f"{found} {LONG_RISE}"]) is None:
        return None
    return best([]), len(tried)


def compared(plan, found, entries, least=2):
    """Returns {entry's name: (settings, number tried, results)} for the entries with at least `least` seeds; nothing without ddp."""
    made = {}
    for entry in entries:
        chosen = found(entry)
        if chosen is not None:
            results = plan.results(entry, chosen[0])
            if len(results) >= least:
                made[entry.name] = (*chosen, results)
    return made if DDP.name in made else {}


def tuned(runs, size, entries=FEWER):
    """Returns the plan of a size, and {entry's name: (settings, number tried, results)}."""
    plan = Plan(runs, size)
    made = compared(plan, lambda entry: tune(plan, entry), entries)
    if entries is ENTRIES and EDIT.name in made:  # its settings are those of edit
        settings = made[EDIT.name][0]
        made[A_EDIT.name] = (settings, 0, plan.results(A_EDIT, settings))
    return plan, made


def methods(runs, size, entries, table):
    plan, made = tuned(runs, size, entries)
    return {table: tables.evidence_methods(table_rows(plan, made))} if made else {}


def table_rows(plan, made):
    """Returns [(name, settings, number tried, {seed: loss}, MB sent, how often EDiT's parts acted or None)]."""
    rows = []
    for name, (settings, tried, results) in made.items():
        sent = [summary["bytes_sent_sync"] / 1e6 for _, summary in results.values()]
        parts = plan.acted(results) if name == EDIT.name else None
        rows.append((name, settings.replace("{fifth}", str(plan.size.steps // 5)), tried, losses_of(results), sent, parts))
    return rows


# ---- Size: MIDDLE has the settings of SMALL, and its rate or half of it; LARGE, too large for a search, has those of MIDDLE


def larger(runs, size):
    """Returns the plan of a larger size, and what `compared` returns."""
    before = tuned(runs, SMALL)[1] if size is MIDDLE else larger(runs, MIDDLE)[1]
    plan = Plan(runs, size)

    def found(entry):
        if entry.name not in before:
            return None
        settings = before[entry.name][0]
        if size is LARGE:
            return settings, 0
        rate = float(settings.split()[1])
        tried = [settings, settings.replace(f"--lr {rate:g}", f"--lr {rate / 2:g}")]
        best = plan.best(entry, tried)
        return None if best is None else (best, len(tried))

    if size is MIDDLE:
        return plan, compared(plan, found, FEWER)
    # Method by method: if time ends the runs, the first methods have all seeds.
    return plan, compared(plan, found, FEWER, least=1)


def methods_of_larger(runs, size, table):
    plan, made = larger(runs, size)
    return {table: tables.evidence_methods(table_rows(plan, made))} if made else {}


def sizes(runs):
    made = {size.name: tuned(runs, size)[1] for size in (TINY, SMALL)}
    made |= {size.name: larger(runs, size)[1] for size in (MIDDLE, LARGE)}
    gaps = {size: {name: losses_of(one[2]) for name, one in found.items()} for size, found in made.items() if found}
    return {"evidence-sizes": tables.evidence_sizes(gaps, [entry.name for entry in FEWER])} if len(gaps) > 1 else {}


# ---- Warm-up and H, with the settings of `methods`


def intervals(runs, size, table):
    plan, made = tuned(runs, size, (DDP, EDIT))
    if EDIT.name not in made:
        return {}
    grid, steps = {}, size.steps
    for share in WARMUPS:
        for interval in INTERVALS:
            warmup = int(steps * share)
            how = {} if (share, interval) == (1 / 16, INTERVAL) else {"warmup": warmup, "interval": interval}
            grid[warmup, interval] = losses_of(plan.results(EDIT, made[EDIT.name][0], **how))
    grid = {key: losses for key, losses in grid.items() if len(losses) > 1}
    warmups = [int(steps * share) for share in WARMUPS]
    rows = tables.intervals(grid, losses_of(made[DDP.name][2]), warmups, INTERVALS, steps)
    return {table: rows} if len(grid) > 1 else {}


# ---- What each part of EDiT adds to DiLoCo, with DiLoCo's settings

SWITCHES = {
    "detector": (DETECTOR, "--no-skip-anomaly"),
    "weights": ("--pseudo-gradnorm-reduce", "--no-pseudo-gradnorm-reduce"),
    "clip": (CLIP, "--clip-pseudo-grad 0"),
}
ALL = tuple(SWITCHES)
VARIANTS = ((), ALL, ("clip",), ("weights",), ("detector",))
NOISY = 8  # of so many intervals, one is noisy
CONDITIONS = {
    f"noisy replica: shuffled labels in each {NOISY}th interval": (f"--shuffle-labels-every {NOISY} --shuffle-labels-replica 1", VARIANTS),
    "corrupted shard: shuffled labels always": ("--shuffle-labels-every 1 --shuffle-labels-replica 1", VARIANTS),
    "heterogeneous data: each replica has its own fourth of the text": (f"--text-parts {RANKS}", VARIANTS),
    "undisturbed": ("", ((), ALL)),
}


def parts(runs, size, table):
    plan, made = tuned(runs, size, (DDP, DILOCO))
    if DILOCO.name not in made:
        return {}
    settings, found = made[DILOCO.name][0], {}
    for condition, (flags, variants) in CONDITIONS.items():
        for on in variants:
            switched = " ".join(SWITCHES[part][part not in on] for part in ALL)
            entry = Entry("parts", f"--method edit --is-debug {switched} {flags}".strip(), ())
            kind = f"{condition.split()[0].strip(':')}-{'+'.join(on) or 'none'}"
            results = plan.results(entry, settings, kind=kind)
            if len(results) > 1:
                found.setdefault(condition, {})[on] = (losses_of(results), plan.acted(results))
    return {table: tables.evidence_parts(found)} if found else {}


# ---- ACCO over the time of an exchange, in micro-batches


def exchange(runs):
    """ACCO makes as many micro-batches in a round as its exchange takes, so nothing waits. ddp has as many tokens in an update."""
    plan, made = tuned(runs, SMALL)
    if ACCO.name not in made:
        return {}
    rows = [(1, losses_of(made[ACCO.name][2]), losses_of(made[DDP.name][2]))]
    for times in LONGER:
        pair = []
        for entry in (ACCO, DDP):
            settings = made[entry.name][0].replace("{fifth}", str(SMALL.steps // times // 5))
            rate = float(settings.split()[1])
            flag = f"--gradient-accumulation-steps {times}"
            how = {"steps": SMALL.steps // times, "kind": f"x{times}"}
            varied = Entry(entry.name, entry.flags.replace("microbatches 1", f"microbatches {times}") + f" {flag}", (), False, entry.rows)
            tried = [settings.replace(f"--lr {rate:g}", f"--lr {rate * factor:g}") for factor in (1, 2)]
            best = plan.best(varied, tried, **how)
            pair.append({} if best is None else losses_of(plan.results(varied, best, **how)))
        if min(map(len, pair)) > 1:
            rows.append((times, *pair))
    return {"evidence-exchange": tables.evidence_exchange(rows)}


# ---- Muon as the inner optimizer, in PyTorch

MUON_RATES = (0.008, 0.016, 0.032)
MUON_RANKS, MUON_ROWS, MUON_STEPS = 2, 16, 528
MUON = tuple(
    Entry(f"torch-{method}-{optimizer}", f"--method {method} --optimizer {optimizer}", (), method != "ddp")
    for method in ("diloco", "ddp")
    for optimizer in ("adamw", "muon")
)


def muon(runs):
    plan, found = Plan(runs, SMALL), {}
    how = {"steps": MUON_STEPS, "rows": MUON_ROWS, "ranks": MUON_RANKS, "besides": ["torch"], **runs.in_torch()}
    for entry in MUON:
        own = {**how, **({"warmup": MUON_STEPS // 16} if entry.local else {})}
        best = plan.best(entry, [f"--lr {rate:g}" for rate in MUON_RATES], **own)
        losses = {} if best is None else losses_of(plan.results(entry, best, **own))
        if len(losses) > 1:
            found[entry.flags] = (best, losses)
    return {"evidence-muon": tables.evidence_muon(found)} if MUON[0].flags in found else {}


# ---- Storms: tests/storm.py

STORM = "--steps 600 --kills 6 --step-ms 20 --save-every 0 --eval-interval 0 --limit 100"
STORM_METHODS, STORM_SEEDS = ("edit", "decoupled-diloco", "acco"), (1, 2, 3)


def storm(runs):
    rows = {}
    for seed in STORM_SEEDS:
        for method in STORM_METHODS:
            summary = runs.storm(f"storm-{method}-seed{seed}", f"{STORM} --methods {method} --seed {seed}", 60)
            if summary is not None:
                rows.setdefault(method, {})[seed] = summary["storm"]
    rows = {method: seeds for method, seeds in rows.items() if len(seeds) > 1}
    return {"evidence-storm": tables.evidence_storm(rows)} if rows else {}


def of_size(make, *arguments):
    """Returns the experiment of that table, which is the last argument."""
    return {arguments[-1]: lambda runs: make(runs, *arguments)}


EXPERIMENTS = {
    **of_size(methods, TINY, FEWER, "evidence-tiny"),
    **of_size(parts, TINY, "evidence-tiny-parts"),
    **of_size(intervals, TINY, "evidence-tiny-intervals"),
    **of_size(methods, SMALL, ENTRIES, "evidence-methods"),
    **of_size(parts, SMALL, "evidence-parts"),
    **of_size(intervals, SMALL, "evidence-intervals"),
    **of_size(methods_of_larger, MIDDLE, "evidence-middle"),
    "evidence-exchange": exchange,
    "evidence-muon": muon,
    "evidence-storm": storm,
    **of_size(methods_of_larger, LARGE, "evidence-large"),
    "evidence-sizes": sizes,
}
