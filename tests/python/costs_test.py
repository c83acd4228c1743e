"""What the pages of docs/learn say that the methods cost, beside what the library counts: two replicas of two ranks each."""
import pathlib
import sys

import numpy as np
import pytest
from conftest import ranks

import entrain

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/learn"))
import costs  # noqa: E402  (the path comes first)

SHARDS = [81920, 40960]  # elements of a rank's shard of each layer; whole chunks and blocks for two replicas
M, N, H = 2, 2, 8


def counted(comm, method, **options):
    """Returns the bytes that this rank sends to other replicas, and within its own, in one interval, or (A-EDiT) in one exchange."""
    with entrain.Mesh(comm, shard=M) as mesh, entrain.Shard(mesh, [M * count for count in SHARDS]) as model:
        params = np.zeros(model.slab_count, np.float32)
        model.bind(params, np.zeros_like(params))
        edit = entrain.EDiT(mesh, model, preset=method, **options)
        seen = []
        for step in range(4 * H):
            edit.begin_forward()
            for layer in range(len(SHARDS)):
                edit.wait_layer(layer)
            if step in (2 * H + 3, 3 * H + 3):  # no exchange is under way, also not one that is merged two steps later
                info = edit.info()
                seen.append((info.bytes_sent_sync, info.bytes_sent_shard, info.syncs))
            noise = np.random.default_rng([comm.rank, step]).random(params.size, np.float32)
            params += 0.001 * noise
            params[3::64] += 1  # the same elements on all replicas are those of largest magnitude
            edit.end_step()
        edit.leave()
        edit.close()
        times = seen[1][2] - seen[0][2] if method == "a-edit" else 1
        return [(after - before) / times for before, after in zip(*seen)][:2]


@pytest.mark.parametrize("method", [name for name in costs.WAYS if name not in ("a-edit", "decoupled-diloco")])
def test_bytes_of_an_interval(method):
    options = {"overlap_steps": 2} if method == "co2" else {}
    across = costs.exchange_bytes(method, SHARDS, N)
    for sent, within in ranks(M * N, lambda comm: counted(comm, method, local_sgd_sync_interval=H, **options)):
        assert sent == across
        if costs.WAYS[method].fragments == 1:
            assert within == costs.within_bytes(method, len(SHARDS), M)


def test_bytes_of_an_exchange_by_time():
    def body(comm):
        return counted(comm, "a-edit", local_sgd_sync_time=1e-6, min_total_global_steps=1)

    for sent, _ in ranks(M * N, body):
        assert sent == costs.exchange_bytes("a-edit", SHARDS, N)


def test_bytes_of_rounds_that_no_replica_waits_for():
    replicas = M * N  # of one rank, because the ranks of a replica must make equally many steps
    one, other = (costs.exchange_bytes("decoupled-diloco", [count], replicas) for count in SHARDS)  # a layer is a fragment
    last = costs.exchange_bytes("diloco", SHARDS, replicas)  # the exchange at the end has both

    def body(comm):
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, SHARDS) as model:
            params = np.zeros(model.slab_count, np.float32)
            model.bind(params, np.zeros_like(params))
            edit = entrain.EDiT(mesh, model, preset="decoupled-diloco", local_sgd_sync_interval=2)
            while edit.info().syncs < 4:
                edit.begin_forward()
                for layer in range(len(SHARDS)):
                    edit.wait_layer(layer)
                params += 0.001
                edit.end_step()
            edit.leave()
            info = edit.info()
            edit.close()
            idle = info.rendezvous - info.syncs  # a rendezvous of a fragment for which no replica had a change
            return info.bytes_sent_sync - idle * (replicas - 1) * 72, info.syncs

    for sent, rounds in ranks(replicas, body):
        assert rounds > 4 and sent in [x * one + (rounds - x - 1) * other + last for x in range(rounds)]


def test_acco():
    count = sum(SHARDS)

    def body(comm):
        params = np.zeros(count, np.float32)
        with entrain.ACCO(comm, params, entrain.Optim("adamw"), lr=0.001, limit=3) as acco:
            while not acco.info().finished:
                acco.gradients[:] += 1
                acco.add(1, 1)
                acco.install()
            info = acco.info()
            assert info.commits == 3 and info.rounds == 6
            return info.bytes_sent / info.rounds, info.bytes_held

    for sent, held in ranks(M * N, body):
        assert 0 <= sent - costs.acco_round(count, M * N, 4) < 200  # counts of micro-batches
        assert 0 <= held - costs.acco_held(count, M * N) <= 1 << 16  # pieces of a step
