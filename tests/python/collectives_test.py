"""Every collective on three ranks: values, shapes, arguments."""
import numpy as np
import pytest
from conftest import ranks

import entrain


def test_reductions():
    def body(comm):
        x = np.full((2, 3), comm.rank + 1.0)
        same = comm.all_reduce(x)
        assert same is x and (x == 6).all()
        out = np.empty(4, np.int64)
        given = np.full(4, comm.rank, np.int64)
        assert comm.all_reduce(given, out, "max") is out
        assert (out == 2).all() and (given == comm.rank).all()
        assert comm.all_reduce(np.array([comm.rank == 1]), op=entrain.Op.LOR)[0]
        got = comm.reduce(np.full(2, 2.0, np.float32), root=1, op="prod")
        assert got is None if comm.rank != 1 else (got == 8).all()
        part = comm.reduce_scatter(np.arange(6, dtype=np.int32).reshape(3, 2))
        assert part.tolist() == [6 * comm.rank, 6 * comm.rank + 3]
        uneven = comm.reduce_scatter(np.ones(6, np.float32), counts=[1, 2, 3])
        assert uneven.tolist() == [3.0] * (comm.rank + 1)
        assert comm.scan(np.array([comm.rank + 1]))[0] == [1, 3, 6][comm.rank]
        assert comm.scan(np.array([comm.rank + 1]), exclusive=True)[0] == [1, 1, 3][comm.rank]
        pair = np.array([(5 - comm.rank, comm.rank)], [("value", "f4"), ("location", "i4")])
        assert comm.all_reduce(pair, op="minloc").tolist() == [(3.0, 2)]

    ranks(3, body)


def test_moving_data():
    def body(comm):
        rank = comm.rank
        assert comm.broadcast(np.full(3, rank), root=2).tolist() == [2, 2, 2]
        assert comm.all_gather(np.array([rank, rank])).tolist() == [[0, 0], [1, 1], [2, 2]]
        counts = [2, 0, 1]
        assert comm.all_gather(np.full(counts[rank], rank), counts=counts).tolist() == [0, 0, 2]
        got = comm.gather(np.array([rank]), root=1)
        assert got is None if rank != 1 else got.tolist() == [[0], [1], [2]]
        got = comm.gather(np.full(counts[rank], rank), counts=counts if rank == 0 else ())
        assert got is None if rank else got.tolist() == [0, 0, 2]
        part = np.zeros(2, np.int64)
        comm.scatter(np.arange(6).reshape(3, 2) if rank == 0 else None, part)
        assert part.tolist() == [2 * rank, 2 * rank + 1]
        part = np.zeros(counts[rank], np.int64)
        comm.scatter(np.array([7, 8, 9]) if rank == 0 else None, part, counts=counts if rank == 0 else ())
        assert part.tolist() == [[7, 8], [], [9]][rank]
        assert comm.all_to_all(np.arange(3) + 10 * rank).tolist() == [rank, 10 + rank, 20 + rank]
        sent = [[1, 2, 0], [0, 1, 1], [2, 0, 1]]
        received = [row[rank] for row in sent]
        got = comm.all_to_all(np.full(sum(sent[rank]), rank), in_counts=sent[rank], out_counts=received)
        assert got.tolist() == [source for source, count in enumerate(received) for _ in range(count)]
        comm.barrier()
        peer = (rank + 1) % 3
        work = comm.send(np.array([rank]), peer, async_=True)
        assert comm.recv(np.empty(1, np.int64), (rank + 2) % 3)[0] == (rank + 2) % 3
        work.wait()
        waiting = comm.recv_any(np.empty(1, np.int64), async_=True, tag=3)
        work = comm.send(np.array([rank]), peer, async_=True, tag=3)
        received = waiting.result()
        assert received.source == (rank + 2) % 3 and received.array[0] == received.source
        work.wait()
        with entrain.Batch(comm) as batch:
            received = comm.recv_any(np.empty(1, np.int64), batch=batch)
            comm.send(np.array([rank]), peer, batch=batch)
            assert received.source == -1
            batch.start().wait()
            assert received.source == (rank + 2) % 3 and received.array[0] == received.source

    ranks(3, body)


