"""python -m entrain.plan: what each training method would cost on a cluster: step time, traffic, memory, goodput; and which one to take.

    python -m entrain.plan --params 7B --layers 32 --replicas 8 --shards 8 --step 2s --rate 10Gbit --round-trip 1ms
    python -m entrain.plan --preset sites --json
    python -m entrain.plan --preset sites --picture plan.svg

In a checkout, python3 python/entrain/plan.py is the same command; it needs neither the library nor other packages.
Nothing is run: the figures are estimates by the formulas of docs/plan.md. docs/lab/plan.md compares them with runs."""
from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import re
import statistics
import sys
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

# ---- Numbers with units ------------------------------------------------------------------------

_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_RATES = {**{f"{scale}bit": value / 8 for scale, value in _COUNTS.items() if scale != "B"}, **_BYTES}
_SHARES = {"": 1.0, "%": 0.01}


def _number(text: str, units: Dict[str, float], example: str) -> float:
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([A-Za-z%]*)", text.strip())
    if found is None or found[2] not in units:
        raise ValueError(f"is not a number with a unit, as {example}" if "" not in units else f"is not a number, as {example}")
    return float(found[1]) * units[found[2]]


def parse_count(text: str) -> int:
    """7B, 350M, 32: a whole number of at least 1."""
    value = _number(text, _COUNTS, "32, 350M, 7B")
    if value < 1 or abs(value - round(value)) > 1e-6 * value:
        raise ValueError("is not a whole number of at least 1")
    return round(value)


def parse_duration(text: str) -> float:
    """100ms, 1.5s, 10min, or 0: seconds."""
    return 0.0 if text.strip() == "0" else _number(text, _TIMES, "100ms, 1.5s, 10min")


def parse_rate(text: str) -> float:
    """10Gbit, 125MB/s, or a part of it, 100Gbit/8: bytes a second."""
    found = re.fullmatch(r"(.*?)(?:/s)?(?:/([1-9][0-9]*))?", text.strip())
    assert found is not None
    value = _number(found[1], _RATES, "10Gbit, 125MB/s") / int(found[2] or 1)
    if value <= 0:
        raise ValueError("is not more than 0")
    return value


def parse_size(text: str) -> float:
    """80GB, 4MiB, or 0: bytes."""
    return 0.0 if text.strip() == "0" else _number(text, _BYTES, "80GB, 4MiB")


def parse_share(text: str) -> float:
    """5%, 0.05."""
    return _number(text, _SHARES, "5%, 0.05")


def parse_plain(text: str) -> float:
    """0.8."""
    return _number(text, {"": 1.0}, "0.8")


def parse_frequency(text: str) -> float:
    """2e-5, 3/day, 1/3days: times an hour."""
    count, _, every = text.partition("/")
    hours = {"": 1.0, "h": 1.0, "hour": 1.0, "day": 24.0, "week": 168.0, "month": 730.0, "year": 8760.0}
    found = re.fullmatch(r"\s*([1-9][0-9]*)?\s*([a-z]*?)s?\s*", every)
    if not found or found[2] not in hours:
        raise ValueError("is not a number an hour, as 2e-5, 3/day, 1/3days")
    return _number(count, {"": 1.0}, "2e-5, 3/day, 1/3days") / (int(found[1] or 1) * hours[found[2]])


Slow = Tuple[Tuple[int, float], ...]


def parse_slow(text: str) -> Slow:
    """1x1.2,2x1.5, or 0: pairs of a count and a factor of at least 1."""
    if text.strip() == "0":
        return ()
    found = [re.fullmatch(r"\s*([0-9]+)x([0-9]*\.?[0-9]+)\s*", part) for part in text.split(",")]
    pairs = tuple((int(pair[1]), float(pair[2])) for pair in found if pair is not None)
    if len(pairs) < len(found) or any(count < 1 or factor < 1 for count, factor in pairs):
        raise ValueError("is no list of counts and factors of at least 1, as 1x1.2,2x1.5")
    return pairs


def _option(kind: Callable[[str], Any], default: Any, text: str, least: float = 0.0, most: float = math.inf) -> Any:
    return dataclasses.field(default=default if not isinstance(default, str) or kind is str else kind(default),
                             metadata={"kind": kind, "text": text, "least": least, "most": most, "default": default})


WIRES = ("f32", "bf16", "int8", "int4")  # int2 has no zero: only for sparse numbers


