"""Compares EDiT around a model that fully_shard has sharded (two replicas of two processes each) with plain modules."""
import pytest
from forks import script

pytest.importorskip("torch")

PROGRAM = """
import copy, datetime, sys
import torch
from torch import distributed as dist, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import entrain, entrain.torch

entrain.torch.EDiT._preset = entrain.torch.AEDiT._preset = "published"  # presets_test.py tries the presets

torch.set_num_threads(1)
comm = entrain.Comm.from_env(timeout=60)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 4), rank=comm.rank, world_size=4,
                        timeout=datetime.timedelta(seconds=60))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        # Two ranks share 7 rows as 4 and 3, 2 as 1 and 1, and 1 as 1 and none.
        self.embed = nn.Linear(6, 7)
        self.gain = nn.Parameter(torch.ones(1))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(7, 2)

    def forward(self, x):
        x = self.gain * self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def build(seed=0):
    torch.manual_seed(seed)
    return Model()


def loss_of(model, rank, step):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * rank + step))
    return nn.functional.mse_loss(model(x), torch.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3]], 1))


OPTIONS = dict(local_sgd_sync_interval=3, local_sgd_warmup_steps=2, reducer="linear", pseudo_gradnorm_reduce=True,
               clip_pseudo_grad=0.05, outer_optimizer="sgd", outer_nesterov=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sync", "shard"))
"""


def test_it_is_what_plain_modules_do(tmp_path):
    script(PROGRAM + """
def whole(model):
    return torch.cat([p.full_tensor().reshape(-1) for p in model.parameters()])


# The shards of replica n train on the batches of ranks 2 n and 2 n + 1; a plain replica takes both.
plain = build()
plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02)
twins = comm.split(comm.rank % 2)
plain_edit = entrain.torch.EDiT(plain, plain_optimizer, comm=twins, **OPTIONS)
model = build(comm.rank // 2)
for block in model.blocks:
    fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, **OPTIONS)
assert edit.layer_names == plain_edit.layer_names == ["the model", "blocks.0", "blocks.1"]
base = 2 * (comm.rank // 2)
for step in range(12):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    norm = edit.clip_grad_norm_(0.5)
    optimizer.step()
    plain_optimizer.zero_grad()
    ((loss_of(plain, base, step) + loss_of(plain, base + 1, step)) / 2).backward()
    torch.testing.assert_close(plain_edit.clip_grad_norm_(0.5), norm, rtol=1e-3, atol=1e-5)
    plain_optimizer.step()
    if step == 5:
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    if step % 2:  # the root stays gathered after this, and an exchange follows
        with torch.no_grad():
            loss_of(model, comm.rank, step)
        with edit.consensus(), plain_edit.consensus(), torch.no_grad():
            torch.testing.assert_close(loss_of(model, 7, 7), loss_of(plain, 7, 7), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(whole(model), torch.cat([p.detach().reshape(-1) for p in plain.parameters()]), rtol=1e-3, atol=1e-4)
edit.synchronize()
plain_edit.synchronize()
rows = comm.all_gather(whole(model))
assert all(torch.equal(row, rows[0]) for row in rows)
torch.testing.assert_close(rows[0], torch.cat([p.detach().reshape(-1) for p in plain.parameters()]), rtol=1e-3, atol=1e-4)
assert edit.info.syncs == plain_edit.info.syncs >= 3
for layer in range(3):
    for mine, theirs in zip(edit.engine.layer_report(layer)[:2], plain_edit.engine.layer_report(layer)[:2]):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=1e-3, atol=1e-6)

# A portable checkpoint does not depend on how the model was sharded.
edit.save(sys.argv[1] + ".d", exact=False)
other = build(3)
with entrain.torch.EDiT(other, torch.optim.SGD(other.parameters(), lr=0.1), comm=twins, **OPTIONS) as unsharded:
    unsharded.load(sys.argv[1] + ".d", exact=False)
assert torch.equal(torch.cat([p.detach().reshape(-1) for p in other.parameters()]), rows[0])

state, moments = edit.state_dict(), copy.deepcopy(optimizer.state_dict())


def go():
    found = []
    for step in range(12, 18):
        optimizer.zero_grad()
        loss = loss_of(model, comm.rank, step)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


first = go()
edit.load_state_dict(state)
optimizer.load_state_dict(moments)
assert go() == first
dist.destroy_process_group()
""", tmp_path / "store", size=4, timeout=200)