def test_lists():
    def body(comm):
        rank = comm.rank
        outs = [np.zeros((2, 1), np.int64) for _ in range(3)]
        assert comm.all_gather_list(np.array([rank, rank]), outs) is outs
        assert [out.tolist() for out in outs] == [[[0], [0]], [[1], [1]], [[2], [2]]]
        counts = [2, 0, 1]
        outs = [np.zeros(count) for count in counts]
        comm.all_gather_list(np.full(counts[rank], 1.0 + rank), outs, async_=True).wait()
        assert [out.tolist() for out in outs] == [[1.0, 1.0], [], [3.0]]
        out = np.zeros(counts[rank])
        assert comm.reduce_scatter_list([np.full(count, 1.0 + rank) for count in counts], out) is out
        assert (out == 6).all()
        got = comm.gather_list(np.array([rank]), [np.zeros(1, np.int64) for _ in range(3)] if rank == 1 else None, 1)
        assert got is None if rank != 1 else [one[0] for one in got] == [0, 1, 2]
        got = comm.gather_list(np.full(counts[rank], rank), [np.zeros(c, np.int64) for c in counts] if rank == 0 else None,
                               uneven=True)
        assert got is None if rank else [one.tolist() for one in got] == [[0, 0], [], [2]]
        out = comm.scatter_list([np.full(3, r) for r in range(3)] if rank == 2 else None, np.zeros(3, np.int64), 2)
        assert out.tolist() == [rank] * 3
        out = np.zeros(counts[rank], np.int64)
        comm.scatter_list([np.full(c, 7) for c in counts] if rank == 0 else None, out, uneven=True)
        assert (out == 7).all()
        sent = [[1, 2, 0], [0, 1, 1], [2, 0, 1]]
        outs = [np.zeros(row[rank], np.int64) for row in sent]
        comm.all_to_all_list([np.full(count, 10 * rank + peer) for peer, count in enumerate(sent[rank])], outs)
        assert [out.tolist() for out in outs] == [[10 * peer + rank] * row[rank] for peer, row in enumerate(sent)]
        strided = np.zeros((2, 3), np.int64)
        comm.all_gather_list(np.full(2, rank), [strided[:, r] for r in range(3)], copy=True)
        assert strided.tolist() == [[0, 1, 2]] * 2
        for call, text in ((lambda: comm.all_gather_list(np.ones(1), [np.ones(1)]), "outs has 1 arrays; expected 3"),
                           (lambda: comm.all_gather_list(np.ones(1), [np.ones(1)] * 2 + [np.ones(1, np.int8)]),
                            r"outs\[2\] is i8, outs\[0\] f64"),
                           (lambda: comm.all_gather_list(np.ones(2), [np.ones(1)] * 3), "array has 2 elements"),
                           (lambda: comm.gather_list(np.ones(1), [np.ones(1 if r == rank else 2) for r in range(3)], rank),
                            "give uneven=True")):
            with pytest.raises(entrain.InvalidArgument, match=text):
                call()
        comm.barrier()

    ranks(3, body)


def test_options():
    def body(comm):
        first = comm.all_reduce(np.ones(3), async_=True, tag=7, timeout=10.0, background=True)
        second = comm.all_reduce(np.ones(3), async_=True, tag=8, determinism="rank_order")
        assert second.result()[0] == 2 and first.result()[0] == 2
        bits = np.full(4, 0x3F80, np.uint16)  # 1.0 in bf16
        assert comm.all_reduce(bits, dtype="bf16")[0] == 0x4000
        with pytest.raises(TypeError, match="unexpected keyword argument 'tags'"):
            comm.all_reduce(np.ones(1), tags=1)
        with pytest.raises(entrain.InvalidArgument, match="determinism: 'no' is none of algorithm, default, rank_order"):
            comm.all_reduce(np.ones(1), determinism="no")

    ranks(2, body)


def test_wrong_arguments_name_the_argument():
    comm = entrain.Comm.from_env()
    cases = [
        (lambda: comm.all_reduce(np.ones(3), np.ones(2)), "all_reduce: out has 2 elements; expected 3"),
        (lambda: comm.all_reduce(np.ones(3), np.ones(3, np.float32)), "array is f64, out is f32"),
        (lambda: comm.all_reduce(np.ones(3), op="mean"), "op is 'mean', which is none of sum, prod"),
        (lambda: comm.all_reduce(np.ones(3, bool)), "op is sum on an array of bool"),
        (lambda: comm.all_gather(np.ones(3), counts=[1, 2]), "counts has 2 entries; the communicator has 1 ranks"),
        (lambda: comm.all_gather(np.ones(3), counts=[2]), r"array has 3 elements; expected 2 \(counts\[0\]\)"),
        (lambda: comm.reduce(np.ones(3), root=4), "root is 4; the communicator has 1 ranks"),
        (lambda: comm.all_to_all(np.ones(3), in_counts=[3]), "in_counts and out_counts go together"),
    ]
    for call, text in cases:
        with pytest.raises(entrain.InvalidArgument, match=text) as raised:
            call()
        assert isinstance(raised.value, ValueError) and raised.value.record.code_name == "ENTRAIN_INVALID_ARGUMENT"
    with pytest.raises(TypeError, match="array is a list"):
        comm.all_reduce([1.0])
    comm.close()
    with pytest.raises(entrain.FailedPrecondition, match="communicator is closed"):
        comm.all_reduce(np.ones(1))


def test_batch():
    def body(comm):
        a, b = np.full(2, 1.0), np.full(3, comm.rank)
        with entrain.Batch(comm) as batch:
            comm.all_reduce(a, batch=batch)
            comm.broadcast(b, root=1, batch=batch)
            assert a[0] == 1
            batch.start().wait()
            assert a.tolist() == [2, 2] and b.tolist() == [1, 1, 1]
            batch.start().wait()
            assert a.tolist() == [4, 4]

    ranks(2, body)


