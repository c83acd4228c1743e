"""Metrics and traces of EDiT and ACCO."""
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn

import entrain
import entrain.torch
from conftest import ROOT, ranks, script
from entrain.observe import Observer, merge

EDIT = """
import sys, torch, entrain.torch
from entrain.observe import Observer
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Observer(trace=sys.argv[1] + "/{rank}.json", trace_steps=9):
    edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=2, local_sgd_warmup_steps=2)
    torch.manual_seed(edit.comm.rank)
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(16, 256)).square().mean().backward()
        optimizer.step()
    edit.close()
"""


def values(text):
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def value(found, name, **labels):
    return found[name, tuple(sorted((key, str(text)) for key, text in labels.items()))]


class Board:
    """Takes what a SummaryWriter takes."""

    def __init__(self):
        self.rows = {}

    def add_scalar(self, name, value, step):
        self.rows[name, step] = value


def train(comm, model, optimizer, steps):
    for step in range(steps):
        torch.manual_seed(10 * step + comm.rank)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()


def test_the_figures_are_those_of_the_object(tmp_path):
    def body(comm):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
        optimizer, board = torch.optim.SGD(model.parameters(), lr=0.1), Board()
        with Observer(textfile=str(tmp_path / "{rank}.prom"), port=0, writer=board, every=0) as observer:
            edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=1)
            train(comm, model, optimizer, 8)
            observer.update()
            info, own = edit.info, {"rank": comm.rank, "replica": comm.rank}
            with urllib.request.urlopen(f"http://127.0.0.1:{observer.port}/metrics", timeout=10) as answer:
                found = values(answer.read().decode())
            assert value(found, "entrain_steps_total", **own) == info.steps == 8
            assert value(found, "entrain_exchanges_total", **own) == info.syncs == 3
            assert value(found, "entrain_sent_bytes_total", group="sync", **own) == info.bytes_sent_sync > 0
            assert value(found, "entrain_exposed_seconds_total", **own) == info.exposed_ns / 1e9 > 0
            assert value(found, "entrain_exchange_seconds_total", **own) == info.sync_ns / 1e9
            assert value(found, "entrain_replicas", **own) == 2 and value(found, "entrain_warmup", **own) == 0
            for index, layer in enumerate(edit.layer_names):
                norms, weights, factor = edit.engine.layer_report(index)
                assert value(found, "entrain_layer_norm", layer=layer, **own) == norms[comm.rank] > 0
                assert value(found, "entrain_layer_weight", layer=layer, **own) == weights[comm.rank]
                assert value(found, "entrain_layer_clip_factor", layer=layer, **own) == factor
                # In each exchange the layer's array is summed once; in warm-up its gradients, with a flag for each parameter and, in
                # the first layer, three numbers more.
                size = sum(param.numel() for param in model[index].parameters())
                recorded = 3 * size + (size + 2 + (0 if index else 3))
                assert value(found, "entrain_recorded_bytes_total", operation="all_reduce", layer=layer, **own) == 4 * recorded
                assert value(found, "entrain_recorded_calls_total", operation="all_reduce", layer=layer, **own) == 4
                assert value(found, "entrain_wait_seconds_total", operation="wait", layer=layer, **own) > 0
            assert value(found, "entrain_unrecorded_calls_total", **own) == 0
            assert board.rows["entrain/exchanges_total", 8] == 3
            assert board.rows["entrain/layer_norm/1", 8] == value(found, "entrain_layer_norm", layer="1", **own)
            assert ("entrain/exchanges_total", 4) in board.rows  # by itself, after an exchange
            edit.close()
        # The last figures of a closed object stay.
        assert value(values((tmp_path / f"{comm.rank}.prom").read_text()), "entrain_steps_total", **own) == 8
    ranks(2, body)


def test_a_run_is_told_before_its_first_exchange(tmp_path):
    """Otherwise no alarm could see a run that hangs in warm-up."""
    def body(comm):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
        optimizer, path = torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / f"{comm.rank}.prom"
        with Observer(textfile=str(path), every=0):
            edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=9)
            assert value(values(path.read_text()), "entrain_warmup", rank=comm.rank, replica=comm.rank) == 1
            train(comm, model, optimizer, 4)
            found = values(path.read_text())
            assert value(found, "entrain_steps_total", rank=comm.rank, replica=comm.rank) >= 3
            assert value(found, "entrain_warmup", rank=comm.rank, replica=comm.rank) == 1
            edit.close()
    ranks(2, body)


