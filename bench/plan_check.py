#!/usr/bin/env python3
"""Compares the planner (python -m entrain.plan) with runs in clusters that cluster.sh emulates (as root; iproute2).

    bench/plan_check.py --list                              # the cases; measures nothing
    bench/plan_check.py --cells 2x1gbit,8x100mbit           # the cases of these cells
    bench/plan_check.py                                     # all of them, about 15 minutes
    bench/plan_check.py --read examples/results/plan.csv    # the tables of an earlier run; measures nothing

A node of the cluster is a replica of one rank, which runs this file with NumPy and the package entrain. Its computation is a sleep for
each layer, forward and backward, so a step takes a known time, and few cores can hold many nodes. All communication is real: the
gradients, the exchanges and the rounds of the library over its tcp transport. The planner gets the numbers of the case and its own
defaults; nothing is fitted to a case. Two inputs are measured, because the nodes share this machine's cores: memory_rate, by copies of all
nodes at once, and restart, by the starts of the cases that nothing disturbs."""
from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import pathlib
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterable, List, Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAYERS = 8
FORWARD = 1 / 3  # share of the step
WARM = 2  # exchanges, or rounds, before the time begins: connections grow their windows


@dataclasses.dataclass
class Case:
    nodes: int
    rate: str
    delay_ms: int
    method: str
    params: int = 1_000_000
    step: float = 0.1
    interval: int = 4
    between: float = 0.0
    within: float = 0.0
    kill: int = 0  # the timed step behind which the last node is killed; 0: none
    timed: int = 12  # timed steps

    @property
    def cell(self) -> str:
        return f"{self.nodes}x{self.rate}" + (f"+{self.delay_ms}ms" if self.delay_ms else "")


def cases() -> List[Case]:
    found = []
    for nodes in (2, 4, 8):
        for rate in ("1gbit", "100mbit"):
            params = 4_000_000 if rate == "1gbit" else 1_000_000
            methods = ["ddp", "edit", "diloco", "acco"] + (["zero1", "edit-overlap", "streaming-diloco", "co2"] if nodes == 4 else [])
            found += [Case(nodes, rate, 0, method, params, 0.2) for method in methods]
    for nodes in (2, 4):
        for delay in (20, 100):
            found += [Case(nodes, "1gbit", delay, method, 4_000_000, 0.2) for method in ("ddp", "edit", "diloco", "acco")]
    late = [Case(4, "1gbit", 0, method, 1_000_000, 0.1, interval, between, within, 0, timed)
            for between, within in ((0.2, 0.0), (0.0, 0.3), (0.2, 0.3))
            for method, interval, timed in (("ddp", 4, 48), ("edit", 8, 96), ("diloco", 8, 96), ("acco", 4, 48), ("a-edit", 8, 96))]
    killed = [Case(4, "1gbit", 0, method, 1_000_000, 0.1, 4, 0, 0, 10, 24) for method in ("ddp", "edit", "diloco", "acco")]
    return found + late + killed


# ---- A node ------------------------------------------------------------------------------------


class Clock:
    """Sleeps as the computation of a rank, and notes when each step began."""

    def __init__(self, case: Case, rank: int, first: int) -> None:
        self.case, self.step = case, first
        self.times: List[float] = []
        # The same numbers in another order for each rank, so that a short run has the mean and the deviation of the case.
        self.draws = [self.score(index, case.timed) for index in range(case.timed)]
        random.Random(rank).shuffle(self.draws)
        # The expected values of normal order statistics (Blom), in an order that is not that of the ranks.
        place = (3 * rank + 1) % case.nodes if case.nodes % 3 else rank
        self.pace = 1 + case.between * self.score(place, case.nodes)
        self.factor, self.slip = 1.0, 0.0

    @staticmethod
    def score(index: int, count: int) -> float:
        return statistics.NormalDist().inv_cdf((index + 1 - 0.375) / (count + 0.25))

    def begin(self) -> None:
        self.times.append(time.time())
        self.factor = max(0.05, self.pace + self.case.within * self.draws[self.step % len(self.draws)])

    def compute(self, share: float) -> None:
        """Sleeps for a share of a step. The error of one sleep is taken from the next, but a wait between the two is not."""
        begun = time.monotonic()
        wanted = max(0.0, share * self.case.step * self.factor - self.slip)
        time.sleep(wanted)
        self.slip = time.monotonic() - begun - wanted


