"""Compares the back end "entrain" with gloo in the same processes. This is one rank of a program that group_test.py
starts:

    group_checks.py RANK SIZE FOLDER [NAME...]

Every function whose name begins with "check_" is run on all ranks; for each a line of JSON goes to FOLDER/rank-RANK.
Ranks meet in a store of c10d between two checks. They stop after the first check that failed on any rank, because later
checks would fail for the same reason."""
import datetime
import inspect
import itertools
import json
import os
import sys
import threading
import traceback

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import entrain
import entrain.torch

TIMEOUT = datetime.timedelta(seconds=60)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = FLOATS + INTEGERS + COMPLEX + [torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32,
                                       torch.uint64]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]

rank = size = 0
ours = gloo = None  # process groups over the same ranks


def values(count, dtype, seed=0, of=None):
    """Returns numbers of one rank (default: this rank), small enough that integers do not overflow."""
    generator = torch.Generator().manual_seed(1000 * seed + (rank if of is None else of))
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(count, 2, generator=generator, dtype=torch.float64).view(torch.complex128)[:, 0].to(dtype)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 4, (count,), generator=generator).to(dtype)


def raw(tensor):
    """Returns the bytes of a tensor whose type has no comparison."""
    return tensor.contiguous().view(torch.uint8)


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(raw(a), raw(b)), (a, b)


def close(a, b):
    """Checks that the tensors are equal, except for the order in which floats are combined."""
    if not a.dtype.is_floating_point and not a.dtype.is_complex:
        return same(a, b)
    bound = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-6, torch.complex64: 1e-6}.get(a.dtype, 1e-14)
    scale = 1 + max((x.abs().max().item() for x in (a, b) if x.numel()), default=0)
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.numel() == 0 or (a - b).abs().max().item() <= size * bound * scale, (a, b)


def of_all(count, dtype, seed=0):
    return [values(count, dtype, seed, of) for of in range(size)]


def raises(kind, call, *texts):
    try:
        call()
    except kind as failure:
        assert all(text in str(failure) for text in texts), (texts, str(failure))
        return failure
    raise AssertionError(f"{kind.__name__} was not raised")


# ---- Collectives ------------------------------------------------------------------------------------------------------

