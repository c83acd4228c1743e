"""Objects that are dropped instead of closed: in cycles, on any thread, inside functions that the library calls."""
import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import ranks, script

import entrain
from entrain import lifetime

LAYERS = [6, 5]


def until(condition, seconds=20.0):
    """Waits until the package's thread has destroyed the dropped objects. Runs the garbage collector repeatedly,
    because a collection does nothing while another thread collects."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not destroyed"
        gc.collect()
        time.sleep(0.001)


class Trained:
    """Mesh, Shard and EDiT that refer to each other, as a model with hooks does."""

    def __init__(self, comm, outer=None):
        self.comm = comm
        self.mesh = entrain.Mesh(comm)
        self.shard = entrain.Shard(self.mesh, LAYERS)
        self.params = np.zeros(self.shard.slab_count, np.float32)
        first = self.shard.layers[1].slab_offset
        self.shard.bind_layers([self.params[:first], self.params[first:]])
        options = {} if outer is None else {"outer_optimizer": "callback", "outer_step": outer}
        self.edit = entrain.EDiT(self.mesh, self.shard, **options)
        for one in (self.mesh, self.shard, self.edit):
            one.all = self

    def exchange(self):
        self.edit.begin_forward()
        for layer in range(len(LAYERS)):
            self.edit.wait_layer(layer)
        self.edit.end_step()

    def lives(self):
        return [one._life for one in (self.mesh, self.shard, self.edit)]


def in_destroyed_order(lives):
    """Records the order in which lives are destroyed."""
    order = []
    for index, life in enumerate(lives):
        def destroy(handle, index=index, inner=life._destroy):
            order.append(index)
            inner(handle)

        life._destroy = destroy
    return order


def test_a_cycle_is_destroyed_children_first_on_the_thread_of_the_package():
    def body(comm):
        objects = Trained(comm)
        objects.exchange()
        lives = objects.lives()
        order = in_destroyed_order(lives)
        names = []
        inner = lives[2]._destroy
        lives[2]._destroy = lambda handle: (names.append(threading.current_thread().name), inner(handle))
        del objects
        comm.barrier()  # no rank is in an exchange
        gc.collect()
        until(lambda: all(life.over for life in lives))
        assert order == [2, 1, 0] and names == ["entrain-dropped"]
        comm.barrier()

    ranks(2, body)


def test_what_a_living_object_needs_waits_for_it():
    comm = entrain.Comm.from_env()
    shard = entrain.Shard(entrain.Mesh(comm), LAYERS)
    mesh, whole = shard._life._needs[0], comm._life
    del comm
    gc.collect()
    time.sleep(0.1)  # an event that must not happen cannot be awaited
    assert not mesh.over and not whole.over and shard.slab_count == sum(LAYERS)
    life = shard._life
    del shard
    until(lambda: life.over and mesh.over and whole.over)


def test_closing_closes_what_was_dropped_too():
    comm = entrain.Comm.from_env()
    objects = Trained(comm)
    lives = objects.lives()
    gc.disable()
    try:
        del objects
        comm.close()
        assert comm.closed and all(life.over for life in lives)
    finally:
        gc.enable()


def test_garbage_is_collected_inside_a_reduction(capfd):
    def body(comm):
        beside = comm.duplicate()
        lives = []

        def add(a, b):
            if not lives:
                cycle = waiting.pop()
                lives.extend(cycle.lives())
                del cycle
                gc.collect()
            a += b

        waiting = [Trained(beside)]
        with entrain.Reduction.user(add, 3) as op:
            for _ in range(3):
                assert comm.all_reduce(np.ones(500), op=op)[0] == 2
        until(lambda: all(life.over for life in lives))
        waiting.clear()
        comm.barrier()

    ranks(2, body)
    assert "destroyed" not in capfd.readouterr().err  # the library logs what it refuses


def test_garbage_is_collected_inside_an_outer_step(capfd):
    def body(comm):
        dropped = []

        def outer(layer, step, anchor, grad):
            gc.collect()
            anchor -= grad

        def turn():
            # The function refers to the object that holds it.
            objects = Trained(comm, lambda *arguments: outer(*arguments) if objects.edit else None)
            for _ in range(3):
                objects.exchange()
            dropped.append(objects.lives())

        for _ in range(3):
            turn()
        comm.barrier()
        gc.collect()
        until(lambda: all(life.over for lives in dropped for life in lives))
        comm.barrier()

    ranks(2, body)
    assert "destroyed" not in capfd.readouterr().err


def test_close_inside_a_reduction_is_refused():
    def body(comm):
        beside, texts = comm.duplicate(), []

        def add(a, b):
            if not texts:
                with pytest.raises(entrain.FailedPrecondition) as raised:
                    beside.close()
                texts.append(str(raised.value))
            a += b

        with entrain.Reduction.user(add, 3) as op:
            assert comm.all_reduce(np.ones(4), op=op)[0] == 2
        assert not beside.closed
        assert beside.all_reduce(np.ones(1))[0] == 2  # it goes on
        return texts

    texts = sum(ranks(2, body), [])
    assert texts and all("close of the communicator: called from the user reduction of all_reduce" in text for text in texts)


def test_dropping_under_a_lock_that_an_outer_step_wants():
    def body(comm):
        lock, inside, through = threading.Lock(), threading.Event(), threading.Event()

        def outer(layer, step, anchor, grad):
            inside.set()
            with lock:
                anchor -= grad
            through.set()

        objects = Trained(comm, outer)
        objects.exchange()
        with lock:
            objects.edit.begin_forward()
            # The exchange runs ahead, and its step waits for the lock. Destroying the object here would wait for the
            # step.
            assert inside.wait(20)
            lives = objects.lives()
            del objects
            gc.collect()
        assert through.wait(20)
        until(lambda: all(life.over for life in lives))

    ranks(2, body)


def test_many_threads_drop_works():
    def body(comm):
        def drop(number):
            beside = comms[number]
            for _ in range(200):
                beside.all_reduce(np.ones(100), async_=True)
                beside.barrier()

        comms = [comm.duplicate() for _ in range(4)]
        failures = []

        def run(number):
            try:
                drop(number)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures, failures[0]

    ranks(2, body, timeout=60)


def test_two_threads_that_reap_do_not_free_twice(monkeypatch):
    from entrain import works

    class Slow:
        """The library, with a switch to other threads inside entrain_work_test."""

        def __init__(self):
            self.freed = []
            self.entered, self.go = threading.Event(), threading.Event()

        def entrain_work_test(self, handle, done):
            assert handle not in self.freed
            if not self.entered.is_set():
                self.entered.set()
                assert self.go.wait(20)
            assert handle not in self.freed, "it is freed under the test"
            done[0] = 1

        def entrain_work_free(self, handle):
            self.freed.append(handle)

    slow = Slow()
    monkeypatch.setattr(works, "lib", slow)
    monkeypatch.setattr(works, "_orphans", [])
    works.orphan("a", None)
    failures = []

    def first():
        try:
            works.reap()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=first)
    thread.start()
    assert slow.entered.wait(20)
    works.reap()
    slow.go.set()
    thread.join(20)
    assert not failures and slow.freed == ["a"] and not works._orphans, failures


def test_a_weak_set_is_read_while_another_thread_adds():
    from entrain.works import members

    class One:
        pass

    stop, weak, kept = threading.Event(), weakref.WeakSet(), []

    def add():
        while not stop.is_set():
            kept.append(One())
            weak.add(kept[-1])
            if len(kept) > 200:
                kept.clear()

    thread, before = threading.Thread(target=add), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(300):
            assert all(isinstance(one, One) for one in members(weak))
    finally:
        sys.setswitchinterval(before)
        stop.set()
        thread.join()


def test_arrays_of_alloc_in_a_cycle_with_their_communicator():
    comm = entrain.Comm.from_env()
    comm.array = comm.alloc(1000)
    comm.itself = comm
    life = comm._life
    del comm
    gc.collect()
    until(lambda: life.over)


def test_arrays_of_alloc_keep_a_closed_communicator():
    comm = entrain.Comm.from_env()
    array, life = comm.alloc(1000), comm._life
    comm.close()
    assert comm.closed and not life.over
    array[:] = 3
    assert array.sum() == 3000
    del array
    until(lambda: life.over)


def test_a_registration_in_a_cycle_with_its_communicator():
    comm = entrain.Comm.from_env()
    comm.registration = comm.register(np.zeros(100_000))
    comm.registration.comm = comm
    lives = [comm._life, comm.registration._life]
    del comm
    gc.collect()
    until(lambda: all(life.over for life in lives))


def test_a_close_waits_for_calls_that_are_inside():
    comm = entrain.Comm.from_env()
    comm._life.__enter__()
    began = time.monotonic()
    comm.close()
    assert comm.closed and not comm._life.over and 0.9 < time.monotonic() - began < 5
    with pytest.raises(entrain.FailedPrecondition, match="the communicator is closed"):
        comm.barrier()
    comm._life.__exit__(None, None, None)
    until(lambda: comm._life.over)


def test_collecting_while_objects_are_made_and_used():
    text = script("""