def run_edit(case: Case, comm: Any, clock: Clock, steps: int, kill: int, save: Any) -> None:
    import numpy as np
    import entrain
    options: Dict[str, Any] = {"on_loss": "finish"} if kill and case.method != "ddp" else {}
    preset: Optional[str] = case.method.replace("edit-overlap", "edit")
    if case.method == "ddp":
        preset, options = None, {"local_sgd_warmup_steps": 10**6}
    elif case.method == "a-edit":
        options.update(local_sgd_sync_time=case.interval * case.step, min_total_global_steps=1)
    else:
        options["local_sgd_sync_interval"] = case.interval
    if case.method == "edit-overlap":
        options["overlap_steps"] = 1
    with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [case.params // LAYERS] * LAYERS) as shard:
        params, grads = np.ones(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
        shard.bind(params, grads)
        edit = entrain.EDiT(mesh, shard, preset=preset, timeout=60, **options)
        exchanges = 0
        while True:
            clock.begin()
            if clock.step >= steps:
                break
            exchanges += edit.begin_forward()
            for layer in range(LAYERS):
                edit.wait_layer(layer)
                clock.compute(FORWARD / LAYERS)
            for layer in reversed(range(LAYERS)):
                clock.compute((1 - FORWARD) / LAYERS)
                shard.gradients(layer)
                shard.reduce_gradients(layer)
            shard.finish_gradients()
            params[::1000] += 1e-3
            clock.step += 1
            edit.end_step()
            if kill and clock.step == kill and comm.rank == case.nodes - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            save(clock.step)
        if case.method == "a-edit":
            edit.leave()
        edit.close()


def run_channel(case: Case, comm: Any, clock: Clock, steps: int, kill: int, save: Any) -> None:
    import numpy as np
    import entrain
    halves = 2 if case.method == "acco" else 1
    params = np.ones(case.params, np.float32)
    options: Dict[str, Any] = {"on_loss": "finish"} if kill else {}
    acco = entrain.ACCO(comm, params, entrain.Optim.adamw(), method=case.method, max_microbatches=1, limit=10**9, timeout=60, **options)
    while True:
        clock.begin()
        if clock.step >= steps:
            break
        for _ in range(halves):
            clock.compute(1 / halves)
            acco.add(1, 1)
            acco.install()
        clock.step += 1
        if kill and clock.step == kill and comm.rank == case.nodes - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    acco.close()


def node(text: str, folder: pathlib.Path, attempt: int) -> None:
    """Runs a case on one node. Leaves the times at which its steps began in a file."""
    import entrain
    case = Case(**json.loads(text))
    begun = float(os.environ["BEGUN"])
    warm = WARM * case.interval
    saved = folder / "saved"
    first = int(saved.read_text()) if attempt and saved.exists() else 0
    with entrain.Comm.from_env(timeout=60) as comm:
        clock = Clock(case, comm.rank, first)

        def save(step: int) -> None:
            if comm.rank == 0 and case.kill and step % case.interval == 0:  # stands for a checkpoint
                saved.with_suffix(".new").write_text(str(step))
                os.replace(saved.with_suffix(".new"), saved)

        comm.barrier()
        kill = warm + case.kill if case.kill and not attempt else 0
        run = run_channel if case.method in ("acco", "zero1") else run_edit
        try:
            run(case, comm, clock, warm + case.timed, kill if case.kill else 0, save)
        finally:
            (folder / f"{comm.rank}-{attempt}.json").write_text(json.dumps({"first": first, "begun": begun, "times": clock.times}))


# ---- The clusters ------------------------------------------------------------------------------


def script_of(chosen: List[Case], folder: pathlib.Path, timeout: int) -> str:
    """Returns a shell script that every node runs. Each case, and each attempt of it, has ports of its own."""
    lines = []
    for index, case in enumerate(chosen):
        (folder / str(index)).mkdir()
        attempts = 2 if case.kill and case.method == "ddp" else 1  # ddp starts again; the others finish
        text = json.dumps(dataclasses.asdict(case))
        for attempt in range(attempts):
            own = [sys.executable, __file__, "--node", text, "--folder", folder / str(index), "--attempt", attempt]
            place = f"BEGUN=$(date +%s.%N) MASTER_PORT={29400 + 20 * index + 10 * attempt}"
            lines.append(f"{place} timeout -k 5 {timeout} {shlex.join(map(str, own))} || true")
    return "\n".join(lines)


def measure(cell: List[Case], options: argparse.Namespace) -> List[Optional[Dict[str, float]]]:
    """Runs the cases of one cluster. Returns what each has measured; None: it failed."""
    first = cell[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [ROOT / "bench" / "cluster.sh", "--build", options.build, "--nodes", first.nodes, "--rate", first.rate,
                   "--delay", first.delay_ms, "--burst", options.burst, "sh", "-c", script_of(cell, folder, options.timeout)]
        with open(options.out.with_suffix(".log"), "a") as log:
            subprocess.run(list(map(str, command)), env=environment, stdout=log, stderr=log, check=False)
        return [figures(case, folder / str(index)) for index, case in enumerate(cell)]


def figures(case: Case, folder: pathlib.Path) -> Optional[Dict[str, float]]:
    """Returns the time of a step, over the nodes that have made them all, and the time from a node's start to its first step."""
    warm, last = WARM * case.interval, WARM * case.interval + case.timed
    runs = {path.stem: json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    begun = {name: {run["first"] + step: at for step, at in enumerate(run["times"])} for name, run in runs.items()}
    rates = []
    for rank in range(case.nodes):
        at = {**begun.get(f"{rank}-0", {}), **{step: when for step, when in begun.get(f"{rank}-1", {}).items() if step > warm}}
        if last in at and warm in at:
            rates.append(case.timed / (at[last] - at[warm]))
    if len(rates) < case.nodes - bool(case.kill):
        return None
    # Steps of all nodes in a second; replicas of a-edit have paces of their own.
    found = {"step": 1 / statistics.fmean(rates), "start": statistics.median(run["times"][0] - run["begun"] for name, run in runs.items()
                                                                             if name.endswith("-0"))}
    return found


COPIES = """
import sys, time
import numpy as np
one, other = np.ones(4_000_000, np.float32), np.ones(4_000_000, np.float32)
begun, count = time.monotonic(), 0
while time.monotonic() < begun + 1:
    np.copyto(one, other)
    count += 1
print(2 * one.nbytes * count / (time.monotonic() - begun))
"""


def memory_rate(nodes: int) -> float:
    """Returns the bytes that a process reads and writes in a second while as many as there are nodes do."""
    running = [subprocess.Popen([sys.executable, "-c", COPIES], stdout=subprocess.PIPE, text=True) for _ in range(nodes)]
    return statistics.fmean(float(process.communicate()[0]) for process in running)


def job_of(case: Case, options: argparse.Namespace, machine: Dict[str, float], nodes: Optional[int] = None) -> Any:
    from entrain import plan
    texts = {"params": str(case.params), "layers": str(LAYERS), "replicas": str(nodes or case.nodes), "shards": "1",
             "step": f"{case.step}s", "forward": str(FORWARD), "interval": str(case.interval), "spread_between": str(case.between),
             "spread_within": str(case.within), "rate": case.rate.replace("gbit", "Gbit").replace("mbit", "Mbit"),
             "round_trip": f"{case.delay_ms}ms" if case.delay_ms else "200us", "memory_rate": f"{machine['memory_rate']}B/s",
             "restart": f"{machine['restart'] + GRACE}s", "on_loss": "finish" if case.kill else "fail"}
    texts.update(option.split("=", 1) for option in options.input)
    return plan.job_of(texts)


GRACE = 0.1  # seconds from a death until the others end (docs/lab/elastic.md)


def predict(case: Case, options: argparse.Namespace, machine: Dict[str, float]) -> float:
    """Returns the planner's step time; with a kill, with its share of what the kill costs."""
    from entrain import plan
    name = case.method.replace("edit-overlap", "edit+overlap")
    job = job_of(case, options, machine)
    step = plan.estimate(job, name).step_s
    if not case.kill:
        return step
    after = plan.estimate(job_of(case, options, machine, case.nodes - 1), name).step_s if name != "ddp" else step
    if name == "ddp":  # goes back to the last saved step
        lost = job.restart + case.kill % case.interval * step
    else:
        lost = job.stall + 10 * job.round_trip
    return (case.kill * step + (case.timed - case.kill) * after + lost) / case.timed


FIELDS = [field.name for field in dataclasses.fields(Case)] + ["memory_rate", "start", "measured"]


#: The row of the errors of communication alone, of cases in which it is a tenth of the computation or more.
BEYOND = "without the sleep: what exceeds it, if that is 10 % or more"


def tables(rows: List[Dict[str, str]]) -> str:
    """Returns the tables in Markdown."""
    errors = [abs(float(row["error"])) for row in rows if row["measured"]]
    groups: Dict[str, List[float]] = {}
    texts = ["| nodes | rate | round trip, ms | method | spread between, within | killed | predicted, ms | measured, ms | error |",
             "|---:|---|---:|---|---|---|---:|---:|---:|"]
    for row in rows:
        spread = f"{float(row['between']):.0%}, {float(row['within']):.0%}" if float(row["between"]) or float(row["within"]) else ""
        killed = "one node" if int(row["kill"]) else ""
        measured = f"{1e3 * float(row['measured']):.1f} | {100 * float(row['error']):+.1f} %" if row["measured"] else "failed |"
        texts.append(f"| {row['nodes']} | {row['rate']} | {row['delay_ms']} | {row['method']} | {spread} | {killed} "
                     f"| {1e3 * float(row['predicted']):.1f} | {measured} |")
        if row["measured"]:
            kind = "kills" if killed else "stragglers" if spread else f"{row['rate']}, {row['delay_ms']} ms"
            for group in ("all", kind, f"{row['nodes']} nodes", row["method"]):
                groups.setdefault(group, []).append(abs(float(row["error"])))
            if not spread and not killed and float(row["measured"]) > 1.1 * float(row["step"]):
                parts = [float(row[name]) - float(row["step"]) for name in ("predicted", "measured")]
                groups.setdefault(BEYOND, []).append(abs(parts[0] / parts[1] - 1))
    summary = ["| | cases | median error | largest |", "|---|---:|---:|---:|"]
    summary += [f"| {name} | {len(own)} | {100 * statistics.median(own):.1f} % | {100 * max(own):.1f} % |" for name, own in groups.items()]
    return "\n".join(summary + [""] + texts) + "\n" if errors else "nothing was measured\n"


def write(rows: List[Dict[str, str]], options: argparse.Namespace) -> None:
    with open(options.out, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def add_predictions(rows: List[Dict[str, str]], options: argparse.Namespace) -> None:
    """Adds to the rows of a cluster what the planner says of them."""
    for row in rows:
        own = [other for other in rows if (other["nodes"], other["rate"], other["delay_ms"]) == (row["nodes"], row["rate"], row["delay_ms"])]
        starts = [float(other["start"]) for other in own if other["start"] and other["kill"] == "0"]
        case = Case(**{field.name: {"int": int, "float": float}.get(str(field.type), str)(row[field.name]) for field in dataclasses.fields(Case)})
        predicted = predict(case, options, {"memory_rate": float(row["memory_rate"]), "restart": statistics.median(starts) if starts else 0.0})
        row["predicted"] = f"{predicted:.6f}"
        row["error"] = f"{predicted / float(row['measured']) - 1:.4f}" if row["measured"] else ""


def row_of(case: Case, found: Optional[Dict[str, float]], memory: float) -> Dict[str, str]:
    return {**{name: str(value) for name, value in dataclasses.asdict(case).items()}, "memory_rate": f"{memory:.3g}",
            "start": f"{found['start']:.3f}" if found else "", "measured": f"{found['step']:.6f}" if found else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", help="clusters, as 4x1gbit, 2x1gbit+100ms (all)")
    parser.add_argument("--methods", help="of the cases (all)")
    parser.add_argument("--input", action="append", default=[], metavar="OPTION=VALUE", help="an option of the planner, as restart=1.2s")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="folder (build/release)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "plan.csv", help="the results (build/plan.csv)")
    parser.add_argument("--burst", type=int, default=131072, help="as cluster.sh has it (%(default)s)")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for a case (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--read", type=pathlib.Path, help="print the tables of an earlier run, with what the planner says today, and end")
    for name, kind in (("node", str), ("folder", pathlib.Path), ("attempt", int)):
        parser.add_argument("--" + name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        return node(options.node, options.folder, options.attempt)
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("ENTRAIN_LIBRARY", str(options.build.resolve() / "lib/api/libentrain.so"))
    if options.read:
        rows = list(csv.DictReader(options.read.open()))
        add_predictions(rows, options)
        print(tables(rows), end="")
        return None
    chosen = [case for case in cases() if (options.cells is None or case.cell in options.cells.split(",")) and
              (options.methods is None or case.method in options.methods.split(","))]
    if options.list:
        for case in chosen:
            print(case.cell, case.method, *(f"{name} {value}" for name, value in dataclasses.asdict(case).items() if name not in ("method", "rate")))
        return None
    if os.geteuid() != 0:
        sys.exit("plan_check.py: network namespaces need root")
    options.build, rows = options.build.resolve(), []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for cell in dict.fromkeys(case.cell for case in chosen):
        own = [case for case in chosen if case.cell == cell]
        print(f"plan_check.py: {cell}: {len(own)} cases", file=sys.stderr, flush=True)
        memory = memory_rate(own[0].nodes)
        rows += [row_of(case, found, memory) for case, found in zip(own, measure(own, options))]
        add_predictions(rows, options)
        for row in rows[-len(own):]:
            print("   ", row["method"], row["predicted"], row["measured"], row["error"], file=sys.stderr, flush=True)
        write(rows, options)
    print(tables(rows), end="")


if __name__ == "__main__":
    main()