def check_all_reduce():
    for dtype, op in itertools.product(FLOATS + INTEGERS, OPS):
        if dtype in FLOATS and op in ("BAND", "BOR", "BXOR"):
            continue
        mine = values(1001, dtype)
        dist.all_reduce(mine, getattr(dist.ReduceOp, op), group=ours)
        if dtype is torch.int16 or op == "AVG":  # not with gloo
            total = torch.stack(of_all(1001, dtype)).to(torch.float64 if dtype in FLOATS else torch.int64)
            expected = {"SUM": total.sum(0), "PRODUCT": total.prod(0), "MIN": total.amin(0), "MAX": total.amax(0),
                        "AVG": total.mean(0) if dtype in FLOATS else total.sum(0) // size}.get(op)
            if expected is None:
                continue
            close(mine, expected.to(dtype))
        else:
            theirs = values(1001, dtype)
            dist.all_reduce(theirs, getattr(dist.ReduceOp, op), group=gloo)
            close(mine, theirs)


def check_all_reduce_two_ranks_bit_for_bit():
    for dtype in FLOATS:
        mine, theirs = values(100003, dtype), values(100003, dtype)
        dist.all_reduce(mine, group=ours)
        dist.all_reduce(theirs, group=gloo)
        if size == 2:
            same(mine, theirs)
        copies = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(copies, mine, group=gloo)
        for copy in copies:  # whatever the order: the same bits everywhere
            same(copy, mine)


def check_all_reduce_of_bool():
    for op, expected in (("SUM", "any"), ("MAX", "any"), ("BOR", "any"), ("PRODUCT", "all"), ("MIN", "all"), ("BAND", "all")):
        mine = values(64, torch.bool)
        dist.all_reduce(mine, getattr(dist.ReduceOp, op), group=ours)
        same(mine, getattr(torch.stack(of_all(64, torch.bool)), expected)(0))
    mine = values(64, torch.bool)
    dist.all_reduce(mine, dist.ReduceOp.BXOR, group=ours)
    same(mine, torch.stack(of_all(64, torch.bool)).sum(0) % 2 == 1)
    raises(entrain.InvalidArgument, lambda: dist.all_reduce(mine, dist.ReduceOp.AVG, group=ours), "AVG", "torch.bool")


def check_all_reduce_of_complex():
    for dtype in COMPLEX:
        mine = values(65, dtype)
        dist.all_reduce(mine, group=ours)
        close(mine, torch.stack(of_all(65, dtype)).sum(0))
        mine = values(65, dtype).conj()
        ours.allreduce([mine]).wait()
        close(mine.resolve_conj(), torch.stack(of_all(65, dtype)).sum(0).conj().resolve_conj())


def check_all_reduce_premultiplied():
    op = dist._make_nccl_premul_sum(0.5 * (rank + 1))
    mine = values(65, torch.float32)
    dist.all_reduce(mine, op, group=ours)
    close(mine, sum(0.5 * (of + 1) * part for of, part in enumerate(of_all(65, torch.float32))))


def check_all_reduce_of_strided_and_empty():
    whole = torch.zeros(8, 6)
    part = whole.t()[1:4, ::2]
    part.copy_(torch.arange(12.0).view(3, 4) * (rank + 1))
    dist.all_reduce(part, group=ours)
    same(part, torch.arange(12.0).view(3, 4) * sum(range(1, size + 1)))
    assert whole.count_nonzero() == 11
    dist.all_reduce(torch.empty(0), group=ours)
    last = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(last, group=ours)
    assert (last == size).all()


def check_all_reduce_of_sparse():
    for dtype in (torch.float32, torch.float64):
        def mine():
            places = torch.randperm(20, generator=torch.Generator().manual_seed(rank))[: 3 + rank]
            return torch.sparse_coo_tensor(places[None], values((3 + rank) * 2, dtype).view(-1, 2), (20, 2))
        a, b = mine(), mine()
        work = dist.all_reduce(a, group=ours, async_op=True)
        work.wait()
        dist.all_reduce(b, group=gloo)
        close(a.to_dense(), b.to_dense())
        close(work.get_future().value()[0].to_dense(), b.to_dense())


def check_broadcast():
    for dtype, root in itertools.product(MOVED, range(size)):
        mine = values(33, dtype, root)
        ours.broadcast([mine], options(dist.BroadcastOptions, rootRank=root)).wait()
        same(mine, values(33, dtype, root, root))
    strided = torch.zeros(5, 7).t()
    if rank == size - 1:
        strided.copy_(torch.arange(35.0).view(7, 5))
    dist.broadcast(strided, size - 1, group=ours)
    same(strided.contiguous(), torch.arange(35.0).view(7, 5))


def options(kind, **fields):
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def check_reduce():
    for dtype, root in itertools.product(FLOATS + [torch.int32, torch.int64], range(size)):
        mine, theirs = values(129, dtype), values(129, dtype)
        dist.reduce(mine, root, group=ours)
        dist.reduce(theirs, root, group=gloo)
        if rank == root:
            close(mine, theirs)
        else:
            same(mine, values(129, dtype))


def check_all_gather():
    for dtype in MOVED:
        expected = of_all(17, dtype)
        apart = [torch.empty_like(expected[0]) for _ in range(size)]
        ours.allgather([apart], [values(17, dtype)]).wait()
        chunks = list(torch.empty(17 * size, dtype=dtype).split(17))
        ours.allgather([chunks], [values(17, dtype)]).wait()
        whole = torch.empty(17 * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, values(17, dtype), group=ours)
        for of in range(size):
            same(apart[of], expected[of])
            same(chunks[of], expected[of])
            same(whole[17 * of:][:17], expected[of])


def check_all_gather_of_uneven_and_strided():
    outputs = [torch.zeros(2, of + 1).t() for of in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1, 2), float(rank)), group=ours)
    for of, output in enumerate(outputs):
        assert (output == of).all()
    raises(entrain.InvalidArgument, lambda: dist.all_gather_into_tensor(torch.empty(size + 1), torch.empty(1), group=ours),
           f"{size + 1} elements")


