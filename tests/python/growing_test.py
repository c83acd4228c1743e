"""Communicators that grow, and newcomers that join."""
import threading

import numpy as np
import pytest
from conftest import finish, start

import entrain


def total(comm):
    return int(comm.all_reduce(np.array([comm.rank + 1], np.int64))[0])


def test_grow_and_join():
    sums, failures = [], []

    def run(body):
        try:
            with entrain.Runtime() as runtime, entrain.Store.open("mem:growing") as store:
                body(store, runtime)
        except BaseException as failure:  # raised below
            failures.append(failure)

    def member(rank):
        def body(store, runtime):
            with entrain.Comm.create(store, rank, 2, timeout=20, runtime=runtime) as comm:
                assert comm.grow(store, max_newcomers=0, min_newcomers=5) is None
                with comm.grow(store, min_newcomers=1, wait=20) as grown:
                    assert (grown.rank, grown.size) == (rank, 3)
                    sums.append(total(grown))
                assert total(comm) == 3
        return body

    def newcomer(store, runtime):
        with entrain.Comm.join(store, wait=20, runtime=runtime) as comm:
            assert (comm.rank, comm.size) == (2, 3)
            sums.append(total(comm))

    threads = [threading.Thread(target=run, args=(body,)) for body in (member(0), member(1), newcomer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert sums == [6, 6, 6]


def test_a_newcomer_without_members_says_what_was_missing():
    with entrain.Store.open("mem:lonely") as store, pytest.raises(entrain.TimedOut, match="wrold: not taken in") as raised:
        entrain.Comm.join(store, name="wrold", wait=0.1)
    assert "no communicator of this name has called entrain_comm_grow" in str(raised.value)


def test_wrong_options_are_named():
    with entrain.Store.open("mem:alone") as store, entrain.Comm.create(store, 0, 1) as comm:
        with pytest.raises(entrain.InvalidArgument, match="max_newcomers: 1 is less than min_newcomers: 2"):
            comm.grow(store, min_newcomers=2, max_newcomers=1)


def test_ctrl_c_while_joining_and_growing():
    text = finish(start("""
import os, threading, time
import entrain
store = entrain.Store.open("mem:interrupted")
comm = entrain.Comm.create(store, 0, 1, timeout=30)
for call in (lambda: entrain.Comm.join(store, name="nobody", wait=30), lambda: comm.grow(store, min_newcomers=1, wait=30)):
    threading.Timer(0.2, os.kill, (os.getpid(), 2)).start()
    begin = time.monotonic()
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - begin < 5)
os._exit(0)
"""))
    assert text.count("interrupted True") == 2, text
