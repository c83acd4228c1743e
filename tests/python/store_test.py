"""Stores, and communicators made from them."""
import threading
import pytest

import entrain


def test_store():
    with entrain.Store.serve("tcp://127.0.0.1:0") as server, entrain.Store.open(server.url, timeout=10) as client:
        server.set("key", b"x" * 10_000)
        assert client.get("key") == b"x" * 10_000
        assert client.add("count", 3) == 3 and server.add("count") == 4
        client.delete("count")
        client.delete("count")  # there is none
        assert server.add("count") == 1
        with pytest.raises(entrain.TimedOut, match="absent") as raised:
            client.get("absent", timeout=0.05)
        assert isinstance(raised.value, TimeoutError)
    with pytest.raises(entrain.FailedPrecondition, match="store is closed"):
        client.get("key")
    client.close()


def test_a_rank_that_does_not_come_is_named():
    with entrain.Store.open("mem:absent") as store, pytest.raises(entrain.TimedOut, match="1") as raised:
        entrain.Comm.create(store, 0, 2, timeout=0.2)
    assert raised.value.record.phase is entrain.Phase.BOOTSTRAP


def test_a_store_of_functions():
    import threading
    values, lock, failures = {}, threading.Lock(), []

    def add(key, delta):
        with lock:
            values[key] = values.get(key, 0) + delta
            return values[key]

    def run(rank, remove):
        try:
            with entrain.Runtime() as runtime, \
                    entrain.Store.of_functions(values.__setitem__, values.get, add, remove, "127.0.0.1") as store, \
                    entrain.Comm.create(store, rank, 3, timeout=20, runtime=runtime) as comm:
                assert comm.size == 3
                comm.barrier()
        except BaseException as failure:  # raised below
            failures.append(failure)

    for remove in (lambda key: values.pop(key, None), None):
        threads = [threading.Thread(target=run, args=(rank, remove), daemon=True) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures, failures
        if remove is not None:
            assert not values


def test_a_function_of_a_store_that_raises(monkeypatch):
    import sys
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def fails(key):
        raise OSError("no such map")

    with entrain.Store.of_functions(lambda key, value: None, fails, lambda key, delta: 1) as store:
        with pytest.raises(entrain.PeerLost, match="get"):
            store.get("key", 1.0)
    assert seen and isinstance(seen[0].exc_value, OSError)


def test_a_store_may_be_closed_under_a_call():
    entered, closed, got = threading.Event(), threading.Event(), []

    def get(key):
        entered.set()
        return b"value" if closed.is_set() else None

    store = entrain.Store.of_functions(lambda key, value: None, get, lambda key, delta: 0)
    thread = threading.Thread(target=lambda: got.append(store.get("key", timeout=20)), daemon=True)
    thread.start()
    assert entered.wait(20)
    store.close()
    closed.set()
    thread.join(20)
    assert got == [b"value"]