def check_gather():
    for dtype, root in itertools.product(FLOATS + [torch.int64], range(size)):
        outputs = [torch.empty(9, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(values(9, dtype), outputs, root, group=ours)
        if rank == root:
            for output, expected in zip(outputs, of_all(9, dtype)):
                same(output, expected)


def check_scatter():
    for dtype, root in itertools.product(FLOATS + [torch.int64], range(size)):
        inputs = [values(9, dtype, 5, of) for of in range(size)] if rank == root else None
        output = torch.empty(9, dtype=dtype)
        dist.scatter(output, inputs, root, group=ours)
        same(output, values(9, dtype, 5))


def check_reduce_scatter():
    for dtype, op in itertools.product(FLOATS + [torch.int32, torch.int64], ("SUM", "AVG", "MAX")):
        expected = torch.stack(of_all(15 * size, dtype))
        expected = {"SUM": expected.sum(0), "AVG": expected.double().mean(0) if dtype in FLOATS else expected.sum(0) // size,
                    "MAX": expected.amax(0)}[op].to(dtype)[15 * rank:][:15]
        output, other = torch.empty(15, dtype=dtype), torch.empty(15, dtype=dtype)
        dist.reduce_scatter_tensor(output, values(15 * size, dtype), getattr(dist.ReduceOp, op), group=ours)
        close(output, expected)
        dist.reduce_scatter(other, [part.clone() for part in values(15 * size, dtype).split(15)], getattr(dist.ReduceOp, op),
                            group=ours)
        same(other, output)
    uneven = [torch.full((of + 1,), float(rank + 1)) for of in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, uneven, group=ours)
    assert (output == sum(range(1, size + 1))).all()


def check_all_to_all():
    for dtype in FLOATS + [torch.int64, torch.complex64]:
        output = torch.empty(3 * size, 2, dtype=dtype)
        dist.all_to_all_single(output, values(6 * size, dtype).view(-1, 2), group=ours)
        same(output, torch.cat([part.view(-1, 2)[3 * rank:][:3] for part in of_all(6 * size, dtype)]))
        sent = [torch.full((rank + of, 2), 10 * rank + of, dtype=dtype) for of in range(size)]
        received = [torch.empty(rank + of, 2, dtype=dtype) for of in range(size)]
        dist.all_to_all(received, sent, group=ours)
        flat = torch.empty(sum(rank + of for of in range(size)), 2, dtype=dtype)
        dist.all_to_all_single(flat, torch.cat(sent), [rank + of for of in range(size)], [rank + of for of in range(size)],
                               group=ours)
        same(flat, torch.cat(received))
        for of in range(size):
            assert (received[of] == 10 * of + rank).all()


def check_barrier():
    dist.barrier(group=ours)
    work = dist.barrier(group=ours, async_op=True)
    work.wait()
    ours.monitored_barrier(datetime.timedelta(seconds=30))


def check_a_data_loader_with_workers():
    loader = torch.utils.data.DataLoader(torch.arange(16.0), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for number, batch in enumerate(loader):  # the workers are there, forked from this process
            expected = batch.sum() * size
            work = dist.all_reduce(batch, group=ours, async_op=True)
            work.wait()
            assert batch.sum() == expected and batch[0] == 4 * number * size
    dist.barrier(group=ours)


# ---- Works, futures, order --------------------------------------------------------------------------------------------

def check_works():
    tensor = torch.full((1 << 18,), float(rank))
    works = [dist.all_reduce(tensor + i, group=ours, async_op=True) for i in range(8)]
    for i, work in enumerate(works):
        assert work.wait() is True
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert (work.result()[0] == sum(range(size)) + i * size).all()
    work = dist.all_reduce(torch.full((4, 4), 1.0).t()[1:], group=ours, async_op=True)
    while not work.is_completed():
        pass
    assert (work.result()[0] == size).all()  # copied back


def check_futures():
    done, chained = threading.Event(), []
    work = dist.all_reduce(torch.full((1 << 16,), 1.0), group=ours, async_op=True)

    def then(future):
        chained.append(future.value()[0][0].item())
        # A callback may start calls: communication hooks do.
        return dist.all_reduce(torch.full((3,), 2.0), group=ours, async_op=True).get_future()

    def waiting(future):  # and wait for what needs another callback
        return dist.all_reduce(future.value()[0], group=ours, async_op=True).get_future().wait()[0]

    first = dist.all_reduce(torch.full((1 << 16,), 1.0), group=ours, async_op=True)
    assert (first.get_future().then(waiting).wait() == size * size).all()
    inner = work.get_future().then(then).wait()
    inner.add_done_callback(lambda _: done.set())
    assert (inner.wait()[0] == 2 * size).all() and chained == [size] and done.wait(30)
    torch.futures.wait_all([dist.all_reduce(torch.ones(5), group=ours, async_op=True).get_future() for _ in range(5)])
    assert dist.barrier(group=ours, async_op=True).get_future().wait() == []


def check_dropped_works():
    tensors = [torch.full((100_000,), float(rank)) for _ in range(20)]
    for tensor in tensors:
        dist.all_reduce(tensor, group=ours, async_op=True)
    dist.barrier(group=ours)
    dist.all_reduce(torch.ones(1), group=ours)
    dist.all_reduce(tensors[0], group=ours)


def check_send_and_receive():
    peer = rank ^ 1
    for dtype in MOVED:
        out, got = values(31, dtype), torch.empty(31, dtype=dtype)
        if rank < peer:
            dist.send(out, peer, group=ours)
            dist.recv(got, peer, group=ours)
        else:
            dist.recv(got, peer, group=ours)
            dist.send(out, peer, group=ours)
        same(got, values(31, dtype, of=peer))
    # The two sides make the calls in different orders; the tag matches them.
    works = [dist.isend(torch.full((1000,), float(tag)), peer, group=ours, tag=tag) for tag in (3, 1, 2)]
    got = {tag: torch.zeros(10, 200).t()[:, 5:10] for tag in (1, 2, 3)}
    for tag in (1, 2, 3):
        work = dist.irecv(got[tag], peer, group=ours, tag=tag)
        work.wait()
        assert (got[tag] == tag).all()
    for work in works:
        work.wait()
    got = torch.zeros(3)
    work = dist.isend(torch.full((3,), float(rank)), peer, group=ours, tag=5)
    assert dist.recv(got, group=ours, tag=5) == peer and (got == peer).all()
    work.wait()


def check_a_receive_from_any_source_takes_what_comes():
    if rank > 0:
        for number in range(5):
            dist.send(torch.full((1000, 20), float(10 * rank + number)).t(), 0, group=ours)
        dist.recv(torch.empty(1), 0, group=ours)
        if rank == 1:
            for number in (1.0, 2.0):
                dist.send(torch.full((1,), number), 0, group=ours, tag=9)
        return
    numbers = {source: 0 for source in range(1, size)}
    for i in range(5 * (size - 1)):
        got = torch.zeros(1000, 20).t()
        if i % 2:
            source = dist.recv(got, group=ours)
        else:
            work = dist.irecv(got, group=ours)
            work.wait()
            source = work._source_rank()
        assert (got == 10 * source + numbers[source]).all(), i
        numbers[source] += 1
    assert set(numbers.values()) == {5}, numbers
    # A receive from one rank also waits behind a receive from any rank that waits.
    first, second = torch.zeros(1), torch.zeros(1)
    any_work, work = dist.irecv(first, group=ours, tag=9), dist.irecv(second, 1, group=ours, tag=9)
    assert not work.is_completed() and any_work._source_rank() == -1
    for peer in range(1, size):
        dist.send(torch.zeros(1), peer, group=ours)
    work.wait()
    any_work.wait()
    assert (any_work._source_rank(), first.item(), second.item()) == (1, 1, 2)


def check_batch_of_sends_and_receives():
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(70_000)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((70_000,), float(rank)), after, group=ours),
                                    dist.P2POp(dist.irecv, got, before, group=ours)])
    for work in works:
        work.wait()
    assert (got == before).all()