@dataclasses.dataclass(frozen=True)
class Job:
    """What the planner asks for. Times in seconds, sizes in bytes, rates in bytes a second. Every field is an option."""

    params: int = _option(parse_count, "7B", "parameters of the model, P")
    layers: int = _option(parse_count, "32", "layers of equal size, L")
    replicas: int = _option(parse_count, "8", "replicas, N")
    shards: int = _option(parse_count, "8", "ranks that share a replica, M; there are N M ranks")
    step: float = _option(parse_duration, "1s", "mean time that a rank computes in a step: all micro-batches and the optimizer, no waits", 1e-9)
    slow: Slow = _option(parse_slow, "0", "replicas that always take longer than --step, as 1x1.2: one takes 1.2 times as long; 0: none")
    spread_between: float = _option(parse_share, "0%", "standard deviation of the replicas' paces: some are always slower", 0, 0.5)
    spread_within: float = _option(parse_share, "0%", "standard deviation of a rank's time from step to step", 0, 0.5)
    forward: float = _option(parse_share, "0.33", "share of a step before its backward pass", 0.01, 0.99)
    hidden: float = _option(parse_share, "100%", "share of the forward pass behind which an exchange hides; 0 with PyTorch's fully_shard", 0, 1)
    micro_batches: int = _option(parse_count, "1", "micro-batches of a step; ddp reduces gradients in the last one")
    interval: int = _option(parse_count, "16", "H: steps between exchanges")
    synchronous: float = _option(parse_share, "0%", "share of the steps, at the beginning, that are synchronous: local_sgd_warmup_steps", 0, 1)
    outer_momentum: float = _option(parse_plain, "0.8", "0: the outer optimizer needs no array for it (not co2, sparseloco)", 0, 0.999)
    tau: float = _option(parse_duration, "0", "a-edit: time between exchanges; 0: the time of H steps")
    overlap_steps: int = _option(parse_count, "1", "edit+overlap: steps behind which an exchange runs")
    wire: str = _option(str, "f32", "format of pseudo-gradients between replicas, where the method has none of its own: " + ", ".join(WIRES))
    precision: str = _option(str, "f32", "format of parameters and gradients on the links and in the model: f32, bf16 (with f32 masters)")
    rate: float = _option(parse_rate, "10Gbit", "rate at which a rank sends to other replicas, and receives; 100Gbit/8: eight ranks share a link")
    round_trip: float = _option(parse_duration, "200us", "round trip between replicas")
    inner_rate: float = _option(parse_rate, "3.6Tbit", "the same within a replica")
    inner_round_trip: float = _option(parse_duration, "10us", "the same within a replica")
    rate_share: float = _option(parse_share, "0.93", "share of a rate that payload reaches; measure it by entrain-perf all_reduce", 0.01, 1)
    fan_share: float = _option(parse_share, "0.85", "share of that which remains where three or more replicas all send to all", 0.01, 1)
    message: float = _option(parse_duration, "30us", "time of a message besides its bytes and its way")
    window: float = _option(parse_size, "4MiB", "largest window of a tcp connection (net.ipv4.tcp_wmem); a path has up to 16", 1)
    memory_rate: float = _option(parse_rate, "30GB/s", "rate at which a rank's passes over arrays read and write")
    pack: float = _option(parse_duration, "3ns", "time to pack a number for the wire (int8, int4, int2 of sparseloco), and again to unpack it")
    sparsify: float = _option(parse_duration, "10ns", "time to choose the numbers that are sent, a number")
    failures: float = _option(parse_frequency, "2e-5", "failures of a rank in an hour; also as 3/day, 1/3days, 1/year", 0, 3600)
    on_loss: str = _option(str, "finish", "finish: the others go on (not ddp, sparseloco, post-local-sgd); fail: the job starts again")
    restart: float = _option(parse_duration, "5min", "from a failure until a whole job trains again")
    replace: float = _option(parse_duration, "5min", "finish: from a failure until a replacement has started; the transfer of its state comes on top")
    stall: float = _option(parse_duration, "120ms", "finish: time that the others lose, besides 10 round trips")
    checkpoint_every: float = _option(parse_duration, "10min", "time between checkpoints", 1e-3)
    checkpoint: float = _option(parse_duration, "5s", "time that a checkpoint stops training")
    memory: float = _option(parse_size, "0", "memory of a rank for training state; methods that need more are not taken; 0: no limit")
    host_memory: float = _option(parse_size, "0", "the same for the method's part, if it is apart from the model, on a device; 0: no such part")
    tolerance: float = _option(parse_share, "5%", "goodput that a method may lack against the best and still be taken", 0, 1)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least, most = field.metadata["least"], field.metadata["most"]
            if isinstance(value, (int, float)) and not least <= value <= most:
                raise PlanError(field.name, value, f"is not between {least:g} and {most:g}" if most < math.inf else f"is below {least:g}")
        for name, words in (("wire", WIRES), ("precision", ("f32", "bf16")), ("on_loss", ("finish", "fail"))):
            if getattr(self, name) not in words:
                raise PlanError(name, getattr(self, name), f"is none of {', '.join(words)}")
        if self.layers > self.params:
            raise PlanError("layers", self.layers, f"is more than the {self.params} parameters")
        if self.overlap_steps > self.interval:
            raise PlanError("overlap_steps", self.overlap_steps, f"is more than the {self.interval} steps of --interval")

        if sum(count for count, _ in self.slow) > self.replicas:
            raise PlanError("slow", self.slow, f"are more than the {self.replicas} replicas")

    @property
    def paces(self) -> Slow:
        """How many replicas take how many times the time of --step."""
        usual = self.replicas - sum(count for count, _ in self.slow)
        return (((usual, 1.0),) if usual else ()) + self.slow

    @property
    def ranks(self) -> int:
        return self.replicas * self.shards


