"""Metrics of a run for Prometheus and TensorBoard, and its traces for Perfetto. docs/observe.md has examples.

    with entrain.observe.Observer(textfile="metrics/entrain-{rank}.prom", trace="traces/{rank}.json"):
        edit = entrain.torch.EDiT(model, optimizer)      # or trainer.train(): what is made within the block is observed
        ...

    python -m entrain.observe traces/*.json -o all.json  # the traces of all ranks in one, and their sums"""
from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import logging
import math
import os
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _watch
from ._launch import shown
from ._trace import Calls, Trace, write
from .comm import Comm
from .errors import Error

# By field of an information: the metric, and its group.
_FIELDS: Dict[str, Tuple[str, str]] = {
    "steps": ("steps_total", ""), "syncs": ("exchanges_total", ""), "rendezvous": ("rendezvous_total", ""),
    "exposed_s": ("exposed_seconds_total", ""), "sync_s": ("exchange_seconds_total", ""),
    "bytes_sent_shard": ("sent_bytes_total", "shard"), "bytes_sent_sync": ("sent_bytes_total", "sync"),
    "in_warmup": ("warmup", ""), "metric": ("metric", ""), "rejections": ("rejected_layers_total", ""),
    "rollbacks": ("rolled_back_layers_total", ""), "replicas": ("replicas", ""), "losses": ("losses_total", ""),
    "joins": ("joins_total", ""), "short_rounds": ("short_exchanges_total", ""), "repairs": ("repaired_anchors_total", ""),
    "missed": ("missed_exchanges_total", ""),
    "rounds": ("rounds_total", ""), "commits": ("commits_total", ""), "gradients": ("gradients_total", ""),
    "tokens": ("tokens_total", ""), "dropped": ("dropped_microbatches_total", ""), "microbatches": ("microbatches", ""),
    "lr": ("learning_rate", ""), "grad_norm": ("gradient_norm", ""), "clip_factor": ("clip_factor", ""),
    "round_s": ("round_seconds_total", ""), "bytes_sent": ("sent_bytes_total", "sync"), "bytes_held": ("held_bytes", ""),
    "ranks": ("ranks", ""),
}

_HELP = {
    "steps_total": "Optimizer steps.", "exchanges_total": "Exchanges of EDiT.", "rendezvous_total": "Rendezvous of EDiT.",
    "exposed_seconds_total": "Time for which the training thread waited for other ranks.",
    "exchange_seconds_total": "Time of all exchanges, also behind computation.",
    "sent_bytes_total": "Payload sent for exchanges: group sync to other replicas, shard within the replica.",
    "warmup": "1 during EDiT's warm-up.", "metric": "Mean of the metric that the replicas have recorded.",
    "rejected_layers_total": "Layers of this replica that were rejected in exchanges.",
    "rolled_back_layers_total": "Layers that all replicas have rejected.", "replicas": "Replicas that are not lost.",
    "losses_total": "Lost replicas (EDiT) or ranks (ACCO).", "joins_total": "Replicas (EDiT) or ranks (ACCO) that have joined.",
    "short_exchanges_total": "Exchanges during which a replica was lost.", "repaired_anchors_total": "Layers whose anchors were repaired.",
    "missed_exchanges_total": "Rounds that were closed without this replica.",
    "rounds_total": "Rounds of ACCO.", "commits_total": "Commits of ACCO.", "gradients_total": "Micro-batches committed, of all ranks.",
    "tokens_total": "Tokens committed, of all ranks.", "dropped_microbatches_total": "Micro-batches of this rank that came too late.",
    "microbatches": "Micro-batches of all ranks in the last round.", "learning_rate": "Learning rate of the last round.",
    "gradient_norm": "Norm of the last round's mean gradient.", "clip_factor": "Factor by which this gradient was multiplied.",
    "round_seconds_total": "Time of all rounds, also behind computation.", "held_bytes": "Memory of the channel.",
    "ranks": "Ranks of the last round.",
    "wait_seconds_total": "Time of the training thread within the library, by operation and layer.",
    "layer_norm": "Norm of this replica's pseudo-gradient at the last exchange.",
    "layer_weight": "Weight of this replica at the last exchange.", "layer_clip_factor": "Factor that clipped the combined one.",
    "communicator_calls_total": "Calls started on the communicator.", "communicator_sent_bytes_total": "Payload sent.",
    "communicator_received_bytes_total": "Payload received.", "communicator_generation": "Changes of the membership.",
    "communicator_ranks": "Ranks of the communicator by state, as far as this rank knows.",
    "recorded_calls_total": "Calls that the flight recorder has shown, by operation and layer.",
    "recorded_bytes_total": "Their sizes: of one part, if the operation has parts.",
    "unrecorded_calls_total": "Calls that the flight recorder has overwritten before they were read.",
    "updated_timestamp_seconds": "When the training thread last told its figures, in Unix time.",
}