def check_coalescing():
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 50, 3000)]
    with dist._coalescing_manager(group=ours):
        for tensor in tensors:
            dist.all_reduce(tensor, group=ours)
    for tensor, n in zip(tensors, (1, 50, 3000)):
        assert (tensor == sum(range(size)) + n * size).all()
    outputs = [torch.empty(size * n) for n in (2, 7)]
    with dist._coalescing_manager(group=ours, async_ops=True) as manager:
        for output, n in zip(outputs, (2, 7)):
            dist.all_gather_into_tensor(output, torch.full((n,), float(rank)), group=ours)
    manager.wait()
    for output, n in zip(outputs, (2, 7)):
        same(output, torch.arange(float(size)).repeat_interleave(n))
    outputs = [torch.empty(n) for n in (2, 7)]
    with dist._coalescing_manager(group=ours):
        for output, n in zip(outputs, (2, 7)):
            dist.reduce_scatter_tensor(output, torch.ones(size * n), group=ours)
    assert all((output == size).all() for output in outputs)
    got = torch.empty(5)
    with dist._coalescing_manager(group=ours, device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((5,), float(rank)), rank ^ 1, group=ours)
        dist.irecv(got, rank ^ 1, group=ours)
    manager.wait()
    assert (got == rank ^ 1).all()
    lists = [[torch.empty(2), torch.empty(3, 2).t()] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((2, 3), float(rank))], group=ours)
    assert all((tensor == of).all() for of in range(size) for tensor in lists[of])


