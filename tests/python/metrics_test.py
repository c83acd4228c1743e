"""Metrics: the text, its labels, the file and the port. with_torch/traces_test.py has EDiT, ACCO and traces."""
import re
import socket
import threading
import urllib.error
import urllib.request

import numpy
import pytest
from prometheus_client.parser import text_string_to_metric_families

import entrain
import entrain._watch
from entrain import _launch
from conftest import ROOT, ranks
from entrain.observe import _FIELDS, _HELP, Metrics, Observer


def parsed(text):
    """Returns the values by name and labels, as Prometheus's own parser reads them, and checks the conventions of names."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("entrain_") and family.documentation.endswith(".")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def value(found, name, **labels):
    return found[name, frozenset((key, str(text)) for key, text in labels.items())]


def test_labels_are_escaped_and_bounded():
    metrics = Metrics(most=3)
    for index in range(10):
        metrics.put("wait_seconds_total", 1.0 + index, layer=f'a "{index}"\\\n')
        metrics.put("layer_norm", 1.0 + index, layer=f'a "{index}"\\\n')
    metrics.put("layer_norm", float("nan"), layer="b")
    found = parsed(metrics.text(rank="0"))
    assert value(found, "entrain_wait_seconds_total", rank=0, layer='a "2"\\\n') == 3
    assert value(found, "entrain_wait_seconds_total", rank=0, layer="others") == sum(range(4, 11))
    assert value(found, "entrain_layer_norm", rank=0, layer="others") == 10
    assert len(found) == 8


def test_a_communicator_is_told_as_it_is_now(tmp_path):
    def body(comm):
        path = tmp_path / f"m-{comm.rank}.prom"
        with Observer(comm, textfile=str(tmp_path / "m-{rank}.prom"), port=0, every=3600) as observer:
            observer.update()
            comm.all_reduce(numpy.ones(1000, numpy.float32))
            comm.barrier()
            url = f"http://127.0.0.1:{observer.port}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                found = parsed(answer.read().decode())
            stats = comm.stats()
            labels = {"rank": comm.rank, "communicator": "world"}
            assert value(found, "entrain_communicator_calls_total", **labels) == stats.calls >= 2
            assert value(found, "entrain_communicator_sent_bytes_total", **labels) == stats.bytes_sent >= 4000
            assert value(found, "entrain_communicator_received_bytes_total", **labels) == stats.bytes_received
            assert value(found, "entrain_communicator_generation", **labels) == 0
            assert value(found, "entrain_communicator_ranks", state="alive", **labels) == 2
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{observer.port}/other", timeout=10)
            # The file has the values of the last `update` that was due.
            before = parsed(path.read_text())
            assert value(before, "entrain_communicator_sent_bytes_total", **labels) < stats.bytes_sent
            comm.barrier()
        after = parsed(path.read_text())
        assert value(after, "entrain_communicator_calls_total", **labels) == comm.stats().calls
        assert value(after, "entrain_recorded_bytes_total", rank=comm.rank, operation="all_reduce") == 4000
        assert value(after, "entrain_recorded_calls_total", rank=comm.rank, operation="all_reduce") == 1
        assert value(after, "entrain_unrecorded_calls_total", rank=comm.rank) == 0
        observer.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", observer.port), timeout=10)
        assert [file.name for file in tmp_path.iterdir()] == ["m-0.prom"]
        comm.barrier()
    ranks(2, lambda comm: body(comm) if comm.rank == 0 else other(comm))


def other(comm):
    comm.all_reduce(numpy.ones(1000, numpy.float32))
    for _ in range(3):
        comm.barrier()


def test_a_process_that_joins_has_the_rank_of_its_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(_launch, "_hidden", {})
    for _ in range(2):  # as it is, and behind elastic.alone
        with entrain.Store.open("mem:joins") as store, entrain.Comm.create(store, 0, 1) as comm:
            with Observer(comm, textfile=str(tmp_path / "m-{rank}.prom"), every=3600):
                pass
        found = parsed((tmp_path / "m-3.prom").read_text())
        assert value(found, "entrain_communicator_ranks", rank=3, communicator="world", state="alive") == 1
        (tmp_path / "m-3.prom").unlink()
        _launch.hide(["RANK"])


def test_a_replica_that_joins_has_the_ranks_of_its_launcher(tmp_path, monkeypatch):
    for name, number in {"WORLD_SIZE": 2, "EDIT_REPLICA": 1, "EDIT_REPLICAS": 3}.items():  # elastic.torchrun, started again
        monkeypatch.setenv(name, str(number))

    def body(comm):
        with Observer(comm, textfile=str(tmp_path / "m-{rank}.prom"), every=3600):
            comm.barrier()
    ranks(2, body)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m-2.prom", "m-3.prom"]


def test_a_rank_that_has_gone_is_seen():
    def body(comm):
        with Observer(comm) as observer:
            comm.barrier()
            if comm.rank == 1:
                return
            with pytest.raises(entrain.PeerLost):
                comm.barrier()
            found = parsed(observer.text())
            states = {state: value(found, "entrain_communicator_ranks", rank=0, communicator="world", state=state)
                      for state in ("alive", "lost", "left")}
            assert states["alive"] == 1 and states["lost"] + states["left"] == 1
    ranks(2, body)


def test_calls_that_the_recorder_has_lost_are_counted():
    def body(comm):
        with Observer(comm) as observer:
            for _ in range(100):  # the recorder keeps 64
                comm.all_reduce(numpy.ones(100_000, numpy.float32))
            observer.update()
            found = parsed(observer.text())
            seen = value(found, "entrain_recorded_calls_total", rank=comm.rank, operation="all_reduce")
            # Beside these calls there may be one that the recorder shows with them, on its other path.
            assert 0 < seen <= 65
            assert value(found, "entrain_unrecorded_calls_total", rank=comm.rank) == 100 - seen
            comm.barrier()
    ranks(2, body)


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "file").write_text("")

    def body(comm):
        with Observer(comm, textfile=str(tmp_path / "file/metrics.prom"), every=0) as observer:
            observer.update()
            assert value(parsed(observer.text()), "entrain_communicator_generation", rank=0, communicator="world") == 0
    ranks(1, body)
    assert "file/metrics.prom cannot be written: " in caplog.text


def test_the_page_has_every_metric():
    tables = (ROOT / "docs/observe.md").read_text().split("| metrics `entrain_...` |")[1].split("\n\n")[0]
    named = {name for row in tables.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(_HELP)
    assert {name for name, _ in _FIELDS.values()} < set(_HELP)


def test_what_it_does_not_know_is_refused():
    before = threading.active_count()
    with pytest.raises(TypeError, match="3 is neither a Comm nor an EDiT or ACCO object"):
        Observer(3, port=0)

    class Arrays:  # as entrain.EDiT, which does not tell its rank
        info = None
    with pytest.raises(TypeError, match="does not know its rank, which is in the names of the files; pass its Comm, too"):
        Observer(Arrays(), textfile="{rank}.prom")
    assert threading.active_count() == before and entrain._watch.observer() is None