Labels = Tuple[Tuple[str, str], ...]
OTHERS = "others"


class Metrics:
    """Values by name and labels, as Prometheus and TensorBoard take them. Of the values of a label, at most `most` are kept apart; the
    others are one, of counters the sum and of gauges the largest."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._seen: Dict[str, Dict[str, None]] = {}
        self.values: Dict[Tuple[str, Labels], float] = {}

    def put(self, name: str, value: float, **labels: str) -> None:
        if not math.isfinite(value):
            return
        for label, text in labels.items():
            seen = self._seen.setdefault(label, {})
            if text not in seen and len(seen) >= self._most:
                labels[label] = OTHERS
            else:
                seen[text] = None
        key = name, tuple((label, text) for label, text in sorted(labels.items()) if text)
        if key in self.values and OTHERS in labels.values():
            value = self.values[key] + value if name.endswith("_total") else max(self.values[key], value)
        self.values[key] = value

    def text(self, **common: str) -> str:
        """Returns the text format of Prometheus, version 0.0.4. common: labels of all values."""
        lines: List[str] = []
        for name in sorted({name for name, _ in self.values}):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP entrain_{name} {_HELP[name]}", f"# TYPE entrain_{name} {kind}"]
            for (other, labels), value in sorted(self.values.items()):
                if other == name:
                    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in [*common.items(), *labels])
                    lines.append(f"entrain_{name}{{{pairs}}} {value!r}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _rank_in_job(comm: Comm) -> int:
    """A process that joins has a communicator of its own replica at first, so its launcher tells its number."""
    with shown():  # elastic.alone hides the launcher's variables
        number = {name: int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE", "EDIT_REPLICA", "EDIT_REPLICAS")}
    if number["EDIT_REPLICAS"] > 1 and comm.size == number["WORLD_SIZE"]:  # elastic.torchrun: each replica has a launcher
        return number["EDIT_REPLICA"] * comm.size + comm.rank
    return number["RANK"] if comm.size == 1 else comm.rank


class Observer:
    """Exports what Comm, EDiT and ACCO objects know of themselves, those of entrain.torch too. It makes no communication.

    objects      what is observed. Until `close`, also each object of entrain.torch that this thread makes. The metrics of the
                 second one have the label object="2", and so on; a trace is of the first one's model
    textfile     a file of Prometheus's text format, which is replaced in one move, at most every `every` seconds and at the end.
                 "{rank}" in its name is the rank
    port         answers GET /metrics at `address`; 0: the kernel chooses the port, which `self.port` tells
    writer       a SummaryWriter of torch.utils.tensorboard, or what has its add_scalar
    trace        a file for the trace of this rank ("{rank}" as above), written after `trace_steps` steps or at the end.
                 `python -m entrain.observe` merges those of all ranks
    most         the largest number of values of a label (layers, operations, communicators)

    Objects of entrain.torch tell their figures at the beginning of the step after an exchange (EDiT) or after a round (ACCO). For
    others call `update`. If the flight recorder is off, there are no recorded_* metrics, and `trace` raises OSError. Thread safety:
    the thread that trains makes, updates and closes it."""

    def __init__(self, *objects: Any, textfile: Optional[str] = None, every: float = 10.0, port: Optional[int] = None,
                 address: str = "127.0.0.1", writer: Any = None, trace: Optional[str] = None, trace_steps: int = 100,
                 most: int = 64) -> None:
        self._textfile, self._every, self._writer, self._most = textfile, every, writer, most
        self._trace_file, self._trace_steps = trace, trace_steps
        self._trace: Optional[Trace] = None
        self._calls: Optional[Calls] = None
        self._objects: List[Any] = []
        self._infos: Dict[int, Any] = {}  # by id of the object: what it last told
        self._comms: Dict[str, Comm] = {}
        self._layers: List[str] = []
        self._waits: Dict[Tuple[str, str], float] = {}
        self._lock = threading.Lock()
        self._metrics = Metrics(most)
        self._written = self._updated = -math.inf
        self._closed = False
        #: Labels of all metrics. Known after the first object.
        self.rank: Optional[int] = None
        self.replica: Optional[int] = None
        self._server: Optional[http.server.ThreadingHTTPServer] = None
        if port is not None:
            self._server = _Server((address, port), _Page)
            self._server.observer = self
            threading.Thread(target=self._server.serve_forever, name="entrain-metrics", daemon=True).start()
        #: The port of `address`, or None.
        self.port: Optional[int] = None if self._server is None else self._server.server_address[1]
        _watch.begin(self)
        try:
            for one in sorted(objects, key=lambda one: not isinstance(one, Comm)):  # a Comm knows the rank
                self.add(one)
        except BaseException:
            self.close()
            raise

    # ---- what is observed --------------------------------------------------------------------------------------------------

    def add(self, one: Any, name: str = "world") -> None:
        """Observes one more object. name: the label of a Comm's metrics."""
        if isinstance(one, Comm):
            self._add_comm(one, name)
            return
        wraps = hasattr(one, "report_to")
        if not wraps and not hasattr(one, "info"):
            raise TypeError(f"Observer: {one!r} is neither a Comm nor an EDiT or ACCO object")
        if any(known is one for known in self._objects):
            return
        self._objects.append(one)
        if not wraps:
            if self.rank is None and (self._textfile is not None or self._trace_file is not None):
                raise TypeError(f"Observer: {one!r} does not know its rank, which is in the names of the files; pass its Comm, too")
            return
        self._add_comm(one.comm, name)
        self.replica = getattr(one, "replica", self.replica)
        # Calls do not tell of which object they are, so with several objects their layers are unknown.
        self._layers = getattr(one, "layer_names", []) if len(self._objects) == 1 else []
        one._reports.add(lambda figures, step: self._reported(step), warmup=lambda: self._in_warmup())
        self.update()  # otherwise nothing would tell of a run that hangs before its first exchange
        if self._trace_file is not None and self._trace is None:
            self._begin_trace(one)

    def _reported(self, step: int) -> None:
        self.update(step)
        if self._trace is not None and not self._trace.sees_steps:
            self._stepped()

    def _in_warmup(self) -> None:
        if time.monotonic() - self._updated >= self._every:
            self.update()

    def _add_comm(self, comm: Comm, name: str) -> None:
        if self.rank is None:
            self.rank = _rank_in_job(comm)
            process = comm.members()[comm.rank].peer_id.hex()
            with contextlib.nullcontext() if self._trace_file is not None else contextlib.suppress(OSError):
                self._calls = Calls(process, self._layer_of)
        number = 1
        while self._comms.setdefault(name if number == 1 else f"{name} {number}", comm) is not comm:
            number += 1

    def _layer_of(self, comm: Dict[str, Any], call: Dict[str, Any]) -> str:
        """The communicators that EDiT makes for itself use the layers' numbers as tags."""
        tag = call["tag"]
        return self._layers[tag] if tag is not None and tag < len(self._layers) and "/" in comm["name"] else ""

    # ---- metrics -----------------------------------------------------------------------------------------------------------

    def update(self, step: Optional[int] = None) -> None:
        """Takes over the figures of all objects, and exports them. Must be called by the thread that trains. step: for `writer`; None:
        the number of steps or commits that the object has counted."""
        self._updated = time.monotonic()
        metrics = Metrics(self._most)
        for number, one in enumerate(self._objects, 1):
            of = "" if number == 1 else str(number)  # several have the same metrics
            with contextlib.suppress(Error):  # it was closed
                self._infos[id(one)] = one.info if not callable(one.info) else one.info()
            info = self._infos.get(id(one))
            if info is None:
                continue
            step = step if step is not None else getattr(info, "steps", getattr(info, "commits", 0))
            for field, value in info.as_dict().items():
                if field in _FIELDS:
                    name, group = _FIELDS[field]
                    metrics.put(name, value, group=group, object=of)
            self._put_layers(metrics, one, of)
        if self._calls is not None:
            with contextlib.suppress(OSError):  # there is no communicator any more
                self._calls.read()
            for (operation, layer), (count, size) in self._calls.sums.items():
                metrics.put("recorded_calls_total", count, operation=operation, layer=layer)
                metrics.put("recorded_bytes_total", size, operation=operation, layer=layer)
            metrics.put("unrecorded_calls_total", self._calls.missed)
        for (operation, layer), seconds in self._waits.items():
            metrics.put("wait_seconds_total", seconds, operation=operation, layer=layer)
        metrics.put("updated_timestamp_seconds", time.time())
        metrics.values.update(self._comm_values())
        with self._lock:
            self._metrics = metrics
        if self._writer is not None:
            for (name, labels), value in metrics.values.items():
                self._writer.add_scalar("/".join(["entrain", name, *(text for _, text in labels)]), value, step or 0)
        if self._textfile is not None and (self._closed or time.monotonic() - self._written >= self._every):
            self._written = time.monotonic()
            with _only_warned(self._textfile):
                write(self._textfile.format(rank=self.rank), self.text())

    def _put_layers(self, metrics: Metrics, one: Any, of: str) -> None:
        for index, layer in enumerate(getattr(one, "layer_names", ())):
            with contextlib.suppress(Error):  # before the first exchange, and while one is under way
                norms, weights, factor = one.engine.layer_report(index)
                metrics.put("layer_norm", norms[one.replica], layer=layer, object=of)
                metrics.put("layer_weight", weights[one.replica], layer=layer, object=of)
                metrics.put("layer_clip_factor", factor, layer=layer, object=of)

    def _comm_values(self) -> Dict[Tuple[str, Labels], float]:
        """Returns the values of the communicators as they are now, of a closed one the last."""
        now = Metrics(self._most)
        for name, comm in list(self._comms.items()):  # a thread of the port may be here while an object is added
            with contextlib.suppress(Error):
                stats = comm.stats()
                now.put("communicator_calls_total", stats.calls, communicator=name)
                now.put("communicator_sent_bytes_total", stats.bytes_sent, communicator=name)
                now.put("communicator_received_bytes_total", stats.bytes_received, communicator=name)
                now.put("communicator_generation", comm.generation, communicator=name)
                states = [member.state for member in comm.members()]
                for state in ("alive", "lost", "left"):
                    now.put("communicator_ranks", states.count(state), communicator=name, state=state)
        with self._lock:
            last = {key: value for key, value in self._metrics.values.items() if key[0].startswith("communicator_")}
        return {**last, **now.values}

    def text(self) -> str:
        """Returns the metrics in Prometheus's text format: those of communicators as they are now, the others as the training thread
        last told them. Any thread."""
        values = self._comm_values()
        now = Metrics()
        with self._lock:
            now.values = {**self._metrics.values, **values}
        labels = {"rank": self.rank, "replica": self.replica}
        return now.text(**{name: str(number) for name, number in labels.items() if number is not None})

    # ---- ranges and the trace ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def range(self, name: str, layer: str = "", *, waits: bool = False) -> Iterator[None]:
        """A range of the training thread in the trace, for loops that entrain.torch does not see: computation, or with `waits` a wait
        for other ranks (which the metric wait_seconds_total counts). Ranges nest."""
        begin = time.monotonic()
        try:
            with self._trace.range(name, layer, waits) if self._trace is not None else contextlib.nullcontext():
                yield
        finally:
            if waits:
                self._waits[name, layer] = self._waits.get((name, layer), 0.0) + time.monotonic() - begin

    def _begin_trace(self, one: Any) -> None:
        assert self._calls is not None
        self._calls.keeps = True
        self._trace = Trace(self._calls)
        from .torch._layers import layers_of
        layers = getattr(one, "_layers", None) or layers_of(one.model, None)
        self._trace.attach(one.model, layers, getattr(one, "optimizer", None), self._stepped)

    def _stepped(self) -> None:
        """Must be called after each step of a trace."""
        if self._trace is None or self._calls is None:
            return
        with contextlib.suppress(OSError):  # it has not answered in time
            self._calls.read()
        self._trace_steps -= 1
        if self._trace_steps <= 0:
            self._end_trace()

    def _end_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None and self._calls is not None and self._trace_file is not None:
            trace.detach()
            with _only_warned(self._trace_file):
                trace.save(self._trace_file.format(rank=self.rank), self.rank or 0, self.replica)
            self._calls.keeps = False

    # ---- ending --------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Exports the last figures, writes the trace and closes the port. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        _watch.end(self)
        try:
            if self.rank is not None:
                self.update()
                self._end_trace()
        finally:
            if self._server is not None:
                self._server.shutdown()
                self._server.server_close()

    def __enter__(self) -> "Observer":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