def check_objects():
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank}, group=ours)
    assert [len(value["text"]) for value in objects] == [1000 * of for of in range(size)]
    objects = [("root", 1), [2]] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, 1, group=ours)
    assert objects == [("root", 1), [2]]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 11, gathered, 0, group=ours)
    assert gathered == ([of * 11 for of in range(size)] if rank == 0 else None)
    mine = [None]
    dist.scatter_object_list(mine, [f"for {of}" for of in range(size)] if rank == 1 else None, 1, group=ours)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["sent"], 1, group=ours)
    elif rank == 1:
        got = [None]
        dist.recv_object_list(got, 0, group=ours)
        assert got == ["sent"]


# ---- Groups -----------------------------------------------------------------------------------------------------------

def check_group():
    assert ours.rank() == rank and ours.size() == size and dist.get_backend(ours) == "entrain"
    assert ours.comm.rank == rank and ours.comm.size == size
    assert ours.group_name == dist.distributed_c10d._world.pg_names[ours]
    before = ours._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1), group=ours)
    assert ours._get_sequence_number_for_group() == before + 1
    assert dist.distributed_c10d._get_object_coll_device(ours) == "cpu"


def check_new_group():
    last = dist.new_group([0, size - 1], backend="entrain", timeout=TIMEOUT)
    alone = [dist.new_group([of], backend="entrain", timeout=TIMEOUT) for of in range(size)][rank]
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=alone)
    assert (tensor == rank).all()
    if rank in (0, size - 1):
        dist.all_reduce(tensor, group=last)
        dist.broadcast(torch.ones(2), size - 1, group=last)
        assert (tensor == size - 1).all()
        dist.destroy_process_group(last)
        raises(entrain.FailedPrecondition, lambda: last.allreduce([tensor]), "closed")
    dist.destroy_process_group(alone)


def check_timeout_of_group():
    group = dist.new_group(backend="entrain", timeout=TIMEOUT)
    group.set_timeout(datetime.timedelta(milliseconds=200))
    if rank == 0:
        failure = raises(entrain.TimedOut, lambda: dist.all_reduce(torch.ones(3), group=group), "all_reduce")
        assert failure.record.operation == "all_reduce" and failure.record.deadline_ns == 200_000_000
        raises(entrain.TimedOut, lambda: dist.barrier(group=group))
    dist.barrier(group=gloo)
    dist.destroy_process_group(group)


