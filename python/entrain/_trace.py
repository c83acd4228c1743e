"""What a rank did when: the computation and the waits of its training thread, and its communication, as a trace for Perfetto."""
from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import os
import socket
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from .flight import flight_of

Span = Tuple[str, str, int, int]  # name, layer, begin and end in ns

# The recorder reads the kernel's coarse clock when a call ends, so the end may be later by one tick.
_TICK = int(time.clock_getres(getattr(time, "CLOCK_MONOTONIC_COARSE", 6)) * 1e9)


@dataclasses.dataclass
class Call:
    """A call of the flight recorder. Its end lies between `low` and `high`."""

    operation: str
    layer: str
    comm: str
    bytes: int
    begin: int
    low: int
    high: int
    over: bool


class Calls:
    """The calls of one runtime of this process, collected from dump to dump.

    process    the runtime's identity, as dumps have it
    layer_of   returns the layer of a call of a communicator, "" if it has none"""

    def __init__(self, process: str, layer_of: Callable[[Dict[str, Any], Dict[str, Any]], str]) -> None:
        self._process, self._layer_of = process, layer_of
        #: By what distinguishes a call: the calls of the last dump that have times. If `keeps` is set, of all dumps.
        self.found: Dict[Tuple[Any, ...], Call] = {}
        self.keeps = False
        self._last: Set[Tuple[Any, ...]] = set()  # the calls of the last dump
        #: By operation and layer: the number of calls, and their bytes.
        self.sums: Dict[Tuple[str, str], List[int]] = {}
        self._since = time.monotonic_ns()
        self._counted: Dict[str, int] = {}  # by communicator
        self._calls: Dict[str, int] = {}
        self.read()
        self._before = self._calls
        self._counted, self.sums = {}, {}

    def read(self) -> None:
        """Must be called often enough: the recorder keeps the last ENTRAIN_FLIGHT_CALLS calls of a communicator."""
        before = time.monotonic_ns()
        dump = flight_of(os.getpid())
        after = time.monotonic_ns()
        # The dump was made between these two instants, within the millisecond that it states.
        stated = dump["unix_ms"] * 1_000_000 - time.time_ns() + time.monotonic_ns()
        now = min(max((max(before, stated) + min(after, stated + 1_000_000)) // 2, before), after)
        last: Set[Tuple[Any, ...]] = set()
        self._calls = {}
        for comm in dump["communicators"]:
            if comm["members"][comm["rank"]]["process"] != self._process:
                continue
            self._calls[comm["id"]] = comm["calls_submitted"] + comm["calls_inline"]
            for call in comm["calls"]:
                if call.get("number") is None:  # torn, or a receive whose message has not come
                    continue
                key = (comm["id"], call["operation"], call["tag"], call["number"], call["peer"])
                last.add(key)
                if key not in self._last:
                    self._counted[comm["id"]] = self._counted.get(comm["id"], 0) + 1
                    sums = self.sums.setdefault((call["operation"], self._layer_of(comm, call)), [0, 0])
                    sums[0] += 1
                    sums[1] += call["bytes"]
                if call["path"] == "executor":  # the others have no times
                    self._take(key, comm, call, now)
        self._last = last
        if not self.keeps:
            self.found = {key: call for key, call in self.found.items() if key in last}

    def _take(self, key: Tuple[Any, ...], comm: Dict[str, Any], call: Dict[str, Any], now: int) -> None:
        begin = now - int(call["started_s_ago"] * 1e9)
        known = self.found.get(key)
        if begin >= self._since and (known is None or not known.over):
            over = call["state"] in ("done", "failed")
            low = max(begin, now - int(call["state_s"] * 1e9)) if over else now
            self.found[key] = Call(call["operation"], self._layer_of(comm, call), comm["name"], call["bytes"], begin, low,
                                   min(low + _TICK, now), over)

    @property
    def missed(self) -> int:
        """The number of calls that later calls have overwritten between two dumps."""
        return sum(max(0, count - self._before.get(comm, 0) - self._counted.get(comm, 0)) for comm, count in self._calls.items())

    def spans(self, waits: Sequence[Span]) -> List[Tuple[Call, int]]:
        """Returns the calls with their ends, in the order of their beginnings. An end that is known to the tick of the coarse clock
        alone is taken to be in the middle of the tick, or of its part before the next call of the same tag begins, or before the
        training thread goes on that has waited."""
        begins: Dict[Tuple[Any, ...], List[int]] = {}
        for key, call in self.found.items():
            begins.setdefault((key[0], key[2]), []).append(call.begin)
        for starts in begins.values():
            starts.sort()
        ends = sorted(end for _, _, _, end in waits)
        spans = []
        for key, call in self.found.items():
            high = call.high
            for later in (begins[key[0], key[2]], ends):
                place = bisect.bisect_left(later, max(call.low, call.begin + 1))
                high = min([high, *later[place:place + 1]])
            spans.append((call, (call.low + max(call.low, high)) // 2))
        return sorted(spans, key=lambda span: span[0].begin)


class Trace:
    """Records a rank's spans. The training thread is in one place at a time, so its spans are disjoint."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.compute: List[Span] = []
        self.waits: List[Span] = []
        self._stack: List[Tuple[str, str, bool]] = []
        self._since = 0
        self._hooks: List[Any] = []
        #: Whether an optimizer's step ends each step.
        self.sees_steps = False

    def enter(self, name: str, layer: str, waits: bool = False) -> None:
        self._emit()
        self._stack.append((name, layer, waits))

    def leave(self) -> None:
        if self._stack:
            self._emit()
            self._stack.pop()

    def _emit(self) -> None:
        now = time.monotonic_ns()
        if self._stack and now > self._since:
            name, layer, waits = self._stack[-1]
            if name != "backward":  # whose spans end with the gradients of a layer
                (self.waits if waits else self.compute).append((name, layer, self._since, now))
        self._since = now

    @contextlib.contextmanager
    def range(self, name: str, layer: str, waits: bool) -> Iterator[None]:
        self.enter(name, layer, waits)
        try:
            yield
        finally:
            self.leave()

    # ---- hooks of PyTorch --------------------------------------------------------------------------------------------------

    def attach(self, model: Any, layers: Sequence[Any], optimizer: Any, stepped: Callable[[], None]) -> None:
        """layers: with `name`, `module` and `params`. The model's own layer is what lies outside of the others."""
        from .torch._seams import Hook
        own = next((layer.name for layer in layers if layer.module is model), "the model")
        modules = {id(layer.module): layer for layer in layers if layer.module is not model}
        for layer in modules.values():
            self._hooks.append(layer.module.register_forward_pre_hook(Hook(lambda *_, name=layer.name: self.enter("forward", name))))
            self._hooks.append(layer.module.register_forward_hook(Hook(lambda *_: self.leave())))
        self._hooks.append(model.register_forward_pre_hook(Hook(lambda *_: self._begin_forward(own))))
        self._hooks.append(model.register_forward_hook(Hook(lambda module, _, output: self._end_forward(module.training))))
        for layer in layers:
            for _, param in layer.params:
                hook = Hook(lambda _, name=layer.name: self._gradient(name))
                self._hooks.append(param.register_post_accumulate_grad_hook(hook))
        self.sees_steps = optimizer is not None
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self._begin_step()))
            self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._end_step(stepped)))

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._stack = [], []

    def _end_backward(self) -> None:
        while self._stack and self._stack[-1][0] == "backward":
            self._stack.pop()

    def _begin_forward(self, layer: str) -> None:
        while self._stack and self._stack[-1][0] in ("forward", "backward"):  # of a pass that has raised, or is over
            self._stack.pop()
        self.enter("forward", layer)

    def _end_forward(self, training: bool) -> None:
        self.leave()
        if training and (not self._stack or self._stack[-1][0] == "optimizer"):  # in the closure of a step
            self.enter("backward", "")

    def _gradient(self, layer: str) -> None:
        if self._stack and self._stack[-1][0] == "backward":
            now = time.monotonic_ns()
            last = self.compute[-1] if self.compute else None
            if last is not None and last[:2] == ("backward", layer) and last[3] == self._since:
                self.compute[-1] = ("backward", layer, last[2], now)
            else:
                self.compute.append(("backward", layer, self._since, now))
            self._since = now

    def _begin_step(self) -> None:
        self._end_backward()
        self.enter("optimizer", "")

    def _end_step(self, stepped: Callable[[], None]) -> None:
        if self._stack and self._stack[-1][0] == "backward":  # of the closure, after which the optimizer computes
            self._stack.pop()
        self.leave()
        stepped()

    # ---- the file ----------------------------------------------------------------------------------------------------------

    def save(self, path: str, rank: int, replica: Optional[int]) -> None:
        offset = time.time_ns() - time.monotonic_ns()

        def event(name: str, kind: str, lane: int, begin: int, end: int, **words: Any) -> Dict[str, Any]:
            return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": lane, "ts": (begin + offset) / 1e3,
                    "dur": (end - begin) / 1e3, "args": words}

        events = [event(f"{name} {layer}".strip(), kind, 0, begin, end, layer=layer, operation=name)
                  for kind, spans in (("compute", self.compute), ("wait", self.waits)) for name, layer, begin, end in spans]
        free: List[int] = []  # by lane: the end of its last call
        ends = [end for _, _, _, end in self.waits]
        for call, end in self.calls.spans(self.waits):
            lane = next((index for index, last in enumerate(free) if last <= call.begin), len(free))
            free[lane:lane + 1] = [end]
            for kind, first, last in _parts(call.begin, end, self.waits[bisect.bisect_right(ends, call.begin):]):
                words: Dict[str, Any] = {"layer": call.layer, "operation": call.operation, "communicator": call.comm}
                if first == call.begin:  # of several parts, one has the bytes
                    words["bytes"] = call.bytes
                events.append(event(" ".join([call.operation, call.layer, kind]).replace("  ", " "), kind, lane + 1, first, last, **words))
        of = "" if replica is None else f", replica {replica}"
        names = [("process_name", 0, f"rank {rank}{of} ({socket.gethostname()}, process {os.getpid()})"), ("thread_name", 0, "training")]
        names += [("thread_name", lane + 1, f"communication {lane + 1}") for lane in range(len(free))]
        events += [{"ph": "M", "name": kind, "pid": rank, "tid": lane, "args": {"name": text}} for kind, lane, text in names]
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
        write(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "missed_calls": self.calls.missed}))


def _parts(begin: int, end: int, waits: Iterable[Span]) -> Iterator[Tuple[str, int, int]]:
    """Yields the parts of a call: "exposed", in which the training thread waits, and "hidden", in which it does not."""
    at = begin
    for _, _, first, last in waits:
        if first >= end:
            break
        if first > at:
            yield "hidden", at, first
        yield "exposed", max(first, at), min(last, end)
        at = min(last, end)
    if at < end or begin == end:
        yield "hidden", at, end


def write(path: str, text: str) -> None:
    """Writes a file in one move, so that a reader never sees a part of it."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(part, path)
