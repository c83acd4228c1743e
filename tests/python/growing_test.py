"""Communicators that grow, and newcomers that join."""
import concurrent.futures
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import RUN, finish, start

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

def train(comm, store, until, **options):
    """Trains a replica of one rank until `until(edit)` after an exchange. Returns its parameters and its number."""
    with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [5000, 300]) as shard:
        slab, grads = np.zeros(5300, np.float32), np.zeros(5300, np.float32)
        shard.bind(slab, grads)
        with entrain.EDiT(mesh, shard, outer_optimizer="sgd", on_loss="finish", admit="exchange", most_replicas=3,
                          admit_store=store, admit_name="python", local_sgd_sync_interval=2, timeout=20, **options) as edit:
            while True:
                began = edit.begin_forward()
                for layer in range(2):
                    edit.wait_layer(layer)
                if began and until(edit):
                    return slab.copy(), edit.info().replica
                slab += 1 + edit.info().replica
                edit.end_step()


def test_a_replica_joins_others_that_train():
    def body(rank):
        with entrain.Runtime() as runtime, entrain.Store.open("mem:replicas") as store:
            if rank < 2:
                with entrain.Comm.create(store, rank, 2, timeout=20, runtime=runtime) as comm:
                    return train(comm, store, lambda edit: len(met(edit)) == 3)
            with entrain.Comm.create(store, 0, 1, name="own", timeout=20, runtime=runtime) as comm:
                return train(comm, store, lambda edit: len(met(edit)) == 3, join=20)

    def met(edit):
        there = []
        for replica in range(edit.info().most_replicas):
            try:
                edit.replica(replica)
                there.append(replica)
            except entrain.FailedPrecondition:
                pass
        return there

    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = list(pool.map(body, range(3)))
    assert [number for _, number in results] == [0, 1, 2]
    for slab, _ in results:
        assert slab.tobytes() == results[0][0].tobytes()
        assert slab[0] > 0


def test_a_replica_that_cannot_join_says_why():
    with entrain.Store.open("mem:nobody") as store, entrain.Comm.create(store, 0, 1, timeout=20) as comm:
        with pytest.raises(entrain.TimedOut, match="no communicator of this name has called entrain_comm_grow"):
            train(comm, store, None, join=0.1)
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [8]) as shard:
            shard.bind(np.zeros(8, np.float32), np.zeros(8, np.float32))
            with pytest.raises(entrain.InvalidArgument, match=r"admit: 0 \(none\) takes nobody in"):
                entrain.EDiT(mesh, shard, outer_optimizer="sgd", on_loss="finish", join=1)


def train_channel(comm, store, **options):
    """Trains until three ranks have made 6 rounds together. Returns the parameters and the joins."""
    params = np.ones(3001, np.float32) if comm.size > 1 else np.zeros(3001, np.float32)
    with entrain.Optim.adamw() as optim, \
            entrain.ACCO(comm, params, optim, lr=0.01, admit="exchange", admit_store=store, admit_name="python", timeout=20,
                         **options) as acco:
        together, finished = 0, False
        while not finished:
            acco.gradients += 1
            acco.add(1, 1)
            finished = acco.install()
            together = together + 1 if acco.info().ranks == 3 else 0
            if together >= 6:
                acco.stop()
        return params.copy(), acco.info().joins


def test_a_rank_joins_a_channel_that_trains():
    def body(rank):
        with entrain.Runtime() as runtime, entrain.Store.open("mem:channel") as store:
            if rank < 2:
                with entrain.Comm.create(store, rank, 2, timeout=20, runtime=runtime) as comm:
                    return train_channel(comm, store)
            with entrain.Comm.create(store, 0, 1, name="own", timeout=20, runtime=runtime) as comm:
                return train_channel(comm, store, join=20)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = list(pool.map(body, range(3)))
    for params, joins in results:
        assert params.tobytes() == results[0][0].tobytes()
        assert params[0] < 1
        assert joins == 1