import gc, threading, time
import numpy as np, entrain
comm = entrain.Comm.from_env(timeout=30)
stop = threading.Event()

def collect():
    while not stop.is_set():
        gc.collect()

def make(comm):
    mesh = entrain.Mesh(comm)
    shard = entrain.Shard(mesh, [8, 8])
    params = np.zeros(shard.slab_count, np.float32)
    shard.bind_layers([params[:8], params[8:]])
    edit = entrain.EDiT(mesh, shard, outer_optimizer="callback", outer_step=lambda *a: (edit, None)[1])
    for one in (mesh, shard, edit):
        one.all = (mesh, shard, edit, comm)
    return edit

def use(comm):
    for _ in range(15):
        edit = make(comm.duplicate())
        for _ in range(2):
            edit.begin_forward()
            edit.wait_layer(0)
            edit.wait_layer(1)
            edit.end_step()

threads = [threading.Thread(target=use, args=(comm.duplicate(),)) for _ in range(2)]
collector = threading.Thread(target=collect)
for thread in (*threads, collector):
    thread.start()
for thread in threads:
    thread.join()
stop.set()
collector.join()
gc.collect()
from entrain import lifetime
end = time.monotonic() + 20
while len(lifetime._live) > 1 and time.monotonic() < end:
    time.sleep(0.01)
assert len(lifetime._live) == 1, lifetime._live
print("well", flush=True)
""", size=2)
    assert text.count("well") == 2 and "destroyed" not in text, text


def test_dropping_in_a_forked_child_does_nothing():
    text = script("""
import gc, os, sys
import numpy as np, entrain
comm = entrain.Comm.from_env()
comm.itself, comm.array = comm, comm.alloc(100)
comm.all_reduce(np.ones(10), async_=True)
child = os.fork()
if child == 0:
    del comm
    gc.collect()
    from entrain import lifetime
    assert lifetime._dropped.empty() and lifetime._thread is None
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert comm.all_reduce(np.ones(1))[0] == 1
print("well", flush=True)
""")
    assert text.count("well") == 1


def test_the_thread_of_the_package_sleeps():
    comm = entrain.Comm.from_env()
    mesh = entrain.Mesh(comm)
    del comm  # waits for the mesh
    until(lambda: lifetime._dropped.empty())
    time.sleep(0.1)
    before = time.clock_gettime(time.pthread_getcpuclockid(lifetime._thread.ident))
    time.sleep(0.5)
    assert time.clock_gettime(time.pthread_getcpuclockid(lifetime._thread.ident)) - before < 0.001
    mesh.close()
