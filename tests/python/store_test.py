"""Stores, and communicators made from them."""
import pytest

import entrain


def test_store():
    with entrain.Store.serve("tcp://127.0.0.1:0") as server, entrain.Store.open(server.url, timeout=10) as client:
        server.set("key", b"x" * 10_000)
        assert client.get("key") == b"x" * 10_000
        assert client.add("count", 3) == 3 and server.add("count") == 4
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