BITS = """
def train(model, among, ranks, options, clip):
    # A step's gradient is the mean over the batches of `ranks`.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    edit = entrain.torch.EDiT(model, optimizer, comm=among, gradient_accumulation_steps=len(ranks), **options)
    for step in range(12):
        optimizer.zero_grad()
        for rank in ranks:
            (loss_of(model, rank, step) / len(ranks)).backward()
        if clip:
            edit.clip_grad_norm_(0.5)
        optimizer.step()
    edit.synchronize()
    assert edit.info.syncs >= 4, edit.info
    edit.close()
    return torch.cat([getattr(p, "full_tensor", p.detach)().detach().reshape(-1) for p in model.parameters()])


def sharded(mesh):
    model = build()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def same(one, other):
    assert torch.equal(one.view(torch.int32), other.view(torch.int32)), (one - other).abs().max()


"""


def test_the_bits_are_those_of_plain_modules(tmp_path):
    # Warm-up sums gradients over replicas. The groups of parameters differ between the two models, and the order must
    # not depend on them.
    script(PROGRAM + BITS + """
# Replicas of one rank: always.
alone = init_device_mesh("cpu", (4, 1), mesh_dim_names=("sync", "shard"))["shard"]
same(train(build(), comm, [comm.rank], OPTIONS, clip=True), train(sharded(alone), comm, [comm.rank], OPTIONS, clip=True))

# Of two ranks, a plain replica taking the batches of both: without norms, which are sums in another order.
twins = comm.split(comm.rank % 2)
options = dict(local_sgd_sync_interval=3, local_sgd_warmup_steps=2, outer_optimizer="sgd", outer_nesterov=True)
base = 2 * (comm.rank // 2)
same(train(build(), twins, [base, base + 1], options, clip=False),
     train(sharded(mesh["shard"]), comm, [comm.rank], options, clip=False))
dist.destroy_process_group()
""", tmp_path / "store", size=4, timeout=200, environment={"ENTRAIN_DETERMINISM": "rank_order"})


def test_what_cannot_be_bound_is_refused(tmp_path):
    script(PROGRAM + """
import pytest


def refused(match, mesh):
    model = build()
    fully_shard(model, mesh=mesh)
    with pytest.raises(entrain.InvalidArgument, match=match):
        entrain.torch.EDiT(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm)


from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

refused("the parameter gain is on a mesh of 2 dimensions", mesh)
# Of tensor parallelism, which cuts along dimension 0 too.
model = build()
parallelize_module(model, mesh["shard"], {"blocks.0.0": ColwiseParallel()})
for layers in (None, []):
    with pytest.raises(entrain.InvalidArgument, match="the parameter blocks.0.0.weight is a DTensor that fully_shard has not made"):
        entrain.torch.EDiT(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, layers=layers)
refused("fully_shard's mesh has the ranks .* and the replica of this rank in `comm` consists of", mesh["sync"])
dist.destroy_process_group()
""", tmp_path / "store", size=4, timeout=200)


