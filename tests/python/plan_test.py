"""The planner: python -m entrain.plan."""
import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
from typing import Dict

import numpy as np
import pytest

import entrain
from conftest import ROOT, ranks
from entrain import plan

DAY = 86400.0
#: A job whose figures are easily made by hand: no latency, no passes, no failures.
BARE = dict(params="8M", layers="8", replicas="2", shards="1", step="240ms", forward="0.5", rate="80Mbit", rate_share="1", round_trip="0",
            message="0", memory_rate="1e6TB/s", pack="0", sparsify="0", failures="0", checkpoint="0", interval="4", window="1TB",
            on_loss="fail")


def job(**texts):
    return plan.job_of({**BARE, **{name: str(value) for name, value in texts.items()}})


def step(method, **texts):
    return plan.estimate(job(**texts), method).step_s


def run(*arguments):
    """Returns what the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        plan.main(list(arguments))
    return out.getvalue()


def refusal(*arguments):
    """Returns the message with which the command ends."""
    with pytest.raises(SystemExit) as stop:
        plan.main(list(arguments))
    return str(stop.value)


# ---- By hand -----------------------------------------------------------------------------------


def test_ddp_by_hand():
    # A layer has 1M parameters, 4 MB; two replicas send 4 MB each for it, at 10 MB/s: 400 ms. The backward pass of a layer takes 15 ms.
    # The first layer's sum begins when its gradients are there; then the sums follow each other: 240 ms - 7 x 15 ms + 8 x 400 ms.
    assert step("ddp") == pytest.approx(0.24 - 7 * 0.015 + 8 * 0.4)
    assert step("ddp", rate="8Gbit") == pytest.approx(0.24 + 0.004)  # all hidden but the last layer


def test_edit_by_hand():
    # All layers once in H = 4 steps. While one layer is exchanged, the forward pass of the one before takes 15 ms.
    # The rendezvous: 64 + 8 x 8 bytes.
    assert step("edit") == pytest.approx(0.24 + (8 * 0.4 - 7 * 0.015 + 128 / 1e7) / 4)
    assert step("edit", interval=64) == pytest.approx(0.24 + (8 * 0.4 - 7 * 0.015 + 128 / 1e7) / 64)


def test_overlap_by_hand():
    whole = 8 * 0.4 + 128 / 1e7
    assert step("edit+overlap") == pytest.approx(0.24 + (whole - 0.24) / 4)
    assert step("edit+overlap", overlap_steps=2) == pytest.approx(0.24 + (whole - 0.48) / 4)
    assert step("co2") == pytest.approx(0.24 + (whole - 4 * 0.24) / 4)
    assert step("co2", interval=64) == pytest.approx(0.24)  # 64 steps hide it


def test_channels_by_hand():
    # A round reduces and gathers 32 MB: two halves of 16 MB, 3.2 s.
    assert step("zero1") == pytest.approx(0.24 + 3.2)
    assert step("acco") == pytest.approx(2 * 3.2)
    assert step("acco", step="8s") == pytest.approx(8)  # two halves of 4 s hide a round each
    # docs/experiments.md: a round that takes as long as a micro-batch: 1.41 times the updates at two micro-batches each; four times: 0.76.
    assert step("zero1", step="6.4s") / step("acco", step="6.4s") == pytest.approx(1.5)
    assert step("zero1", step="1.6s") / step("acco", step="1.6s") == pytest.approx(0.75)


def test_latency_by_hand():
    # At a site of their own, two replicas sum in one hop or two; all layers travel at once, behind half a round trip of the rendezvous.
    far = dict(round_trip="100ms", rate="8Gbit")
    assert step("ddp", step="800ms", **far) == pytest.approx(0.8 + 0.054)  # 54 ms a layer, 50 ms of backward; the layers travel together
    # 90 ms a layer, of which 40 are its bytes; 5 ms of backward.
    assert step("ddp", step="80ms", round_trip="100ms", rate="800Mbit") == pytest.approx(0.08 + 0.09 + 7 * 0.035)
    # Under fully_shard the exchange hides behind nothing: 0.054 a layer, of which 4 ms are bytes.
    assert step("edit", step="80ms", hidden="0", **far) == pytest.approx(0.08 + (0.05 + 0.05 + 0.004 + 7 * 0.004 + 128 / 1e9) / 4, rel=1e-6)
    assert step("edit", step="800ms", **far) == pytest.approx(0.8 + (0.05 + 0.05 + 0.004 + 128 / 1e9) / 4, rel=1e-6)


def test_largest_of():
    assert plan.largest_of(1) == (0, 1)
    assert plan.largest_of(2) == pytest.approx((1 / math.sqrt(math.pi), math.sqrt(1 - 1 / math.pi)), rel=1e-4)
    draws = np.random.default_rng(1).standard_normal((100_000, 16)).max(1)
    assert plan.largest_of(16) == pytest.approx((draws.mean(), draws.std()), rel=1e-2)
    assert plan.largest_of(16384)[0] > plan.largest_of(1024)[0] > 3


def test_stragglers_by_hand():
    still = dict(rate="1e6Tbit", replicas=2)
    most = 1 / math.sqrt(math.pi)
    assert step("ddp", spread_within="10%", **still) == pytest.approx(0.24 * (1 + 0.1 * most), rel=1e-4)
    assert step("edit", spread_within="10%", **still) == pytest.approx(0.24 * (1 + 0.1 * most / 2), rel=1e-4)  # sqrt(4) steps
    assert step("edit", spread_between="10%", **still) == pytest.approx(0.24 * (1 + 0.1 * most), rel=1e-4)
    # Replicas that never wait for the slowest are not held back by it.
    assert step("a-edit", spread_between="10%", interval=64, **still) < 0.24 * 1.01


def test_a_slow_replica_by_hand():
    still = dict(rate="1e6Tbit", replicas=8, slow="1x1.2")
    assert [step("ddp", **still), step("edit", **still)] == pytest.approx([0.24 * 1.2] * 2, rel=1e-4)
    row = plan.estimate(job(**still), "edit")
    assert row.compute_s == pytest.approx(0.24 * 8 / (7 + 1 / 1.2), rel=1e-4)  # steps of all replicas in a second
    assert step("decoupled-diloco", **still) == pytest.approx(row.compute_s, rel=1e-4)
    assert step("a-edit", interval=64, **still) < row.compute_s * 1.01
    # The two slow ones wait for each other, and the others for them.
    most = 1 / math.sqrt(math.pi)
    assert step("ddp", rate="1e6Tbit", replicas=8, slow="2x2", spread_within="1%") == pytest.approx(0.24 * (2 + 0.01 * most), rel=1e-4)


def test_synchronous_steps_by_hand():
    for method in ("edit", "a-edit", "decoupled-diloco"):
        rows = [plan.estimate(job(synchronous=share), method) for share in ("0", "25%", "100%")]
        assert rows[2].step_s == step("ddp")
        assert rows[1].step_s == pytest.approx(0.25 * rows[2].step_s + 0.75 * rows[0].step_s)
        assert rows[1].sent_across == pytest.approx(0.25 * rows[2].sent_across + 0.75 * rows[0].sent_across)


def test_decoupled_by_hand():
    # 8 fragments of 0.4 s, each with a rendezvous of 64 + 8 bytes, take 3.2 s: more than 4 steps of 240 ms.
    row = plan.estimate(job(), "decoupled-diloco")
    assert row.step_s == pytest.approx(0.24) and not row.in_time
    assert row.sent_across == pytest.approx(1e7 * 0.24, rel=1e-4)  # the link is full
    row = plan.estimate(job(interval=16), "decoupled-diloco")
    assert row.step_s == pytest.approx(0.24) and row.in_time
    assert row.sent_across == pytest.approx(32e6 / 16, rel=1e-4)


def test_what_the_library_refuses():
    """post-local-sgd has no wire format; it and sparseloco end with a lost replica."""
    assert plan.estimate(job(wire="int8"), "post-local-sgd") == plan.estimate(job(), "post-local-sgd")
    for method in plan.METHODS:
        if not method.local:
            continue
        rows = [plan.estimate(job(failures="1/day", on_loss=on_loss), method.name) for on_loss in ("finish", "fail")]
        assert method.finishes == (rows[0].goodput != rows[1].goodput)

        def refused(comm, **options):
            with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [4096]) as shard:
                shard.bind(np.ones(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32))
                try:
                    entrain.EDiT(mesh, shard, preset=method.name.split("+")[0], **options).close()
                except entrain.InvalidArgument:
                    return True
                return False
        assert ranks(2, functools.partial(refused, on_loss="finish", admit="exchange"))[0] == (not method.finishes)
        if method.name == "post-local-sgd":
            assert ranks(2, functools.partial(refused, wire_format="int8"))[0]


def test_memory_by_hand():
    held = {(method, momentum): plan.estimate(job(outer_momentum=momentum), method)
            for method in ("edit", "co2", "sparseloco") for momentum in (0, 0.8)}
    for method, less in (("edit", 4 * 8e6), ("co2", 0), ("sparseloco", 0)):
        assert held[method, 0.8].memory - held[method, 0].memory == less
    row = held["edit", 0.8]
    assert row.memory_method == 8 * 8e6 + 8e6 and row.memory - row.memory_method == 16 * 8e6
    fits = dict(memory=f"{row.memory - row.memory_method}B", host_memory=f"{row.memory_method}B")
    assert plan.estimate(job(**fits), "edit").fits and not plan.estimate(job(memory=fits["memory"]), "edit").fits
    assert not plan.estimate(job(**fits), "co2").fits


def test_goodput_by_hand():
    lost = dict(rate="1e6Tbit", failures=1 / 24, restart="0", checkpoint_every="1e-3s", checkpoint="1ms")
    assert plan.estimate(job(**lost), "ddp").goodput == pytest.approx(0.5, rel=1e-4)  # every ms of training is saved in another
    rare = dict(on_loss="finish", rate="1e6Tbit", failures=1 / 240, restart="6h", replace="6h", checkpoint_every="1s")
    # Two ranks that fail once in ten days each, five days together: five days of training cost six hours, exp(0.05).
    assert plan.estimate(job(**rare), "ddp").goodput == pytest.approx(math.exp(-0.05), rel=1e-4)
    # The other replica goes on; each is away for six hours in ten days.
    assert plan.estimate(job(**rare), "edit").goodput == pytest.approx(1 / 1.025, rel=1e-4)
    # A replacement receives the anchor and the momentum: 8 bytes of each of 8e6 parameters.
    slow = job(**{**rare, "rate": f"{8 * 8e6 / 6 / 3600}B/s"})
    assert plan.joining(slow, plan.BY_NAME["edit"]) == pytest.approx(6 * 3600, rel=1e-9)
    assert plan.availability(slow, plan.BY_NAME["edit"], 0) == pytest.approx(1 / 1.05, rel=1e-4)
    assert plan.estimate(job(**{**rare, "on_loss": "fail"}), "edit").goodput == pytest.approx(math.exp(-0.05), rel=1e-4)


@pytest.mark.parametrize("method", [method.name for method in plan.METHODS])
def test_slower_is_never_faster(method):
    texts = dict(rate_share="0.9", slow="1x1.1", message="30us", memory_rate="10GB/s", spread_within="10%", spread_between="5%", shards=2,
                 inner_rate="10Gbit", failures="1e-3")
    rates = [f"{10 ** (x / 8)}Mbit" for x in range(0, 48)]
    for replicas in (2, 3, 8, 100):
        for round_trip in ("100us", "20ms"):
            steps = [step(method, **{**texts, "rate": rate, "replicas": replicas, "round_trip": round_trip}) for rate in rates]
            assert all(slow >= fast * (1 - 1e-9) for slow, fast in zip(steps, steps[1:])), (replicas, round_trip)
    for near, far in (("0", "1ms"), ("1ms", "3ms"), ("4ms", "20ms"), ("20ms", "300ms")):
        assert step(method, **{**texts, "round_trip": near}) <= step(method, **{**texts, "round_trip": far})
    for name, values in (("spread_within", ("0", "5%", "20%")), ("spread_between", ("0", "5%", "20%")), ("message", ("0", "1ms")),
                         ("memory_rate", ("30GB/s", "1GB/s")), ("inner_rate", ("100Gbit", "1Gbit"))):
        for on_loss in ("fail", "finish"):
            rows = [plan.estimate(job(**{**texts, name: value, "on_loss": on_loss}), method) for value in values]
            assert all(worse.goodput <= better.goodput * (1 + 1e-9) for better, worse in zip(rows, rows[1:])), (name, on_loss)
    steps = [step(method, **{**texts, "replicas": 4, "slow": slow}) for slow in ("0", "1x1.01", "1x1.1", "2x1.1", "2x1.1,1x1.5")]
    assert all(slow >= fast * (1 - 1e-9) for slow, fast in zip(steps[1:], steps))


# ---- Beside the library ------------------------------------------------------------------------


def channel(method, params, size, on_loss):
    """Runs a channel of the library on `size` ranks. Returns its figures on rank 0."""
    def body(comm):
        theta = np.ones(params, np.float32)
        with entrain.ACCO(comm, theta, entrain.Optim.adamw(), method=method, max_microbatches=1, limit=4, on_loss=on_loss) as acco:
            while True:
                acco.add(1, 1)
                if acco.install():
                    return acco.info()
    return ranks(size, body)[0]


def bytes_of_library(method, params, layers, size, **more):
    """Returns the bytes that a rank sends to other replicas: of an exchange, or of a step."""
    def body(comm):
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [params // layers] * layers) as shard:
            theta, grads = np.ones(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
            shard.bind(theta, grads)
            options = {"local_sgd_warmup_steps": 9} if method == "ddp" else {"preset": method, "local_sgd_sync_interval": 2, **more}
            edit = entrain.EDiT(mesh, shard, **options)
            for _ in range(4):
                edit.begin_forward()
                for layer in range(layers):
                    edit.wait_layer(layer)
                theta += np.random.default_rng(comm.rank).standard_normal(len(theta)).astype(np.float32)
                for layer in reversed(range(layers)):
                    shard.gradients(layer)
                    shard.reduce_gradients(layer)
                shard.finish_gradients()
                edit.end_step()
            sent = shard.stats().bytes_sent_sync / 4 if method == "ddp" else 0
            before = edit.info()
            if method != "ddp":
                edit.request_sync()
                edit.begin_forward()
                for layer in range(layers):
                    edit.wait_layer(layer)
                sent = edit.info().bytes_sent_sync / edit.info().syncs
            assert before.steps == 4
            edit.close()
            return sent
    return ranks(size, body)[0]


@pytest.mark.parametrize("method", ["ddp", "edit", "diloco", "sparseloco", "post-local-sgd"])
@pytest.mark.parametrize("size", [2, 4])
def test_traffic_is_the_librarys(method, size):
    params, layers = 4 * 65536, 4
    planned = plan.estimate(job(params=params, layers=layers, replicas=size, interval=1), method).sent_across
    # The positions of sparseloco's numbers depend on which are chosen.
    assert bytes_of_library(method, params, layers, size) == pytest.approx(planned, rel=0.05 if method == "sparseloco" else 2e-3)


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4"])
def test_traffic_in_a_wire_format_is_the_librarys(wire):
    planned = plan.estimate(job(params=4 * 65536, layers=4, replicas=2, interval=1, wire=wire), "diloco").sent_across
    assert bytes_of_library("diloco", 4 * 65536, 4, 2, wire_format=wire) == pytest.approx(planned, rel=2e-3)


@pytest.mark.parametrize("method", ["zero1", "acco"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("on_loss", ["fail", "finish"])
def test_a_channel_is_the_librarys(method, size, on_loss):
    params = 1_000_000
    planned = plan.estimate(job(params=params, replicas=size, on_loss=on_loss), method)
    info = channel(method, params, size, on_loss)
    assert info.bytes_sent / info.commits == pytest.approx(planned.sent_across, rel=5e-3)  # a channel sends counts too
    assert info.bytes_held == pytest.approx(planned.memory - 4 * params, rel=2e-2)  # the parameters are the caller's


def test_methods_are_those_of_the_library():
    local = {method.name for method in plan.METHODS if method.local} - {"edit+overlap"}
    assert local == set(entrain.train.PRESETS) - {"published"}


def test_losses_are_those_of_the_page():
    rows = re.findall(r"^\| (\S+) \| ([^|]+) \| [\d,]+ \|(?: [^|]+ \|){3} \d+ \| ([+-][\d.]+ %) \[", (ROOT / "docs/choose.md").read_text(), re.M)
    told: Dict[str, Dict[str, str]] = {}
    for name, settings, loss in rows:
        told.setdefault(name, {})[settings.split(", `")[0]] = loss
    assert len(told) >= 7 and {method.name: method.losses for method in plan.METHODS if method.losses} == told


def test_no_library_is_needed():
    command = [sys.executable, "-I", "-S", ROOT / "python/entrain/plan.py", "--preset", "sites"]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == run("--preset", "sites")


# ---- The command -------------------------------------------------------------------------------


def test_units():
    assert [plan.parse_count(text) for text in ("32", "350M", "7B", "1.5k")] == [32, 350e6, 7e9, 1500]
    assert [plan.parse_duration(text) for text in ("0", "100ms", "1.5s", "30us", "2min", "1h", "1d")] == \
        pytest.approx([0, 0.1, 1.5, 3e-5, 120, 3600, DAY])
    assert [plan.parse_rate(text) for text in ("10Gbit", "10Gbit/s", "125MB/s", "100Mbit", "3.6Tbit")] == \
        pytest.approx([1.25e9, 1.25e9, 1.25e8, 1.25e7, 4.5e11])
    assert [plan.parse_size(text) for text in ("80GB", "4MiB", "0")] == [80e9, 2**22, 0]
    assert [plan.parse_share(text) for text in ("5%", "0.05")] == pytest.approx([0.05, 0.05])
    assert [plan.parse_rate(text) for text in ("10Gbit/32", "10Gbit/s/32")] == pytest.approx([1.25e9 / 32] * 2)
    assert [plan.parse_frequency(text) for text in ("2e-5", "3/day", "1/week", "2/h", "1/3days", "4 / 2 h")] == \
        pytest.approx([2e-5, 1 / 8, 1 / 168, 2, 1 / 72, 2])
    assert [plan.parse_slow(text) for text in ("0", "1x1.2", "1x1.2, 2x1.5")] == [(), ((1, 1.2),), ((1, 1.2), (2, 1.5))]


@pytest.mark.parametrize("arguments, says", [
    (["--params", "7X"], "--params: '7X' is not a number, as 32, 350M, 7B"),
    (["--params", "0.5"], "--params: '0.5' is not a whole number of at least 1"),
    (["--replicas", "-1"], "--replicas: '-1' is not a number"),
    (["--step", "5"], "--step: '5' is not a number with a unit, as 100ms, 1.5s, 10min"),
    (["--step", "0"], "--step: 0.0 is below 1e-09"),
    (["--rate", "fast"], "--rate: 'fast' is not a number with a unit, as 10Gbit, 125MB/s"),
    (["--rate", "10Gbit/0"], "--rate: '10Gbit/0' is not a number with a unit"),
    (["--failures", "3/moon"], "--failures: '3/moon' is not a number an hour, as 2e-5, 3/day, 1/3days"),
    (["--slow", "1"], "--slow: '1' is no list of counts and factors of at least 1"),
    (["--slow", "1x0.5"], "--slow: '1x0.5' is no list"),
    (["--slow", "9x2"], "--slow: ((9, 2.0),) are more than the 8 replicas"),
    (["--memory", "1GB", "--host-memory", "1GB"], "--memory: '1 GB' and --host-memory 1 GB are too little for every method"),
    (["--rate", "0Gbit"], "--rate: '0Gbit' is not more than 0"),
    (["--spread-between", "80%"], "--spread-between: 0.8 is not between 0 and 0.5"),
    (["--wire", "int2"], "--wire: 'int2' is none of f32, bf16, int8, int4"),
    (["--on-loss", "cry"], "--on-loss: 'cry' is none of finish, fail"),
    (["--layers", "32", "--params", "8"], "--layers: 32 is more than the 8 parameters"),
    (["--interval", "4", "--overlap-steps", "5"], "--overlap-steps: 5 is more than the 4 steps of --interval"),
    (["--memory", "1GB"], "--memory: '1 GB' is too little: every method needs "),
    (["--picture", "plan.xyz"], "--picture: 'plan.xyz' "),
    (["--preset", "moon"], "--preset"),
    (["--nodes", "3"], "--nodes"),
])
def test_refusals_name_the_option_and_the_value(arguments, says):
    assert says in refusal(*arguments)


def test_the_picture_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "needs the package matplotlib" in refusal("--picture", str(tmp_path / "plan.svg"))
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    run("--picture", str(tmp_path / "plan.svg"))
    assert "<svg" in (tmp_path / "plan.svg").read_text()


def test_json_and_text_agree():
    told = json.loads(run("--preset", "sites", "--json"))
    text = run("--preset", "sites")
    assert [row["method"] for row in told["methods"]] == [method.name for method in plan.METHODS]
    for row in told["methods"]:
        line = next(line for line in text.splitlines() if line.startswith(f"| {row['method']} "))
        assert plan.time_text(row["step_s"]) in line and plan.percent(row["goodput"]) in line
        assert row["step_s"] == pytest.approx(row["compute_s"] + row["wait_s"] + row["exposed_s"])
    assert told["take"]["why"] in text and all(note in text for note in told["take"]["notes"]) and f"H = {told['take']['interval']}" in text
    assert told["job"]["rate"] == 1.25e8


def test_help_tells_the_truth():
    said = subprocess.run([sys.executable, "-m", "entrain.plan", "--help"], stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "COLUMNS": "400"}).stdout
    said = re.sub(r"\s+", " ", said)
    for field in dataclasses.fields(plan.Job):
        default = field.metadata["default"]
        assert f"--{field.name.replace('_', '-')} VALUE {field.metadata['text']} ({default})" in said
        assert getattr(plan.Job(), field.name) == (default if field.metadata["kind"] is str else field.metadata["kind"](default))
    for preset, texts in plan.PRESETS.items():
        assert preset in said and plan.job_of(texts) != plan.Job()


def test_the_choice():
    assert plan.choose(job(rate="100Gbit")).method == "ddp"  # nothing is gained by less
    for far in (job(rate="100Mbit", round_trip="100ms"), job(rate="1Mbit")):
        chosen = plan.choose(far)
        rows = [plan.estimate(dataclasses.replace(far, interval=steps), method.name) for method in plan.METHODS
                for steps in (4, 8, 16, 32, 64, 128, 256, 512)]
        best = max(row.goodput for row in rows if row.in_time and row.method not in ("co2", "post-local-sgd"))
        at = dataclasses.replace(far, interval=chosen.interval)
        assert chosen.goodput == plan.estimate(at, chosen.method).goodput >= best * 0.95
        often = dataclasses.replace(far, interval=max(4, chosen.interval // 2))
        assert chosen.interval == 4 or plan.estimate(often, chosen.method).goodput < best * 0.95
    tight = dataclasses.replace(far, memory=plan.estimate(far, "post-local-sgd").memory)
    assert plan.choose(tight).method == "post-local-sgd"
    assert not plan.estimate(tight, "edit").fits
    for name, texts in plan.PRESETS.items():
        for rate in ("1Mbit", "100Mbit", "10Gbit"):
            candidates = {row.method for _, row in plan._candidates(plan.job_of({**texts, "rate": rate}))}
            assert "edit" in candidates and not candidates & {"co2", "post-local-sgd"}, (name, rate)


def test_a_loss_is_told_only_for_its_settings():
    edit = plan.BY_NAME["edit"]
    assert plan._loss(job(), edit, 64) == \
        "Its loss in one small model was +8.32 % against ddp (H = 64, none synchronous; other settings: docs/choose.md)."
    assert "(H = 64, none synchronous; in f32, not bf16; other settings" in plan._loss(job(wire="bf16"), edit, 64)
    assert "was +0.22 % against ddp (H = 16, 25 % synchronous; other" in plan._loss(job(synchronous="25%"), edit, 16)
    for steps, share, known in ((48, "0", "+2.80 % with H = 8 and none synchronous, +4.60 % with H = 16 and none"), (48, "25%", "+0.22 % with H = 16 and 25 %"),
                                (16, "10%", "+0.22 % with H = 16 and 25 %")):
        said = plan._loss(job(synchronous=share), edit, steps)
        assert "at this H and share of synchronous steps was not measured; in one small model it was " + known in said
    assert plan._loss(job(), plan.BY_NAME["sparseloco"], 16) == "Its loss beside ddp was not measured: docs/choose.md."
    assert "+0.51 % against zero1" in plan._loss(job(), plan.BY_NAME["acco"], None)
    timed = plan.BY_NAME["a-edit"]
    assert "was +0.61 % against ddp (25 % synchronous; other" in plan._loss(job(synchronous="25%"), timed, 16)
    assert "was not measured" in plan._loss(job(synchronous="25%"), timed, 5400)


def test_the_verdict():
    said = run("--spread-between", "15%", "--tau", "421s", "--step", "2s", "--rate", "10Gbit")
    assert "H = 16, tau = 7.02 min." in said and "Take a-edit with tau = 7.02 min (about 210 steps): " in said
    assert "in one small model it was +0.61 % with 25 % synchronous, against ddp" in said
    said = run("--params", "1B", "--shards", "1", "--memory", "20GB", "--interval", "512", "--rate", "1Tbit", "--step", "100s", "--failures", "0")
    assert re.search(r"^\| edit .* 24\.2 GB ! \|", said, re.M) and "! needs more memory" in said
    assert " is the best." in said and "of the best one" not in said
    said = run("--preset", "internet", "--rate", "1Gbit")
    assert said.startswith("--preset internet sets --params 350M --layers 24 --replicas 16 --shards 1 --round-trip 50ms --step 2s ")
    assert "entrain-train's --admit and entrain.torch.Checkpoints are refused" in run("--preset", "cluster", "--failures", "3/day", "--rate", "100Gbit/8")


def test_the_tables_of_the_page():
    page = (ROOT / "docs/plan.md").read_text()
    shown = re.findall(r"^    python -m entrain\.plan (.+(?:\\\n.+)*)\n\n<!-- output -->\n([\s\S]*?)<!-- end -->", page, re.M)
    assert len(shown) >= 3
    for arguments, output in shown:
        assert run(*shlex.split(arguments.replace("\\\n", " "))) == output, arguments


def test_the_tables_of_the_notebook():
    """What the planner says of the measured cases is what the notebook has, and good enough."""
    said = subprocess.run([sys.executable, "-B", ROOT / "bench/plan_check.py", "--read", ROOT / "examples/results/plan.csv"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    page = (ROOT / "docs/lab/plan.md").read_text()
    assert re.search(r"<!-- table -->\n([\s\S]*?)<!-- end -->", page)[1] == said
    assert float(re.search(r"\| all \| \d+ \| ([\d.]+) % \|", said)[1]) <= 10