def test_several_objects_are_told_apart():
    def body(comm):
        torch.manual_seed(0)
        models = [nn.Linear(3, 1), nn.Linear(3, 2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        with Observer() as observer:
            edits = [entrain.torch.EDiT(model, optimizer, comm=comm.duplicate(), local_sgd_sync_interval=interval)
                     for model, optimizer, interval in zip(models, optimizers, (2, 3))]
            for model, optimizer in zip(models, optimizers):
                train(comm, model, optimizer, 7)
            observer.update()
            found = values(observer.text())
            own = {"rank": comm.rank, "replica": comm.rank}
            assert value(found, "entrain_exchanges_total", **own) == edits[0].info.syncs == 3
            assert value(found, "entrain_exchanges_total", object=2, **own) == edits[1].info.syncs == 2
            assert not any(name == "entrain_recorded_calls_total" and "layer" in dict(labels) for name, labels in found)
            for name, edit in zip(("world", "world 2"), edits):
                assert value(found, "entrain_communicator_calls_total", communicator=name, **own) == edit.comm.stats().calls
            for edit in edits:
                edit.close()
    ranks(2, body)


def test_rounds_of_acco():
    def body(comm):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        acco = entrain.torch.ACCO(model, "sgd", comm=comm, lr=0.1, limit=6)
        with Observer(acco) as observer:
            while not acco.finished:
                model(torch.randn(4, 3)).square().mean().backward()
                acco.step(4)
            found, info = values(observer.text()), acco.info
            assert value(found, "entrain_commits_total", rank=comm.rank) == info.commits == 6
            assert value(found, "entrain_tokens_total", rank=comm.rank) == info.tokens > 0
            assert value(found, "entrain_sent_bytes_total", rank=comm.rank, group="sync") == info.bytes_sent
            assert value(found, "entrain_learning_rate", rank=comm.rank) == info.lr
            assert value(found, "entrain_wait_seconds_total", rank=comm.rank, operation="install") > 0
        acco.close()
    ranks(2, body)


def length(events, **of):
    return sum(event["dur"] for event in events if all(event[key] == text for key, text in of.items()))


def test_one_picture_of_all_ranks(tmp_path):
    script(EDIT, tmp_path, size=3)
    files = [tmp_path / f"{rank}.json" for rank in range(3)]
    table = subprocess.run([sys.executable, "-m", "entrain.observe", *files, "-o", tmp_path / "all.json"], stdout=subprocess.PIPE,
                           text=True, check=True, timeout=60).stdout
    trace = json.loads((tmp_path / "all.json").read_text())
    assert trace["missed_calls"] == 0
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) == 0
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert [names[rank].startswith(f"rank {rank}, replica {rank} (") for rank in range(3)] == [True] * 3
    for rank in range(3):
        mine = [event for event in spans if event["pid"] == rank]
        assert {event["cat"] for event in mine} == {"compute", "wait", "exposed", "hidden"}
        # The training thread is in one place at a time.
        training = sorted((event for event in mine if event["tid"] == 0), key=lambda event: event["ts"])
        assert {event["cat"] for event in training} == {"compute", "wait"}
        assert all(before["ts"] + before["dur"] <= after["ts"] + 0.5 for before, after in zip(training, training[1:]))
        forward = [event for event in training if event["name"] == "forward 1"]
        assert len(forward) == 9 and {"backward 0", "backward 2", "optimizer"} <= {event["name"] for event in training}
        # Calls of one lane do not overlap. Exposed is what lies within waits, hidden what does not: both add up to the calls.
        calls = sorted((event for event in mine if event["tid"] > 0), key=lambda event: (event["tid"], event["ts"]))
        waits = [event for event in training if event["cat"] == "wait"]
        for before, after in zip(calls, calls[1:]):
            assert before["tid"] != after["tid"] or before["ts"] + before["dur"] <= after["ts"] + 0.5
        for event in calls:
            begin, end = event["ts"], event["ts"] + event["dur"]
            inside = sum(max(0.0, min(end, wait["ts"] + wait["dur"]) - max(begin, wait["ts"])) for wait in waits)
            assert abs(inside - (event["dur"] if event["cat"] == "exposed" else 0)) < 1.0, event
        # Each layer is summed in each of the 2 steps of warm-up and the 3 exchanges before steps 4, 6, and 8.
        for layer in "012":
            whole = [event for event in calls if event["args"]["layer"] == layer and event["args"]["operation"] == "all_reduce"]
            assert sum("bytes" in event["args"] for event in whole) == 5
        row = next(line.split() for line in table.splitlines() if line.split()[:2] == [str(rank), "all"])
        for kind, cell in zip(("compute", "wait", "exposed", "hidden"), row[2:]):
            assert abs(length(mine, cat=kind) / 1e3 - float(cell)) < 0.01


def open_for(seconds):
    """Whether a call of this process has been under way for so long."""
    return any(call["state"] == "receiving" and call["started_s_ago"] > seconds
               for comm in entrain.flight.flight_of(os.getpid())["communicators"] for call in comm["calls"])


def test_the_wait_for_a_late_rank_is_exposed(tmp_path):
    def body(comm):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Observer(trace=str(tmp_path / "{rank}.json")) as observer:
            edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=0)
            train(comm, model, optimizer, 2)
            if comm.rank == 1:
                with observer.range("late"):
                    while not open_for(0.2):  # rank 0 waits in the exchange before step 3
                        time.sleep(0.01)
            train(comm, model, optimizer, 1)
            edit.close()
    ranks(2, body)
    spans = {rank: [event for event in json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"] if event["ph"] == "X"]
             for rank in range(2)}
    exposed = {rank: [event for event in spans[rank] if event["cat"] == "exposed"] for rank in range(2)}
    late = next(event for event in spans[1] if event["name"] == "late")
    longest = max(exposed[0], key=lambda event: event["dur"])
    assert late["cat"] == "compute" and late["dur"] >= 200_000 and longest["dur"] >= 190_000
    assert longest["ts"] < late["ts"] + late["dur"] <= longest["ts"] + longest["dur"] + 20_000
    # The late rank itself has not waited for the other one.
    assert length(spans[1], cat="exposed") < longest["dur"]


def test_the_program_of_the_page(tmp_path):
    page = (ROOT / "docs/observe.md").read_text()
    program = re.sub("^    ", "", page.split("\n\n    import torch", 1)[1].split("\n\nAn Observer", 1)[0], flags=re.M)
    script("import torch" + program, size=2, cwd=tmp_path, timeout=120)
    found = values((tmp_path / "metrics/entrain-1.prom").read_text())
    assert value(found, "entrain_steps_total", rank=1, replica=1) == 18
    table = subprocess.run([sys.executable, "-m", "entrain.observe", tmp_path / "traces/0.json", tmp_path / "traces/1.json"],
                           stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout

    def names(text):
        return {(line[:22].strip(), line[22:46].strip()) for line in text.splitlines() if re.match(" +0 ", line)}
    assert names(table) == names(re.sub("^    ", "", page.split("-o all.json\n")[1].split("       ...")[0] + "   0  all", flags=re.M))


def test_a_trace_of_acco(tmp_path):
    def body(comm):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64))
        with Observer(trace=str(tmp_path / "{rank}.json"), trace_steps=5):  # installed rounds
            acco = entrain.torch.ACCO(model, "adamw", comm=comm, limit=8)
            while not acco.finished:
                model(torch.randn(16, 64)).square().mean().backward()
                acco.step(16)
            assert not acco.model[0]._forward_hooks  # the trace is over
            acco.close()
    ranks(2, body)
    for rank in range(2):
        spans = [event for event in json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"] if event["ph"] == "X"]
        assert {"forward 0", "forward 1", "backward 0", "backward 1", "install"} <= {event["name"] for event in spans}
        assert sum(event["name"] == "install" for event in spans) == 6  # the first one only starts a round
        assert {event["args"]["operation"] for event in spans if event["tid"] > 0} >= {"reduce_scatter", "all_gather"}


def test_merging_begins_at_zero_and_keeps_names():
    one = {"traceEvents": [{"ph": "X", "ts": 5.0, "dur": 1.0}, {"ph": "M", "name": "process_name"}], "missed_calls": 2}
    two = {"traceEvents": [{"ph": "X", "ts": 3.0, "dur": 1.0}], "missed_calls": 1}
    whole = merge([one, two])
    assert [event.get("ts") for event in whole["traceEvents"]] == [2.0, None, 0.0] and whole["missed_calls"] == 3


def test_merging_again_leaves_out_the_result(tmp_path, capsys):
    event = {"ph": "X", "ts": 5.0, "dur": 1000.0, "pid": 0, "cat": "compute", "args": {"operation": "forward", "layer": ""}}
    (tmp_path / "0.json").write_text(json.dumps({"traceEvents": [event], "missed_calls": 0}))
    for _ in range(2):
        entrain.observe.main([*map(str, sorted(tmp_path.glob("*.json"))), "-o", str(tmp_path / "all.json")])
        assert "1.000" in capsys.readouterr().out