def check_abort():
    group = dist.new_group(backend="entrain", timeout=TIMEOUT)
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        raises(entrain.TimedOut, lambda: work.wait(datetime.timedelta(milliseconds=10)), "wait of 0.01 s")
        future = work.get_future()
        assert not work.is_completed() and not future.done()
        group.abort()
        raises(entrain.Aborted, work.wait, "aborted")
        raises(RuntimeError, future.wait, "the process group was aborted")
    dist.barrier(group=gloo)
    raises(entrain.Aborted, lambda: dist.all_reduce(torch.ones(3), group=group))
    dist.destroy_process_group(group)


def check_mismatch():
    group = dist.new_group(backend="entrain", timeout=TIMEOUT)
    raises(entrain.Mismatch, lambda: dist.all_reduce(torch.ones(3 + rank), group=group), "all_reduce")
    dist.barrier(group=gloo)
    dist.destroy_process_group(group)


# ---- What is built on groups ------------------------------------------------------------------------------------------

def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 8))


def train(net, steps=5):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        inputs = values(16 * 32, torch.float32, 50 + step).view(16, 32)
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()
    return net


def check_data_parallel():
    def trained(group, **arguments):
        net = torch.nn.parallel.DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.01, **arguments)
        train(net)
        return list(net.module.parameters())

    for arguments in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        for a, b in zip(trained(ours, **arguments), trained(gloo, **arguments)):
            same(a, b) if size == 2 else close(a, b)


def check_data_parallel_with_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # Uses one bucket. PowerSGD starts its second all-reduce when the first is over. So with several buckets the order
    # of calls would depend on timing, with any back end that runs callbacks on a separate thread.
    def trained(group, register):
        net = torch.nn.parallel.DistributedDataParallel(model(), process_group=group)
        register(net, group)
        train(net)
        return list(net.module.parameters())

    def half(net, group):
        net.register_comm_hook(group, default_hooks.fp16_compress_hook)

    def power(net, group):
        torch.manual_seed(1)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    for register in (half, power):
        for a, b in zip(trained(ours, register), trained(gloo, register)):
            same(a, b) if size == 2 else torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def check_compiled_data_parallel():
    """torch.compile looks into the calls that DistributedDataParallel makes in its forward pass."""
    def run(compiled):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
        wrapped = torch.nn.parallel.DistributedDataParallel(net)  # sends the statistics in each forward pass
        run_it = torch.compile(wrapped, backend="aot_eager") if compiled else wrapped
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for _ in range(3):
            optimizer.zero_grad()
            run_it(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
        return torch.cat([tensor.detach().double().reshape(-1) for tensor in net.state_dict().values()])

    plain, compiled = run(False), run(True)
    assert torch.allclose(plain, compiled, atol=1e-6), (plain, compiled)


def mesh_of(group):
    return dist.device_mesh.DeviceMesh.from_group(group, "cpu")


def check_fully_shard():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def trained(group, ours_memory=False, **arguments):
        net = model()
        for layer in net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh_of(group), **arguments)
        fully_shard(net, mesh=mesh_of(group), **arguments)
        if ours_memory:
            net.set_allocate_memory_from_process_group_for_comm(True)
        train(net)
        return [parameter.full_tensor().detach() for parameter in net.parameters()]

    plain = trained(gloo)
    for a, b in zip(trained(ours), plain):
        same(a, b) if size == 2 else close(a, b)
    for a, b in zip(trained(ours, True), plain):
        same(a, b) if size == 2 else close(a, b)
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
              "reshard_after_forward": False}
    for a, b in zip(trained(ours, **policy), trained(gloo, **policy)):
        same(a, b) if size == 2 else close(a, b)