def test_reduction_objects():
    def body(comm):
        x = np.array([comm.rank + 1.0])
        with entrain.Reduction.weighted([3.0, 1.0]) as weighted:
            assert comm.all_reduce(x, np.empty(1), weighted)[0] == 1.25
        with entrain.Reduction.premultiplied_sum(10.0 ** comm.rank) as scaled:
            assert comm.all_reduce(x, np.empty(1), scaled)[0] == 21
        with entrain.Reduction.gta(consensus="sum", normalize=False) as gta:
            assert comm.all_reduce(np.array([[3.0, -1.0][comm.rank]]), op=gta)[0] == 3
            gta.set_weights([1.0, 5.0])
            assert comm.all_reduce(np.array([[3.0, -1.0][comm.rank]]), op=gta)[0] == -5
            assert gta.save() == b""
        sparse = entrain.Reduction.gta(sparsification="random", density=0.5, error_feedback=True, seed=3)
        comm.all_reduce(np.ones(64, np.float32), op=sparse)
        state = sparse.save()
        first = comm.all_reduce(np.ones(64, np.float32), op=sparse)
        sparse.load(state)
        assert (comm.all_reduce(np.ones(64, np.float32), op=sparse) == first).all() and state

        def larger(a, b):
            np.maximum(a, b, out=a)

        with entrain.Reduction.user(larger, signature=1) as user:
            assert comm.all_reduce(x, op=user)[0] == 2
        with pytest.raises(entrain.InvalidArgument, match="consensus: 'all' is none of count, none, sum"):
            entrain.Reduction.gta(consensus="all")

    ranks(2, body)


def test_parts_and_copies():
    def body(comm):
        odd = comm.split(comm.rank % 2, key=-comm.rank)
        assert odd.size == [2, 1, 2][comm.rank] and odd.rank == [1, 0, 0][comm.rank]
        none = comm.split(0 if comm.rank else -1)
        assert (none is None) == (comm.rank == 0)
        copy = comm.duplicate()
        comm.close()
        assert copy.all_reduce(np.array([1]))[0] == 3
        assert odd.all_reduce(np.array([1]))[0] == odd.size
        assert copy.transport(copy.rank) == "self"
        assert copy.algorithm("all_reduce", 1000)
        assert copy.algorithm("all_reduce", 1000) in copy.explain("all_reduce", 1000)
        stats = copy.stats()
        assert stats.calls >= 1 and copy.error() is None and copy.drain(1.0)

    ranks(3, body)


def test_a_meshs_communicator_gives_no_memory():
    def body(comm):
        with entrain.Mesh(comm) as mesh:
            with pytest.raises(entrain.InvalidArgument, match="belongs to a mesh"):
                mesh.comm("sync").alloc(4)

    ranks(1, body)


def test_memory_of_the_library():
    def body(comm):
        shared = comm.alloc((3, 5), "f32")
        assert shared.shape == (3, 5) and shared.dtype == np.float32 and not shared.any()
        shared += comm.rank + 1
        comm.all_reduce(shared)
        row = shared[1]
        del shared
        empty = comm.alloc(0)
        comm.close()
        # The communicator is closed, and the memory exists as long as it is used.
        row += 1
        assert row.tolist() == [4.0] * 5 and empty.size == 0

    ranks(2, body)


def test_arrays_are_registered_at_their_place():
    def body(comm):
        own = np.full(300_001, comm.rank + 1, np.float32)
        with comm.register(own) as registration:
            assert own.nbytes - 8192 < registration.mapped <= own.nbytes and (own == comm.rank + 1).all()
            comm.all_reduce(own)
            with pytest.raises(entrain.InvalidArgument, match="registered already"):
                comm.register(own[1000:])
        assert registration.closed and (own == 3).all()
        registration.close()
        comm.all_reduce(own)
        assert (own == 6).all()
        with pytest.raises(entrain.InvalidArgument, match="array is empty"):
            comm.register(np.empty(0, np.float32))
        frozen = np.ones(10_000)
        frozen.flags.writeable = False
        with pytest.raises(entrain.InvalidArgument, match="array is read-only"):
            comm.register(frozen)

    ranks(2, body)


def test_a_registration_stays_while_a_call_uses_its_array():
    def body(comm):
        own = np.ones(300_000, np.float32)
        registration = comm.register(own)
        if comm.rank == 0:
            work = comm.all_reduce(own, async_=True)
            with pytest.raises(entrain.FailedPrecondition, match="still used by all_reduce"):
                registration.close()
            assert not registration.closed
            comm.send(np.zeros(1, np.int32), 1)
            work.wait()
        else:
            comm.recv(np.zeros(1, np.int32), 0)
            comm.all_reduce(own)
        # The communicator closes the registration, and the array keeps its contents.
        comm.close()
        assert registration.closed and (own == 2).all()

    ranks(2, body)