class PlanError(ValueError):
    """A value that is refused, by its option."""

    def __init__(self, name: str, value: object, why: str) -> None:
        super().__init__(f"--{name.replace('_', '-')}: {value!r} {why}")


#: Other defaults.
PRESETS: Dict[str, Dict[str, str]] = {
    "cluster": {"params": "7B", "replicas": "8", "shards": "8", "rate": "100Gbit", "round_trip": "50us"},
    "sites": {"params": "1B", "layers": "24", "replicas": "4", "shards": "8", "rate": "1Gbit", "round_trip": "100ms", "interval": "64"},
    "internet": {"params": "350M", "layers": "24", "replicas": "16", "shards": "1", "rate": "100Mbit", "round_trip": "50ms", "step": "2s",
                 "interval": "128", "spread_between": "15%", "spread_within": "10%", "failures": "1e-3"},
}

# ---- Methods -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Method:
    """What the planner needs to know of a method (docs/training.md, docs/acco.md)."""

    name: str
    local: bool = True  # replicas exchange pseudo-gradients; otherwise gradients are exchanged at every step
    outer_arrays: int = 2  # f32 arrays of a shard between exchanges: anchor, momentum
    passes: int = 44  # bytes that the passes of an exchange read and write, a parameter
    wire: str = ""  # "": that of the job
    density: float = 1.0
    fragments: bool = False
    overlap: int = 0  # steps; -1: the job's, -2: H
    timed: bool = False  # exchanges after tau
    alone: bool = False  # no replica waits for another
    finishes: bool = True  # on_loss = finish
    #: Against synchronous training, by settings, as docs/choose.md has them.
    losses: Dict[str, str] = dataclasses.field(default_factory=dict, hash=False)


# In the order in which they are taken if they are about as fast; the last two are the last resorts of docs/choose.md.
METHODS = (
    Method("ddp", local=False, finishes=False), Method("zero1", local=False),
    Method("acco", local=False, losses={"as many micro-batches in an update as zero1": "+0.51 %"}),
    Method("edit", passes=48, losses={"H = 16, 25 % synchronous": "+0.22 %", "H = 8, none synchronous": "+2.80 %",
                                      "H = 16, none synchronous": "+4.60 %", "H = 32, none synchronous": "+6.17 %",
                                      "H = 64, none synchronous": "+8.32 %"}),
    Method("a-edit", passes=48, timed=True, losses={"25 % synchronous": "+0.61 %"}),
    Method("edit+overlap", passes=48, overlap=-1),
    Method("diloco", losses={"H = 16, 25 % synchronous": "+0.31 %"}),
    Method("streaming-diloco", wire="int4", fragments=True, overlap=1, losses={"H = 16, 25 % synchronous": "+3.04 %"}),
    Method("decoupled-diloco", fragments=True, overlap=-2, alone=True),
    Method("sparseloco", outer_arrays=1, wire="int2", density=1 / 64, finishes=False),
    Method("post-local-sgd", outer_arrays=0, passes=20, wire="f32", finishes=False, losses={"H = 16, 25 % synchronous": "+4.18 %"}),
    Method("co2", overlap=-2, losses={"H = 16, 25 % synchronous": "+9.39 %"}),
)
BY_NAME = {method.name: method for method in METHODS}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A row of the table. Seconds and bytes, a step and a rank."""

    method: str
    step_s: float
    compute_s: float
    wait_s: float
    exposed_s: float
    sent_across: float
    sent_within: float
    memory: float
    memory_method: float  # the part of it which the method needs
    goodput: float
    fits: bool  # into --memory
    in_time: bool  # decoupled-diloco: the rounds of an interval end within H steps


# ---- Formulas; docs/plan.md explains each ------------------------------------------------------


@functools.lru_cache(maxsize=None)
def largest_of(n: int) -> Tuple[float, float]:
    """Returns mean and standard deviation of the largest of n standard normal numbers."""
    if n == 1:
        return 0.0, 1.0
    width, normal = 0.005, statistics.NormalDist()
    mean = square = 0.0
    for index in range(int(9 / width)):
        x = (index + 0.5) * width
        above, below = 1 - normal.cdf(x) ** n, normal.cdf(-x) ** n
        mean += (above - below) * width
        square += 2 * x * (above + below) * width
    return mean, math.sqrt(square - mean * mean)


@dataclasses.dataclass(frozen=True)
class Link:
    """The way between `n` ranks."""

    n: int
    rate: float
    round_trip: float
    message: float
    fan_share: float

    def _latency(self, hops: float, messages: float) -> float:
        return hops * self.round_trip / 2 + messages * self.message

    @property
    def all_to_all(self) -> float:
        """The rate of payload if all ranks send to all."""
        return self.rate * (self.fan_share if self.n > 2 else 1)

    @property
    def _levels(self) -> int:
        return math.ceil(math.log2(self.n))

    def half(self, data: float) -> Tuple[float, float]:
        """Latency, and time of the bytes, of a reduce-scatter or an all-gather."""
        if self.n == 1:
            return 0.0, 0.0
        latency = min(self._latency(1, self.n - 1), self._latency(self._levels, self._levels))
        return latency, (self.n - 1) / self.n * data / self.all_to_all

    def all_reduce(self, data: float) -> Tuple[float, float]:
        """The same of an all_reduce: two halves, or one hop with more bytes, whose excess then counts as latency."""
        if self.n == 1:
            return 0.0, 0.0
        latency, wire = (2 * value for value in self.half(data))
        direct = self._latency(1, self.n - 1) + (self.n - 1) * data / self.all_to_all
        return min(latency, direct - wire), wire


def _across(job: Job) -> Link:
    path = 16 * job.window / job.round_trip if job.round_trip >= _LONG else math.inf
    return Link(job.replicas, min(job.rate * job.rate_share, path), job.round_trip, job.message, job.fan_share)


def _within(job: Job) -> Link:
    return Link(job.shards, job.inner_rate * job.rate_share, job.inner_round_trip, job.message, 1.0)


_LONG, _SITES = 1e-3, 4e-3  # round trips from which paths are long, and ranks are at different sites (docs/tcp.md)
_IN_FLIGHT = 64 * 2**20  # in_flight_bytes


def _width(job: Job) -> int:
    return 4 if job.precision == "f32" else 2


def _gathers(job: Job) -> Tuple[float, float]:
    """Exposed time, and bytes, of a sharded replica's gathers and reductions in a step."""
    layer = _width(job) * job.params / job.layers
    gather = sum(_within(job).half(layer))
    ahead, back = (part * job.step / job.micro_batches / job.layers for part in (job.forward, 1 - job.forward))
    exposed = 3 * gather + (job.layers - 1) * (max(0.0, gather - ahead) + max(0.0, 2 * gather - back))
    sent = 3 * (job.shards - 1) / job.shards * _width(job) * job.params
    return job.micro_batches * exposed, job.micro_batches * sent


