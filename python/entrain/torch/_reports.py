"""What EDiT and ACCO tell while they train: ranges in profiles, lines in a log, and figures for TensorBoard or Weights & Biases."""
from __future__ import annotations

import contextlib
import logging
import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

from torch.profiler import record_function

from .. import _watch

#: Messages of level INFO for exchanges and joins, of level WARNING for losses.
LOG = logging.getLogger("entrain")

#: A SummaryWriter of torch.utils.tensorboard (or what has its add_scalar), a run of W&B (or what has its log), or a function of the
#: figures and the step.
Sink = Union[Any, Callable[[Dict[str, float], int], object]]


def span(name: str, layer: str = "") -> Any:
    """A range in torch.profiler's results, and for entrain.observe a wait of this thread."""
    observer = _watch.observer(of_backward=True)
    profiled = record_function(f"entrain::{name}")
    return profiled if observer is None else _both(profiled, observer.range(name, layer, waits=True))


@contextlib.contextmanager
def _both(outer: Any, inner: Any) -> Iterator[None]:
    with outer, inner:
        yield


def announce(made: object) -> None:
    """Must be called when an object is complete. Tells the observer of this thread (entrain.observe)."""
    observer = _watch.observer()
    if observer is not None:
        observer.add(made)


def _writes(sink: Sink) -> Callable[[Dict[str, float], int], object]:
    if hasattr(sink, "add_scalar"):
        def scalars(figures: Dict[str, float], step: int) -> None:
            for name, value in figures.items():
                sink.add_scalar(f"entrain/{name}", value, step)
        return scalars
    if hasattr(sink, "log"):
        return lambda figures, step: sink.log({f"entrain/{name}": value for name, value in figures.items()}, step=step)
    if callable(sink):
        return sink  # type: ignore[no-any-return]
    raise TypeError(f"report_to: {sink!r} has neither add_scalar (TensorBoard) nor log (W&B), and is no function")


class Reports:
    """Sees the information of an object after each step, and tells what is new.

    what     the object, as messages name it
    count    the field of the information that counts what is reported
    steps    the field that is the step of a report
    losses   returns the losses so far, each with `why`"""

    def __init__(self, what: str, count: str, steps: str, losses: Callable[[], Sequence[Any]]) -> None:
        self._what, self._count, self._steps, self._losses = what, count, steps, losses
        self._sinks: List[Callable[[Dict[str, float], int], object]] = []
        self._warmup: List[Callable[[], object]] = []
        self._last: Optional[Any] = None

    def add(self, sink: Sink, warmup: Optional[Callable[[], object]] = None) -> None:
        """warmup: called after each step of EDiT's warm-up, in which there are no reports."""
        self._sinks.append(_writes(sink))
        if warmup is not None:
            self._warmup.append(warmup)

    @property
    def wanted(self) -> bool:
        return bool(self._sinks) or LOG.isEnabledFor(logging.WARNING)

    def see(self, info: Any) -> None:
        last, self._last = self._last, info
        if last is None:
            return
        number = getattr(info, self._count)
        if info.losses > last.losses:
            for loss in self._losses()[last.losses:]:
                LOG.warning("%s: %s", self._what, loss.why)
        if info.joins > last.joins:
            LOG.info("%s: %d joined before %s %d", self._what, info.joins - last.joins, self._count, number)
        if getattr(info, "in_warmup", False):
            for tell in self._warmup:
                tell()
        if number <= getattr(last, self._count):
            return
        step = getattr(info, self._steps)
        LOG.info("%s: %s %d at %s %d, waited %.3f s since the last one", self._what, self._count, number, self._steps, step,
                 (info.exposed_ns - last.exposed_ns) / 1e9)
        if self._sinks:
            figures = {name: value for name, value in info.as_dict().items() if math.isfinite(value)}
            for sink in self._sinks:
                sink(figures, step)