@contextlib.contextmanager
def _only_warned(path: str) -> Iterator[None]:
    """A full disk is no reason for a run to end."""
    try:
        yield
    except OSError as failure:
        logging.getLogger("entrain").warning("Observer: %s cannot be written: %s", path, failure)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    observer: Observer


class _Page(http.server.BaseHTTPRequestHandler):
    timeout = 10
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        text = self.server.observer.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Scrapes are no news."""


# ---- the traces of all ranks -------------------------------------------------------------------------------------------------------


def merge(traces: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """Returns one trace of those of the ranks. Its time begins at 0. The clocks of several hosts differ as NTP leaves them."""
    events = [event for trace in traces for event in trace["traceEvents"]]
    begin = min((event["ts"] for event in events if "ts" in event), default=0)
    return {"traceEvents": [{**event, "ts": round(event["ts"] - begin, 3)} if "ts" in event else event for event in events],
            "displayTimeUnit": "ms", "missed_calls": sum(trace["missed_calls"] for trace in traces)}


def summary(trace: Dict[str, Any]) -> str:
    """Returns the sums of a trace as a table: by rank, operation and layer, in ms."""
    rows: Dict[Tuple[int, str, str], Dict[str, float]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            words = event["args"]
            row = rows.setdefault((event["pid"], words["operation"], words["layer"]), {})
            row[event["cat"]] = row.get(event["cat"], 0.0) + event["dur"] / 1e3
    kinds = ("compute", "wait", "exposed", "hidden")
    lines = [f"{'rank':>4}  {'operation':16} {'layer':24}" + "".join(f"{kind:>11}" for kind in kinds)]
    for (rank, operation, layer), row in sorted(rows.items()):
        cells = "".join(f"{row[kind]:11.3f}" if kind in row else " " * 11 for kind in kinds)
        lines.append(f"{rank:4}  {operation:16} {layer:24}{cells}".rstrip())
    for rank in sorted({rank for rank, _, _ in rows}):
        cells = "".join(f"{sum(row.get(kind, 0.0) for (of, _, _), row in rows.items() if of == rank):11.3f}" for kind in kinds)
        lines.append(f"{rank:4}  {'all':16} {'':24}{cells}")
    return "\n".join(lines)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m entrain.observe", description="Merges the traces of ranks, and prints their sums in ms.")
    parser.add_argument("traces", nargs="+", metavar="FILE", help="what Observer(trace=...) has written")
    parser.add_argument("-o", metavar="FILE", dest="out", help="the trace of all ranks, for ui.perfetto.dev or chrome://tracing")
    given = parser.parse_args(arguments)
    found = []
    for name in given.traces:
        if given.out and os.path.exists(given.out) and os.path.samefile(name, given.out):
            continue  # of an earlier call, with the same pattern
        with open(name, encoding="utf-8") as file:
            found.append(json.load(file))
    whole = merge(found)
    if given.out:
        write(given.out, json.dumps(whole))
    print(summary(whole))
    if whole["missed_calls"]:
        print(f"{whole['missed_calls']} calls are missing: the flight recorder has overwritten them. Set ENTRAIN_FLIGHT_CALLS higher")


if __name__ == "__main__":
    main()