def _values(wire: str, v: float, block: int = 256) -> float:
    """V(v) of docs/training.md."""
    return {"f32": 4 * v, "bf16": 2 * v, "int8": v, "int4": v / 2, "int2": v / 4}[wire] + (4 * v / block if wire.startswith("int") else 0)


def _layer_bytes(job: Job, method: Method, replicas: int) -> float:
    """Bytes that a rank sends to other replicas for a layer in an exchange (docs/training.md, "What travels")."""
    n = job.params / job.layers / job.shards / replicas
    wire = method.wire or job.wire
    if method.density < 1:
        sent = n * method.density
        union = n * (1 - (1 - method.density) ** replicas)
        both = 8 + min(n / 8, 4 * sent) + _values("int2", sent, 64) + 8 + min(n / 8, 4 * union) + _values("bf16", union)
        return (replicas - 1) * (16 + both)
    if wire == "f32":
        return 2 * (replicas - 1) * 4 * n
    return (replicas - 1) * (8 + _values(wire, n) + 8 + _values(wire, n))


def _arrays(job: Job, method: Method) -> int:
    """Arrays of the outer optimizer, the anchor included."""
    return 1 if method.outer_arrays == 2 and job.outer_momentum == 0 and method.name != "co2" else method.outer_arrays


@dataclasses.dataclass(frozen=True)
class Exchange:
    exposed: float  # in front of the layers of one step
    whole: float  # from its beginning to its end, behind other computation
    sent: float