def test_a_rank_that_cannot_join_a_channel_says_why():
    with entrain.Store.open("mem:no channel") as store, entrain.Comm.create(store, 0, 1, timeout=20) as comm:
        with pytest.raises(entrain.TimedOut, match="acco: join: .*no communicator of this name has called entrain_comm_grow"):
            train_channel(comm, store, join=0.1)
        with entrain.Optim.adamw() as optim, pytest.raises(entrain.InvalidArgument, match=r"admit: 0 \(none\) takes nobody"):
            entrain.ACCO(comm, np.zeros(8, np.float32), optim, join=1)


def test_the_launcher_learns_of_a_replica_that_hides_its_variables(tmp_path):
    """Otherwise it ends such a replica when the others have ended."""
    code = """
import os, signal, sys, time
import numpy as np
import entrain
from entrain.integrations import elastic
place = elastic.alone(join=30)
assert "RANK" not in os.environ
with entrain.Mesh(place.options.pop("comm")) as mesh, entrain.Shard(mesh, [100]) as shard:
    layer = np.zeros(100, np.float32)
    shard.bind_layers([layer])
    with entrain.EDiT(mesh, shard, preset="diloco", local_sgd_sync_interval=5, **place.options) as edit:
        assert "RANK" not in os.environ
        if place.restarted:
            open(sys.argv[1], "w").close()
        while edit.info().steps < 600:
            if place.replica == 1 and not place.restarted and edit.info().steps == 12:
                os.kill(os.getpid(), signal.SIGKILL)
            if not place.restarted and edit.info().steps > 12 and not os.path.exists(sys.argv[1]):
                time.sleep(0.1)  # the run would end before the killed one is back
            edit.begin_forward()
            edit.wait_layer(0)
            layer += 1
            edit.end_step()
if place.restarted:
    time.sleep(2)  # longer than the others, which have ended
    print("it ends last", flush=True)
"""
    command = [RUN, "--elastic", "-n", "2", "--", sys.executable, "-c", code, str(tmp_path / "back")]
    text = finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), 60)
    assert "it ends last" in text and "did not take in" not in text and "warning" not in text, text


@pytest.mark.parametrize("hidden", [False, True])
def test_the_launcher_learns_of_a_join_by_hand(hidden):
    code = """
import os, signal, sys, time
import numpy as np
import entrain
from entrain.integrations import elastic

hidden = sys.argv[1] == "True"
if os.environ.get("ENTRAIN_RESTARTS") in (None, "", "0"):
    comm = entrain.Comm.from_env(timeout=30)
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.barrier()
    except entrain.Error:
        comm = comm.shrink().grow(min_newcomers=1, wait=30)
    assert comm.all_reduce(np.ones(1))[0] == 2
else:
    store = entrain.Store.open("env:")
    if hidden:
        elastic.alone()
        assert "RANK" not in os.environ
    comm = entrain.Comm.join(store, wait=30)
    assert comm.all_reduce(np.ones(1))[0] == 2
    time.sleep(2)  # longer than the other, which has ended
    print("it ends last", flush=True)
"""
    command = [RUN, "--elastic", "-n", "2", "--", sys.executable, "-c", code, str(hidden)]
    text = finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), 90)
    assert "it ends last" in text and "did not take in" not in text, text


def test_a_new_server_at_the_stores_address(monkeypatch):
    """The communicator finds its store in the environment. When another server has taken the place of the first one, a call fails, and the
    next one uses the new server."""
    first = entrain.Store.serve("tcp://127.0.0.1:0")
    url = first.url
    monkeypatch.setenv("ENTRAIN_STORE", url)
    with entrain.Runtime() as runtime, entrain.Comm.create(first, 0, 1, name="renewed", timeout=20, runtime=runtime) as comm:
        assert comm.grow() is None  # opens the store
        first.close()
        with entrain.Store.serve(url):
            with pytest.raises(entrain.PeerLost, match="the server was replaced by another one"):
                comm.grow()

            def join():
                with entrain.Runtime() as other, entrain.Comm.join(name="renewed", wait=20, runtime=other) as joined:
                    joined.barrier()
                    return joined.rank

            with concurrent.futures.ThreadPoolExecutor() as pool:
                newcomer = pool.submit(join)
                with comm.grow(min_newcomers=1, wait=20) as grown:
                    grown.barrier()
                assert newcomer.result() == 1