def test_mixed_precision_of_fully_shard(tmp_path):
    script(PROGRAM + """
from torch.distributed.fsdp import MixedPrecisionPolicy


class Half(nn.Module):  # a plain module that computes as fully_shard's policy says
    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        halves = {name: param.bfloat16() for name, param in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, halves, (x.bfloat16(),))


def train(model, among, ranks, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    with entrain.torch.EDiT(model, optimizer, comm=among, local_sgd_sync_interval=3, local_sgd_warmup_steps=2, outer_optimizer="sgd",
                            outer_nesterov=True, gradient_accumulation_steps=len(ranks), **options) as edit:
        for step in range(9):
            optimizer.zero_grad()
            for rank in ranks:
                (loss_of(model, rank, step) / len(ranks)).backward()
            optimizer.step()
        edit.synchronize()
        assert edit.info.syncs == 3, edit.info
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return torch.cat([getattr(p, "full_tensor", p.detach)().detach().reshape(-1) for p in model.parameters()])


policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = build()
for block in model.blocks:
    fully_shard(block, mesh=mesh["shard"], mp_policy=policy)
fully_shard(model, mesh=mesh["shard"], mp_policy=policy)
seen = []
model.head.register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, out.dtype)))
start = torch.cat([p.full_tensor().reshape(-1) for p in model.parameters()])
base = 2 * (comm.rank // 2)
whole = train(model, comm, [comm.rank])
assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
expected = train(Half(), comm.split(comm.rank % 2), [base, base + 1], layers=[])
assert (whole - expected).abs().max() < 0.1 * (expected - start).abs().max(), (whole - expected).abs().max()
rows = comm.all_gather(whole)
assert all(torch.equal(row, rows[0]) for row in rows)
dist.destroy_process_group()
""", tmp_path / "store", size=4, timeout=200)


def test_grad_scaler_skips_on_all_shards_of_one_replica(tmp_path):
    script(PROGRAM + """
model = build()
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for clear in ("first", "last"):
    for step in range(4):
        if clear == "first":
            optimizer.zero_grad()
        loss = loss_of(model, comm.rank, step)
        if clear == "last":
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step == 3 and comm.rank == 3:
            model.embed.weight.grad.to_local().fill_(float("inf"))  # of this shard alone
        scaler.step(optimizer)
        scaler.update()
edit.synchronize()
assert (edit.info.steps, edit.info.syncs) == (8, 4), edit.info
assert scaler.get_scale() == (8.0, 2.0)[edit.replica], scaler.get_scale()
rows = comm.all_gather(torch.cat([p.full_tensor().reshape(-1) for p in model.parameters()]))
assert torch.isfinite(rows).all() and all(torch.equal(row, rows[0]) for row in rows)
dist.destroy_process_group()
""", tmp_path / "store", size=4, timeout=200)


def test_replicas_of_several_shards_that_exchange_by_time(tmp_path):
    script(PROGRAM + """
import time

model = build(comm.rank // 2)
for block in model.blocks:
    fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
edit = entrain.torch.AEDiT(model, optimizer, comm=comm, local_sgd_sync_time=0.2, min_total_global_steps=2, local_sgd_warmup_steps=2,
                           outer_optimizer="sgd", outer_nesterov=True, reducer="linear", use_step_weight=True)


def error():
    with edit.consensus(), torch.no_grad():
        return loss_of(model, 50, 0).item()


before, saved, steps = error(), None, 0
while edit.info.syncs < 6 and steps < 4000:
    began = time.process_time()
    if edit.info.syncs == 2 and saved is None and comm.rank == 3:
        edit.wish_checkpoint()
    edit.begin_step()
    if edit.checkpoint_due:
        state = edit.state_dict()
        saved = edit.info.steps
    optimizer.zero_grad()
    loss_of(model, comm.rank, steps % 50).backward()
    optimizer.step()
    edit.record(16)
    steps += 1
    # The second replica is slower by a factor, because the time of a step depends on what else the machine does. Time of the
    # processor: a rank also waits for the other rank of its replica, which would sleep longer for that.
    time.sleep(edit.replica * max(0.02, 6 * (time.process_time() - began)))
edit.leave()
after, info = error(), edit.info
rows = comm.all_gather(torch.cat([p.full_tensor().reshape(-1) for p in model.parameters()]))
assert all(torch.equal(row, rows[0]) for row in rows)
found = comm.all_gather(torch.tensor([info.steps, info.syncs, saved or -1])).tolist()
assert found[0] == found[1] and found[2] == found[3] and found[0][1] == found[2][1] >= 6, found
assert found[0][0] > found[2][0] and min(row[2] for row in found) > 0, found  # the first replica does not sleep
assert after < before, (before, after)
edit.load_state_dict(state)
assert edit.info.steps == saved
dist.destroy_process_group()
""", tmp_path / "store", size=4, timeout=200)