def exchange(job: Job, method: Method, fragments: int = 1) -> Exchange:
    """One exchange of pseudo-gradients, of the layers of one fragment."""
    link = _across(job)
    if link.n == 1:
        return Exchange(0.0, 0.0, 0.0)
    layers = job.layers / fragments
    shard, form = job.params / job.layers / job.shards, method.wire or job.wire
    sent = _layer_bytes(job, method, link.n)
    if form == "f32":
        latency, wire = link.all_reduce(4 * shard)
    else:  # packed: an all-to-all and an all-gather
        latency, wire = 2 * link.half(0)[0], sent / link.all_to_all
    packing = (2 * job.pack if form.startswith("int") else 0.0) * shard + (job.sparsify * shard if method.density < 1 else 0.0)
    passes = (method.passes - 8 - (8 if _arrays(job, method) < method.outer_arrays else 0)) * shard / job.memory_rate
    first = 8 * shard * layers / job.memory_rate + sum(link.half(link.n * (64 + 8 * layers)))  # norms, and the rendezvous
    one = latency + wire + packing + passes
    ahead = job.hidden * job.forward * job.step / job.micro_batches / job.layers
    busy = max(wire, packing, passes)
    if job.round_trip >= _SITES:
        stage = max(busy, one / max(2, _IN_FLIGHT // (4 * shard)))
        exposed = first + one + (layers - 1) * max(0.0, stage - ahead)
    else:
        stage = max(busy, one / 2)
        exposed = first + one + (layers - 1) * max(0.0, one - ahead)
    return Exchange(exposed, first + one + (layers - 1) * stage, layers * sent + (link.n - 1) * (64 + 8 * layers))


def _waits(job: Job, steps: float, slack: float = 0.0) -> float:
    """Time that replicas wait for the slowest of them in `steps` steps, and the ranks of a replica for each other in each step. `slack`:
    time for which a replica does not wait for another."""
    most, spread = largest_of(job.shards)
    always, random = steps * job.spread_between * job.step, math.sqrt(steps) * job.spread_within * spread * job.step
    waits = []
    for _, factor in job.paces:
        largest = largest_of(sum(count for count, other in job.paces if other >= factor))[0]
        wait = steps * (factor - 1) * job.step + largest * always
        if random > 0:
            wait += largest * (math.hypot(always, random) - always) / (1 + 2 * largest * slack / random)
        waits.append(wait)
    return max(waits) + steps * job.spread_within * most * job.step


def _ideal(job: Job) -> float:
    """A step if no rank waits: the mean pace of the replicas."""
    return job.step * job.replicas / sum(count / factor for count, factor in job.paces) / (1 + job.spread_between**2)


def _ddp(job: Job) -> Tuple[float, float, float, float]:
    shard = job.params / job.layers / job.shards
    latency, wire = _across(job).all_reduce(_width(job) * shard)
    passes = 12 * shard / job.memory_rate if job.replicas > 1 else 0.0
    one = latency + wire + passes
    together = max(2, _IN_FLIGHT // (_width(job) * shard)) if job.round_trip >= _SITES else 2
    stage = max(wire, passes, one / together)
    back = (1 - job.forward) * job.step / job.micro_batches / job.layers
    within, sent_within = _gathers(job)
    exposed = one + (job.layers - 1) * max(0.0, stage - back) + within
    return job.step + _waits(job, 1), exposed, wire * _across(job).all_to_all * job.layers, sent_within


@dataclasses.dataclass(frozen=True)
class Round:
    """A round of a gradient channel over all ranks: an estimate, and what a commit takes longer and sends more."""

    seconds: float
    across: float
    within: float
    copying: float = 0.0
    copied: float = 0.0


def _round(job: Job) -> Round:
    data = _width(job) * job.params
    inner, outer = _within(job), _across(job)
    near, far = inner.half(data), outer.half(data / job.shards)
    wire = max(near[1], far[1])
    shard = job.params / job.ranks
    seconds = 2 * (near[0] + far[0] + wire) + (28 * shard + 3 * data) / job.memory_rate
    across, within = 2 * far[1] * outer.all_to_all, 2 * near[1] * inner.all_to_all
    if job.on_loss == "fail" or job.ranks == 1:
        return Round(seconds, across, within)
    # The neighbour's sum, the votes, and the step on the copy of the neighbour's shard (docs/acco.md, "After a loss").
    ring = outer if outer.n > 1 else inner
    sent = _width(job) * shard
    copying = ring.round_trip / 2 + ring.message + sent / ring.rate + ring.half(32 * ring.n)[0] + (28 * shard + 2 * data) / job.memory_rate
    return Round(seconds, across, within, copying, sent if outer.n > 1 else 0.0)


def _copies(job: Job) -> float:
    """The passes of an install in the caller's thread: gradients to the round, a cleared accumulator, parameters back."""
    return 5 * _width(job) * job.params / job.memory_rate


def _zero1(job: Job) -> Tuple[float, float, float, float]:
    one = _round(job)
    return job.step + _waits(job, 1), one.seconds + one.copying + _copies(job), one.across + one.copied, one.within


def _acco(job: Job) -> Tuple[float, float, float, float]:
    one, half = _round(job), job.step / 2
    wait = _waits(job, 1, 2 * max(0.0, half - one.seconds - one.copying / 2))
    exposed = sum(max(0.0, seconds - half - wait / 2) for seconds in (one.seconds, one.seconds + one.copying)) + 2 * _copies(job)
    return job.step + wait, exposed, 2 * one.across + one.copied, 2 * one.within


def _all_rounds(job: Job, method: Method) -> Tuple[int, Exchange]:
    """The fragments of an interval, and the exchange of one."""
    fragments = min(8, job.layers) if method.fragments else 1
    return fragments, exchange(job, method, fragments)


def _between(job: Job, method: Method) -> float:
    """Steps between exchanges. Replicas that do not wait for rounds have them as often as rounds end."""
    if method.timed and job.tau > 0:
        return max(1.0, job.tau / job.step)
    if method.alone:
        fragments, one = _all_rounds(job, method)
        return max(float(job.interval), fragments * one.whole / job.step)
    return float(job.interval)


def _local(job: Job, method: Method) -> Tuple[float, float, float, float]:
    within, sent_within = _gathers(job)
    steps = _between(job, method)
    fragments, one = _all_rounds(job, method)
    overlap = {-1: job.overlap_steps, -2: job.interval}.get(method.overlap, method.overlap)
    if overlap:
        merges = 0.0 if job.replicas == 1 else 24 * job.params / job.shards / job.memory_rate  # the snapshot, and the merge, by the caller
        exposed = (0.0 if method.alone else fragments * max(0.0, one.whole - overlap * job.step)) + merges
    else:
        exposed = one.exposed
    inside = steps * job.spread_within * largest_of(job.shards)[0] * job.step
    if method.alone:
        pace, wait = _ideal(job), inside
    elif method.timed:
        # The last step of each replica ends after tau: the residues are even between 0 and a step.
        residue = job.step * max(factor for _, factor in job.paces) * (job.replicas / (job.replicas + 1) - 0.5)
        pace, wait = _ideal(job), inside + min(residue, _waits(job, steps) - inside)
    else:
        pace, wait = job.step, _waits(job, steps, max(0.0, overlap * job.step - one.whole) if overlap else 0.0)
    return pace + wait / steps, exposed / (job.interval if method.alone else steps) + within, fragments * one.sent / steps, sent_within


def _memory(job: Job, method: Method) -> Tuple[float, float]:
    """Bytes of a rank: for parameters, gradients, AdamW and gathered layers; for the method (docs/training.md, docs/acco.md)."""
    shard = job.params / job.shards
    if method.name in ("zero1", "acco"):  # the method holds gradients and AdamW
        copies = 0.0 if job.on_loss == "fail" or job.ranks == 1 else _width(job) * job.params + (12 + _width(job)) * job.params / job.ranks
        return 1.0 * _width(job) * job.params, 2.0 * _width(job) * job.params + 12 * job.params / job.ranks + copies
    layer = job.params / job.layers
    held = 16 * shard + (2 * 2 * _width(job) * layer if job.shards > 1 else 0)
    if method.name == "ddp" or job.replicas == 1:
        return held, 0.0
    during = 8 * layer / job.shards
    if job.round_trip >= _SITES:
        during = 2 * max(during, min(_IN_FLIGHT, 4 * shard))
    return held, 4 * _arrays(job, method) * shard + during + (4 * shard if method.overlap else 0) + (4 * shard if method.density < 1 else 0)


def _fits(job: Job, model: float, method: float) -> bool:
    if job.host_memory > 0:
        return method <= job.host_memory and (job.memory == 0 or model <= job.memory)
    return job.memory == 0 or model + method <= job.memory


def joining(job: Job, method: Method) -> float:
    """Seconds for which the state travels to a joining rank, over its own link (docs/edit-replicas.md, docs/acco.md)."""
    state = 4 * _arrays(job, method) * job.params / job.shards if method.local else 12 * job.params / job.ranks
    return state / _across(job).rate


def availability(job: Job, method: Method, step_s: float) -> float:
    """The share of time that failures and checkpoints leave."""
    every, hourly = job.checkpoint_every, job.failures / 3600
    if not method.finishes or job.on_loss == "fail" or (job.replicas if method.local else job.ranks) == 1:
        all_ranks = hourly * job.ranks
        if all_ranks == 0:
            return every / (every + job.checkpoint)
        exponent = all_ranks * (every + job.checkpoint)
        return 0.0 if exponent + all_ranks * job.restart > 500 else \
            all_ranks * every / (math.exp(all_ranks * job.restart) * math.expm1(exponent))
    unit = job.shards if method.local else 1
    lost = (_between(job, method) / 2 if method.local else 0.5) * step_s
    stalls = 0.0 if method.alone else hourly * job.ranks * (job.stall + 10 * job.round_trip)
    return every / (every + job.checkpoint) / (1 + hourly * unit * (job.replace + joining(job, method) + lost)) / (1 + stalls)


def estimate(job: Job, name: str) -> Estimate:
    """Returns the row of a method."""
    method = BY_NAME[name]
    parts = _local(job, method) if method.local else {"ddp": _ddp, "zero1": _zero1, "acco": _acco}[name](job)
    first = job.synchronous if method.local else 0.0  # these steps are those of ddp
    paced, exposed, across, within = (first * one + (1 - first) * other for one, other in zip(_ddp(job), parts))
    step, ideal = paced + exposed, _ideal(job)
    model, own = _memory(job, method)
    return Estimate(name, step, ideal, paced - ideal, exposed, across, within, model + own, own,
                    ideal / step * availability(job, method, step), _fits(job, model, own), not method.alone or _between(job, method) <= job.interval)


# ---- The choice, and the output ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Choice:
    method: str
    interval: Optional[int]  # H, with tau: in steps of --step; None: gradients at every step
    tau: Optional[float]  # a-edit
    goodput: float
    why: str
    notes: Sequence[str]  # sentences


_FIRST = ("edit", "a-edit", "edit+overlap", "diloco")
_MEASURED, _LONGEST = 64, 512  # steps: the largest H of docs/choose.md's losses; the largest that is taken


def _candidates(job: Job) -> List[Tuple[Optional[int], Estimate]]:
    """Returns settings in the order of the tree of docs/choose.md: gradients at every step; EDiT and its kin up to the largest H whose loss was
    measured; the methods that send less, or never wait; then all with larger H. Without room for an anchor: post-local-sgd."""
    found: List[Tuple[Tuple[int, int], Optional[int], Estimate]] = []
    for method in METHODS:
        if not method.local:
            found.append(((0, 0), None, estimate(job, method.name)))
            continue
        interval, wanted = job.interval, method.timed and job.tau > 0
        while interval <= max(job.interval, _LONGEST):
            at = dataclasses.replace(job, interval=interval)
            steps = round(_between(at, method)) if wanted else interval
            group = 1 if wanted else 3 if steps > _MEASURED else 1 if method.name in _FIRST else 2
            found.append(((group, steps), steps, estimate(at, method.name)))
            interval = 2**62 if wanted else interval * 2
    found.sort(key=lambda setting: setting[0])  # keeps the order of METHODS
    rows = [(steps, row) for _, steps, row in found if row.fits and row.in_time and row.method != "co2"]
    if not rows:
        least = size_text(min(row.memory for _, _, row in found))
        raise PlanError("memory", size_text(job.memory), f"is too little: every method needs {least} or more" if job.host_memory == 0 else
                        f"and --host-memory {size_text(job.host_memory)} are too little for every method")
    anchored = any(BY_NAME[row.method].local and row.method != "post-local-sgd" for _, row in rows)
    return [(steps, row) for steps, row in rows if not anchored or row.method != "post-local-sgd"]


def _loss(job: Job, method: Method, steps: Optional[int]) -> str:
    """Returns a sentence: what is known of the method's loss at this setting."""
    against = "zero1" if method.name == "acco" else "ddp"
    share = "none synchronous" if job.synchronous == 0 else "25 % synchronous" if 0.2 <= job.synchronous <= 0.3 else "other"
    alike = {settings: loss for settings, loss in method.losses.items() if steps is None or share in settings}
    for settings, loss in alike.items():
        # The runs of a-edit had a tau of about 16 steps.
        if steps is None or f"H = {steps}," in settings or "H =" not in settings and 12 <= steps <= 24:
            unlike = f"; in f32, not {job.wire}" if method.local and not method.wire and job.wire != "f32" else ""
            return f"Its loss in one small model was {loss} against {against} ({settings}{unlike}; other settings: docs/choose.md)."
    if not method.losses:
        return f"Its loss beside {against} was not measured: docs/choose.md."
    known = ", ".join(f"{loss} with {settings.replace(', ', ' and ')}" for settings, loss in (alike or method.losses).items())
    return f"Its loss at this H and share of synchronous steps was not measured; in one small model it was {known}, against {against}: " \
           "docs/choose.md."


def choose(job: Job) -> Choice:
    """Returns the setting to take: the first candidate whose goodput lacks at most the tolerance against the best of them. Methods that exchange
    gradients at every step come first, because the others may cost quality."""
    found = _candidates(job)
    best = max(row.goodput for _, row in found)
    steps, row = next((steps, row) for steps, row in found if row.goodput >= best * (1 - job.tolerance))
    method = BY_NAME[row.method]
    every = [other for interval, other in found if interval is None]
    if steps is None:
        why = f"it exchanges gradients at every step, and its goodput of {percent(row.goodput)} is " + \
              ("the best" if percent(row.goodput) == percent(best) else f"within {percent(job.tolerance)} of the best one ({percent(best)})")
    elif not every:
        why = f"its goodput is {percent(row.goodput)}, and the methods that exchange gradients at every step need more memory"
    else:
        other = max(every, key=lambda row: row.goodput)
        parts = [("communication", other.exposed_s), ("waiting for slower ranks", other.wait_s)]
        what, seconds = max(parts, key=lambda part: part[1])
        because = f"because a step takes {time_text(other.step_s)}, of which {time_text(seconds)} is {what}"
        if seconds < other.step_s * (1 - other.goodput) / 2:
            because = "because of failures"
        why = f"its goodput is {percent(row.goodput)}; {other.method}, the best that exchanges gradients at every step, reaches " \
              f"{percent(other.goodput)} {because}"
    notes = []
    if steps is not None or method.losses:
        notes.append(_loss(job, method, steps))
    if steps is not None and method.overlap and not method.alone and job.on_loss == "finish":
        notes.append("That lost replicas are replaced needs the library's admit: entrain-train's --admit and entrain.torch.Checkpoints are "
                     "refused with exchanges behind steps.")
    tau = (job.tau or steps * job.step) if steps is not None and method.timed else None
    return Choice(row.method, steps, tau, row.goodput, why, notes)


def _scaled(value: float, units: Sequence[Tuple[float, str]]) -> str:
    factor, unit = next(((factor, unit) for factor, unit in units if value >= factor), units[-1])
    text = f"{value / factor:.3g}"
    return f"{float(text):g} {unit}" if "e" in text else f"{text} {unit}"


def time_text(seconds: float) -> str:
    return "0" if seconds < 5e-7 else _scaled(seconds, ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")))


def size_text(data: float) -> str:
    return "0" if data < 0.5 else _scaled(data, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def percent(value: float) -> str:
    return f"{100 * value:.3g} %" if value < 0.9995 else "100 %"


_HEAD = ("method", "step", "compute", "waits", "exposed", "sent across", "sent within", "memory", "the method's", "goodput")


def table(rows: Sequence[Estimate]) -> str:
    """Returns the table, which is Markdown too."""
    cells = [_HEAD] + [(row.method + ("" if row.in_time else " *"),
                        *(time_text(value) for value in (row.step_s, row.compute_s, row.wait_s, row.exposed_s)),
                        *(size_text(value) for value in (row.sent_across, row.sent_within)), size_text(row.memory) + ("" if row.fits else " !"),
                        size_text(row.memory_method), percent(row.goodput)) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["| " + " | ".join(f"{cell:{width}}" if at == 0 else f"{cell:>{width}}" for at, (cell, width) in enumerate(zip(line, widths))) +
             " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 1 + (at == 0)) + (":" if at else "") for at, width in enumerate(widths)) + "|")
    if not all(row.fits for row in rows):
        lines += ["", "! needs more memory than there is."]
    if not all(row.in_time for row in rows):
        lines += ["", "* its rounds take longer than H steps, so exchanges are rarer than H says."]
    return "\n".join(lines)


def choice_text(choice: Choice) -> str:
    setting = choice.method
    if choice.tau is not None:
        setting += f" with tau = {time_text(choice.tau)} (about {choice.interval} steps)"
    elif choice.interval is not None:
        setting += f" with H = {choice.interval}"
    return " ".join([f"Take {setting}: {choice.why}.", *choice.notes])


def draw(rows: Sequence[Estimate], path: str) -> None:
    """Draws how each method divides the time of the ranks."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise PlanError("picture", path, "needs the package matplotlib, which is not installed") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(rows) + 1.4))
    names, left = [f"{row.method}, {time_text(row.step_s)} a step" for row in rows], [0.0] * len(rows)
    running = [row.goodput * row.step_s / row.compute_s for row in rows]  # without failures and checkpoints
    for label, color, values in (
            ("compute", "#4477aa", [row.goodput for row in rows]),
            ("waits", "#ccbb44", [share * row.wait_s / row.step_s for share, row in zip(running, rows)]),
            ("exposed communication", "#ee6677", [share * row.exposed_s / row.step_s for share, row in zip(running, rows)]),
            ("failures and checkpoints", "#bbbbbb", [1 - share for share in running])):
        axes.barh(names, [100 * value for value in values], left=left, color=color, label=label)
        left = [before + 100 * value for before, value in zip(left, values)]
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the ranks' time")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    try:
        figure.savefig(path, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise PlanError("picture", path, str(error)) from None
    finally:
        pyplot.close(figure)


# ---- The command -------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(f"{self.prog}: {message}")


def _options_text(texts: Dict[str, str]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {text}" for name, text in texts.items())


def _parser() -> argparse.ArgumentParser:
    installed = os.path.basename(sys.argv[0]) == "entrain-plan"
    parser = _Parser(prog="entrain-plan" if installed else "python -m entrain.plan", description=__doc__,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    presets = "; ".join(f"{name}: {_options_text(values)}" for name, values in PRESETS.items())
    parser.add_argument("--preset", choices=PRESETS, help=f"other defaults. {presets}".replace("%", "%%"))
    for field in dataclasses.fields(Job):
        text, default = field.metadata["text"], field.metadata["default"]
        parser.add_argument("--" + field.name.replace("_", "-"), metavar="VALUE", help=f"{text} ({default})".replace("%", "%%"))
    parser.add_argument("--json", action="store_true", help="print one JSON object: the job, a list of methods, the setting to take")
    parser.add_argument("--picture", metavar="FILE", help="also draw how the ranks' time is divided, as FILE.svg or .png (needs matplotlib)")
    return parser


def job_of(texts: Dict[str, str]) -> Job:
    """Returns the job of these options, by the names of the fields."""
    values = {}
    for field in dataclasses.fields(Job):
        if field.name in texts:
            try:
                values[field.name] = field.metadata["kind"](texts[field.name])
            except ValueError as error:
                raise PlanError(field.name, texts[field.name], str(error)) from None
    return Job(**values)


def _job_text(job: Job) -> str:
    tau = f", tau = {time_text(job.tau)}" if job.tau > 0 else ""
    return f"{job.ranks} ranks: {job.replicas} replicas of {job.shards}; {_scaled(job.params, ((1e9, 'B'), (1e6, 'M'), (1, '')))} parameters " \
           f"in {job.layers} layers; H = {job.interval}{tau}. Times and bytes are those of a step and a rank."


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    own = {field.name: given[field.name] for field in dataclasses.fields(Job) if given[field.name] is not None}
    preset = {name: text for name, text in PRESETS.get(given["preset"], {}).items() if name not in own}
    texts = {**preset, **own}
    try:
        job = job_of(texts)
        rows = [estimate(job, method.name) for method in METHODS]
        choice = choose(job)
        if given["picture"] is not None:
            draw(rows, given["picture"])
    except PlanError as error:
        parser.error(str(error))
    if given["json"]:
        print(json.dumps({"job": dataclasses.asdict(job), "methods": [dataclasses.asdict(row) for row in rows],
                          "take": dataclasses.asdict(choice)}, indent=1))
    else:
        said = [f"--preset {given['preset']} sets {_options_text(preset)}."] if given["preset"] else []
        print(*said, _job_text(job), table(rows), choice_text(choice), sep="\n\n")


if __name__ == "__main__":
    main()