def check_hybrid_shard_and_mesh():
    if size < 4:
        return
    from torch.distributed.fsdp import fully_shard
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    assert all(isinstance(mesh.get_group(name), entrain.torch.ProcessGroup) for name in mesh.mesh_dim_names)
    net = model()
    fully_shard(net, mesh=mesh)
    train(net)
    other = torch.nn.parallel.DistributedDataParallel(model(), process_group=gloo)
    train(other)
    for a, b in zip(net.parameters(), other.module.parameters()):
        torch.testing.assert_close(a.full_tensor(), b, rtol=1e-4, atol=1e-5)


def check_dtensor():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    mesh = mesh_of(ours)
    whole = torch.arange(10.0 * 6).view(10, 6)
    placed = distribute_tensor(whole, mesh, [Shard(0)])
    for placement in (Replicate(), Shard(1), Shard(0), Replicate()):
        placed = placed.redistribute(mesh, [placement])
        same(placed.full_tensor(), whole)
    partial = DTensor.from_local(whole * (rank + 1), mesh, [Partial()], run_check=False)
    total = whole * sum(range(1, size + 1))
    same(partial.redistribute(mesh, [Replicate()]).to_local(), total)
    same(partial.redistribute(mesh, [Shard(0)]).full_tensor(), total)
    same(distribute_tensor(whole, mesh, [Replicate()]).to_local(), whole)
    product = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)])
    close(product.full_tensor(), whole @ whole.t())


def check_functional_collectives():
    one = torch.full((4, 2), float(rank))
    total = float(sum(range(size)))
    assert (functional.all_reduce(one, "sum", ours) == total).all()
    assert (functional.all_reduce(one, "avg", ours) == total / size).all()
    same(functional.all_gather_tensor(one, 0, ours).clone(), torch.arange(float(size)).repeat_interleave(8).view(-1, 2))
    assert (functional.reduce_scatter_tensor(torch.ones(4 * size, 2), "sum", 0, ours) == size).all()
    assert (functional.broadcast(one, 1, ours) == 1).all()
    same(functional.all_to_all_single(torch.full((size,), float(rank)), None, None, ours).clone(), torch.arange(float(size)))
    assert all((tensor == total).all() for tensor in functional.all_reduce_coalesced([one, one.clone()], "sum", ours))


def check_autograd_collectives():
    import torch.distributed.nn
    leaf = torch.full((3,), float(rank + 1), requires_grad=True)
    (torch.distributed.nn.all_reduce(leaf, group=ours) * (rank + 1)).sum().backward()
    assert (leaf.grad == sum(range(1, size + 1))).all()
    leaf.grad = None
    gathered = torch.distributed.nn.all_gather(leaf, group=ours)
    sum(part * (of + 1) for of, part in enumerate(gathered)).sum().backward()
    assert (leaf.grad == size * (rank + 1)).all()


def check_checkpoint():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard
    folder = os.path.join(sys.argv[3], "checkpoint")
    net = model()
    fully_shard(net, mesh=mesh_of(ours))
    before = [parameter.full_tensor().clone() for parameter in net.parameters()]
    checkpoint.save({"net": net.state_dict()}, checkpoint_id=folder, process_group=ours)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    state = {"net": net.state_dict()}
    checkpoint.load(state, checkpoint_id=folder, process_group=ours)
    net.load_state_dict(state["net"])
    for a, b in zip(net.parameters(), before):
        same(a.full_tensor(), b)


# ---- The program ------------------------------------------------------------------------------------------------------

def main():
    global rank, size, ours, gloo
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), size)
    store.set_timeout(TIMEOUT)
    dist.init_process_group("entrain", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    ours = dist.group.WORLD
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    checks = [(name, body) for name, body in globals().items() if name.startswith("check_") and inspect.isfunction(body)]
    with open(os.path.join(folder, f"rank-{rank}"), "w", buffering=1) as out:
        for name, body in checks:
            if sys.argv[4:] and name not in sys.argv[4:]:
                continue
            text = ""
            try:
                body()
            except Exception:
                text = traceback.format_exc()
            out.write(json.dumps([name, text]) + "\n")
            store.set(f"{name}/{rank}", "bad" if text else "good")
            if any(store.get(f"{name}/{of}") != b"good" for of in range(size)):
                sys.exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
