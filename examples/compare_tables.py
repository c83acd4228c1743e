"""Turns finished runs of compare.py into numbers: pure functions on summaries and records."""

import math
import statistics
from dataclasses import dataclass, field

BINS = 48  # points of a curve; each averages many steps, because a step has few batches


@dataclass
class Run:
    """A run of one seed. Without a summary it has not been made. With a reason it has failed."""

    name: str
    ranks: int
    method: str
    optimizer: str
    rate: str  # as the user gave it; "": the trainer's default
    seed: int
    flags: list = field(default_factory=list)
    summary: dict = None
    points: list = field(default_factory=list)
    reason: str = ""

    def status(self):
        return "failed" if self.reason else "done" if self.summary else "not made"


@dataclass(frozen=True)
class Point:
    """Means over the steps of a part of a run: tokens of all ranks, seconds, training loss."""

    tokens: float
    seconds: float
    loss: float


def number(value):
    """Returns the number. JSON has no NaN: null stands for it."""
    return math.nan if value is None else value


def curve(records, bins=BINS):
    """Divides the records of all replicas into `bins` parts of the same number of tokens. Returns a
    point for each part."""
    total = max(record["tokens"] for record in records)
    bins = min(bins, len({record["step"] for record in records}))
    parts = [[] for _ in range(bins)]
    for record in records:
        parts[min(bins - 1, (record["tokens"] - 1) * bins // total)].append(record)
    return [
        Point(
            *(
                statistics.fmean(number(r[key]) for r in part)
                for key in ("tokens", "seconds", "loss")
            )
        )
        for part in parts
        if part
    ]


def seconds_to(points, loss):
    """Returns the time at which a curve first reaches `loss`, by linear interpolation between
    points. Returns None if the curve never reaches `loss`."""
    before = None
    for point in points:
        if point.loss <= loss:
            if before is None or not before.loss > loss:
                return point.seconds
            share = (before.loss - loss) / (before.loss - point.loss)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def usual_target(runs):
    """Returns the highest final loss of these runs. It is the lowest loss that all of them
    reach."""
    ends = [run.points[-1].loss for run in runs if run.points]
    return max((end for end in ends if math.isfinite(end)), default=None)


def costs(run, target):
    """Returns the figures of a run other than its losses. Bytes are the sum over all ranks."""
    summary = run.summary
    sent = summary["bytes_sent_shard"] + summary["bytes_sent_sync"]
    return {
        "seconds_to_target": None if target is None else seconds_to(run.points, target),
        "bytes_per_token": sent * summary["ranks"] / summary["tokens"],
        "exposed_share": summary["exposed_comm_s"] / summary["wall_s"],
    }


def spread(values):
    """Returns mean and standard deviation; the latter is 0 for a single value. Returns (None, None)
    if there are no values, or a value is missing."""
    if not values or None in values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass
class Entry:
    """A method with an optimizer on some ranks, at its best learning rate. It has one row and one
    curve."""

    label: str
    runs: list  # existing runs with that rate
    tried: dict  # {rate: mean validation loss}
    colour: int = 0  # index of its curve's colour
    dash: int = 0

    def values(self, get):
        return [get(run) for run in self.runs]

    def val_loss(self):
        return spread([number(run.summary["val_loss"]) for run in self.runs])


def ascending(value):
    """A sort key that puts numbers before missing values."""
    return (value is None or not math.isfinite(value), value or 0.0)


def tried(runs, tune=None):
    """Returns {rate: mean validation loss} of the runs of one method and optimizer. The mean is
    over the first `tune` seeds, or over all seeds. Includes only the rates with the largest number
    of finished seeds."""
    by_rate = {}
    for run in runs:
        if run.summary and (tune is None or run.seed <= tune):
            by_rate.setdefault(run.rate, []).append(number(run.summary["val_loss"]))
    most = max(map(len, by_rate.values()), default=0)
    return {rate: statistics.fmean(own) for rate, own in by_rate.items() if len(own) == most}


def best_rate(means):
    return min(means, key=lambda rate: ascending(means[rate]))


def alike(run):
    return run.ranks, run.method, run.optimizer


def tuned_away(run, runs, tune):
    """Returns True if the run need not be made: its seed comes after the first `tune` seeds, and
    another rate was better for those seeds. Returns None while those seeds have no result."""
    if tune is None or run.seed <= tune:
        return False
    means = tried([other for other in runs if alike(other) == alike(run)], tune)
    return run.rate != best_rate(means) if means else None


def entries(runs, tune=None):
    """Returns the entries of one rank count, in the order in which the user named them. If there
    are several methods and several optimizers, the colour shows the method, and the dashes show
    the optimizer."""
    methods = list(dict.fromkeys(run.method for run in runs))
    optimizers = list(dict.fromkeys(run.optimizer for run in runs))
    both = len(methods) > 1 and len(optimizers) > 1
    found = []
    for place, key in enumerate(dict.fromkeys((run.method, run.optimizer) for run in runs)):
        own = [run for run in runs if (run.method, run.optimizer) == key and run.summary]
        means = tried(own, tune)
        if means:
            best = best_rate(means)
            words = [key[0]] if len(methods) > 1 or len(optimizers) == 1 else []
            words += [key[1]] if len(optimizers) > 1 else []
            look = [methods.index(key[0]), optimizers.index(key[1])] if both else [place, place]
            found.append(
                Entry(", ".join(words), [run for run in own if run.rate == best], means, *look)
            )
    return found


def difference(entry, base):
    """Returns by how much `entry`'s loss is above that of `base` at equal tokens: [(tokens, mean,
    deviation)]. Compares seed by seed, because seeds differ by far more than methods. The list is
    empty if no runs can be paired."""
    others = {run.seed: run.points for run in base.runs}
    pairs = [(run.points, others[run.seed]) for run in entry.runs if run.seed in others]
    if not pairs or len({len(points) for pair in pairs for points in pair}) != 1:
        return []
    return [
        (
            pairs[0][0][at].tokens,
            *spread([own[at].loss - other[at].loss for own, other in pairs]),
        )
        for at in range(len(pairs[0][0]))
    ]


def mean_curve(entry, key):
    """Returns [(mean of `key`, mean loss, deviation of the loss)] over the seeds. `key` is
    tokens or seconds."""
    points = [run.points for run in entry.runs]
    if len({len(one) for one in points}) != 1:  # a part of some run has no records
        return []
    return [
        (
            statistics.fmean(getattr(point, key) for point in at),
            *spread([point.loss for point in at]),
        )
        for at in zip(*points)
    ]
