"""Functions of the caller that the library calls: what they may do, and that they do not hold up other calls."""
import numpy as np
import pytest
from conftest import ranks, script

import entrain


class Inside:
    """Calls the library from inside a function that the library calls, and keeps the texts of the refusals."""

    def __init__(self, comm):
        self.comm = comm
        self.texts = []

    def call(self):
        for call in (self.comm.barrier, lambda: self.comm.all_reduce(np.ones(1)),
                     lambda: self.comm.all_reduce(np.ones(1), async_=True), lambda: self.comm.split(0)):
            with pytest.raises(entrain.FailedPrecondition) as raised:
                call()
            self.texts.append(str(raised.value))
        assert self.comm.size == 2  # queries are allowed

    def refused_by(self, name):
        assert self.texts and all(name in text for text in self.texts), self.texts


def test_a_reduction_may_not_call_the_library():
    def body(comm):
        inside = Inside(comm)

        def add(a, b):
            inside.call()
            a += b

        with entrain.Reduction.user(add, 3) as op:
            assert comm.all_reduce(np.ones(4), op=op).tolist() == [2, 2, 2, 2]
        comm.barrier()  # the communicator goes on
        return inside

    for inside in ranks(2, body):
        if inside.texts:  # a rank that combines nothing calls nothing
            inside.refused_by("user reduction of all_reduce")


def test_an_outer_step_may_not_call_the_library():
    def body(comm):
        inside = Inside(comm)

        def outer(layer, step, anchor, grad):
            inside.call()
            anchor -= grad

        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [5]) as shard:
            params = np.zeros(5, np.float32)
            shard.bind_layers([params])
            edit = entrain.EDiT(mesh, shard, local_sgd_sync_interval=1, outer_optimizer="callback", outer_step=outer)
            for _ in range(3):
                edit.begin_forward()
                edit.wait_layer(0)
                params += comm.rank + 1
                edit.end_step()
            edit.close()
        inside.refused_by("the outer step of layer 0")
        comm.barrier()
        return params.tolist()

    ranks(2, body)


def test_an_acco_step_may_not_call_the_library():
    def body(comm):
        inside = Inside(comm)

        def step(preview, number, lr, first, grads, master, out):
            inside.call()
            (out if preview else master)[:] = master - lr * grads

        with entrain.ACCO(comm, np.zeros(8, np.float32), step=step, method="zero1", limit=2) as channel:
            for _ in range(2):
                channel.add()
                finished = channel.install()
        assert finished
        inside.refused_by("the ACCO step of commit")
        comm.barrier()

    ranks(2, body)


def test_a_done_callback_may_call_and_wait():
    # Processes: the threads of one process share the thread that runs these callbacks.
    text = script("""
import threading
import numpy as np
import entrain

comm = entrain.Comm.from_env(timeout=30)
other, over = comm.duplicate(), threading.Event()

def done(work):
    print("sum", other.all_reduce(np.ones(1))[0])
    over.set()

comm.all_reduce(np.ones(1), async_=True).add_done_callback(done)
assert over.wait(20)
""", size=2)
    assert text.count("sum 2.0") == 2


# ctypes.PyDLL holds the interpreter's lock during a call, like an extension that does not release it.
HOLD_THE_LOCK = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import entrain
from entrain._library import NULL, ffi, lib, library_path, new_struct

comm = entrain.Comm.from_env(timeout=30)
other, idle = comm.duplicate(), comm.duplicate()
library = ctypes.PyDLL(library_path())

def barrier(comm, seconds):
    options = new_struct("call_options")
    options.timeout_ns = round(seconds * 1e9)
    addresses = [ctypes.c_void_p(int(ffi.cast("uintptr_t", pointer))) for pointer in (comm._life.handle, options)]
    began = time.monotonic()
    return library.entrain_barrier(*addresses, None), time.monotonic() - began

"""


def test_done_that_needs_the_interpreters_lock_stops_no_deadline():
    text = script(HOLD_THE_LOCK + """
told = threading.Event()

@ffi.callback("void(entrain_status_t, void*)")
def done(status, user):
    told.set()

if comm.rank == 0:
    work = other.all_reduce(np.ones(1 << 16), async_=True)
    assert lib.entrain_work_notify(work._handle, done, NULL) == 0
    comm.send(np.ones(1), 1)
    status, took = barrier(idle, 1.0)  # in which `done` becomes due
    assert status == lib.ENTRAIN_TIMED_OUT and took < 3, (status, took)
    assert told.wait(20) and work.result()[0] == 2
    comm.send(np.ones(1), 1)
else:
    comm.recv(np.ones(1), 0)
    other.all_reduce(np.ones(1 << 16))
    comm.recv(np.ones(1), 0)
print("well", flush=True)
""", size=2)
    assert text.count("well") == 2


def test_a_reduction_that_needs_the_interpreters_lock_stops_no_call():
    text = script(HOLD_THE_LOCK + """
calls = []

def add(a, b):
    calls.append(1)
    a += b

op = entrain.Reduction.user(add, 3)
options = [new_struct("call_options") for _ in range(2)]
options[0].timeout_ns, options[1].timeout_ns = 20_000_000_000, 1_000_000_000
barriers = [[ctypes.c_void_p(int(ffi.cast("uintptr_t", pointer))) for pointer in (one._life.handle, given)]
            for one, given in zip((other, idle), options)]
usleep = ctypes.PyDLL(None).usleep
sys.setswitchinterval(100)
if comm.rank == 1:
    # Else the reduction may be due while rank 0 still starts its call, which gives up the lock: there is nothing that tells.
    usleep(100_000)
work = comm.all_reduce(np.ones(5000), op=op, async_=True)
if comm.rank == 0:
    # From here on nothing gives up the lock, as every call by cffi would.
    usleep(300_000)  # the reduction becomes due in this time, and nothing here can see it
    statuses = [library.entrain_barrier(*addresses, None) for addresses in barriers]
    before = len(calls)
    sys.setswitchinterval(0.005)
    assert statuses == [0, lib.ENTRAIN_TIMED_OUT] and before == 0, (statuses, before)
    comm.send(np.zeros(1), 1)
else:
    sys.setswitchinterval(0.005)
    assert barrier(other, 20)[0] == 0
    comm.recv(np.zeros(1), 0)
assert work.result()[0] == 2 and calls
comm.barrier()
print("well", flush=True)
""", size=2)
    assert text.count("well") == 2
