"""Works: waiting, futures, asyncio, callbacks, and which object keeps the arrays."""
import asyncio
import concurrent.futures
import gc
import threading
import weakref

import numpy as np
import pytest
from conftest import ranks

import entrain


def test_wait_result_done():
    def body(comm):
        x = np.ones(1000)
        if comm.rank == 0:
            work = comm.all_reduce(x, async_=True)
            assert not work.wait(0.01) and not work.done()
            with pytest.raises(TimeoutError, match="not over after 0.01 s"):
                work.result(0.01)
            comm.send(np.zeros(1), 1)
        else:
            comm.recv(np.zeros(1), 0)
            work = comm.all_reduce(x, async_=True)
        assert work.wait() and work.done() and work.result() is x and x[0] == 2
        assert work.exception() is None and work.wait(0)

    ranks(2, body)


def test_futures_callbacks_and_asyncio():
    def body(comm):
        many = [comm.all_reduce(np.full(10, i), async_=True, tag=i) for i in range(20)]
        futures = [work.as_future() for work in many]
        assert concurrent.futures.wait(futures, 20).not_done == set()
        assert [int(future.result()[0]) for future in futures] == [2 * i for i in range(20)]

        again = threading.Event()

        def call_the_library(work):  # both ranks' callbacks run on one thread here, so this starts a call without waiting
            comm.all_reduce(np.ones(1), async_=True).add_done_callback(lambda work: work.result()[0] == 2 and again.set())

        comm.all_reduce(np.ones(100_000), async_=True).add_done_callback(call_the_library)
        assert again.wait(20)

        async def together():
            works = [comm.all_reduce(np.full(3, i), async_=True) for i in range(5)]
            twice = [asyncio.ensure_future(wait(works[0])) for _ in range(2)]
            return [int((await work)[0]) for work in works], [int((await task)[0]) for task in twice]

        async def wait(work):
            return await work

        assert asyncio.run(together()) == ([0, 2, 4, 6, 8], [0, 0])

    ranks(2, body)


def test_info():
    def body(comm):
        assert comm.size == 2
        if comm.rank == 0:
            work = comm.all_reduce(np.ones(1000), async_=True, tag=7)
            info = work.info()
            assert (info.operation, info.comm, info.tag, info.done, info.source) == ("all_reduce", "world", 7, False, -1)
            assert info.sequence == 1 and info.elapsed_ns > 0
            comm.send(np.zeros(1), 1)
        else:
            comm.recv(np.zeros(1), 0)
            work = comm.all_reduce(np.ones(1000), async_=True, tag=7)
        work.wait()
        assert work.info().done
        received = comm.recv_any(np.zeros(1), async_=True) if comm.rank == 0 else comm.send(np.zeros(1), 0)
        if received is not None:
            assert received.result().source == 1 and received.info().source == 1

    ranks(2, body)


def test_errors_come_from_every_way_of_waiting():
    def body(comm):
        work = comm.all_reduce(np.ones(2 + comm.rank), async_=True)
        with pytest.raises(entrain.Mismatch, match="all_reduce") as raised:
            work.wait()
        assert raised.value.record.scope is entrain.Scope.COMM and raised.value.record.operation == "all_reduce"
        assert isinstance(work.exception(), entrain.Mismatch) and work.done()
        with pytest.raises(entrain.Mismatch):
            work.as_future().result()
        assert isinstance(comm.error(), entrain.Mismatch)

    ranks(2, body)


def test_a_dropped_work_keeps_its_array():
    def body(comm):
        x = np.ones(50_000)
        seen = weakref.ref(x)
        if comm.rank == 1:
            comm.recv(np.zeros(1), 0)
        comm.all_reduce(x, async_=True)
        del x
        gc.collect()
        if comm.rank == 0:
            assert seen() is not None
            comm.send(np.zeros(1), 1)
        assert comm.drain(10)
        comm.barrier()  # a later call frees what is over
        comm.barrier()
        assert seen() is None

    ranks(2, body)


def test_an_exception_in_a_reduction_is_the_cause():
    def body(comm):
        def broken(a, b):
            raise RuntimeError("in the reduction")

        with entrain.Reduction.user(broken, 7) as op, pytest.raises(entrain.Aborted) as raised:
            comm.all_reduce(np.ones(4), op=op)
            comm.barrier()
        return raised.value.__cause__

    causes = ranks(2, body)
    assert any(isinstance(cause, RuntimeError) for cause in causes)


def test_a_reduction_may_take_a_lock_that_is_held_over_calls():
    def body(comm):
        beside = comm.duplicate()
        lock = threading.Lock()

        def add(a, b):
            with lock:
                np.add(a, b, out=a)

        with entrain.Reduction.user(add, 1) as op:
            with lock:
                work = comm.all_reduce(np.ones(5000), op=op, async_=True)
                beside.barrier()
                assert beside.all_reduce(np.ones(3))[0] == 2
                assert not work.done()
            assert work.result()[0] == 2
            comm.barrier()

    ranks(2, body)


def test_a_reduction_that_does_not_return_ends_its_call_alone():
    def body(comm):
        beside = comm.duplicate()
        go, left = threading.Event(), threading.Event()

        def wait(a, b):
            go.wait()
            a += b
            left.set()

        op = entrain.Reduction.user(wait, 1)
        x = np.ones(5000)
        with pytest.raises(entrain.TimedOut, match="it is in the user reduction of all_reduce #3, which has not returned for"):
            comm.all_reduce(x, op=op, timeout=0.3)
        x[:] = 7
        op.close()
        del op
        gc.collect()  # the function is still in use
        assert beside.all_reduce(np.ones(3))[0] == 2
        go.set()
        assert left.wait(20)
        beside.barrier()
        assert (x == 7).all()

    ranks(2, body)


def test_timeout_of_a_call_names_who_is_late():
    def body(comm):
        sequence = comm.sequence
        comm.barrier()
        assert comm.sequence > sequence and comm.late() == []
        if comm.rank == 0:
            comm.set_timeout(0.2)
            with pytest.raises(entrain.TimedOut) as raised:
                comm.all_reduce(np.ones(1))
            assert raised.value.record.guilty_rank == 1 and isinstance(raised.value, TimeoutError)
            assert comm.late() == [1]

    # Rank 1 makes no call, and waits until rank 0 has finished.
    through = threading.Event()

    def one(comm):
        try:
            body(comm)
        finally:
            if comm.rank == 0:
                through.set()
        assert through.wait(20)

    ranks(2, one)
