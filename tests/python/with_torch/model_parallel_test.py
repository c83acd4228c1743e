"""Compares EDiT around a model that is split by tensor and pipeline stage with EDiT around the whole model. Ranks are
threads."""
import threading

import pytest
from conftest import ranks

pytest.importorskip("torch")

PROGRAM = """
import pytest
import torch
from torch import nn
import entrain, entrain.torch

entrain.torch.EDiT._preset = entrain.torch.AEDiT._preset = "published"  # presets_test.py tries the presets

torch.set_num_threads(1)
WIDTH, INNER, BLOCKS, STAGES, PARTS = 6, 8, 2, 2, 2
mesh = entrain.Mesh(comm, tensor=PARTS, pipeline=STAGES, sync=2)
tensor, pipe, sync = (mesh.comm(axis) for axis in ("tensor", "pipeline", "sync"))
part, stage, replica = tensor.rank, pipe.rank, sync.rank


class Enter(torch.autograd.Function):  # what follows is computed in parts
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return tensor.all_reduce(grad.contiguous())


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return tensor.all_reduce(x.contiguous())

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self, inner, split):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.column, self.row = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.enter, self.leave = (Enter.apply, Leave.apply) if split else (lambda x: x, lambda x: x)

    def forward(self, x):
        return x + self.leave(self.row(torch.tanh(self.column(self.enter(self.norm(x)))))) + self.bias


class Stage(nn.Module):
    def __init__(self, inner, split):
        super().__init__()
        self.edge = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(inner, split) for _ in range(BLOCKS)])

    def forward(self, x):
        x = self.edge(x)
        for block in self.blocks:
            x = block(x)
        return x


with seeding:
    torch.manual_seed(0)
    whole = nn.Sequential(*[Stage(INNER, False) for _ in range(STAGES)])
    mine = Stage(INNER // PARTS, True)


def part_of(name, value):
    dim = {"column.weight": 0, "column.bias": 0, "row.weight": 1}.get(name.split(".", 2)[-1])
    return value if dim is None else value.chunk(PARTS, dim)[part]


def apart(model, of=lambda p: p):
    # This rank's part of the whole model, by name.
    return {name: part_of(name, of(param)) for name, param in model[stage].named_parameters()}


mine.load_state_dict(apart(whole))
replicated = [param for name, param in mine.named_parameters() if "column" not in name and "row" not in name]
before = apart(whole, lambda p: p.detach().clone())


def batch(step, micro):
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * replica + 10 * step + micro))
    return x, x.flip(1) * x


MICRO = 2


def train_mine(edit, optimizer, step):
    optimizer.zero_grad()
    edit.begin_step()
    for micro in range(MICRO):
        x, y = batch(step, micro)
        if stage == 0:
            out = mine(x)
            pipe.send(out.detach(), 1)
            out.backward(pipe.recv(torch.empty_like(out), 1))
        else:
            x = pipe.recv(x, 0).requires_grad_()
            (nn.functional.mse_loss(mine(x), y) / MICRO).backward()
            pipe.send(x.grad, 0)
    norms = edit.clip_grad_norm_(1e9, float("inf")), edit.clip_grad_norm_(0.3)
    optimizer.step()
    return norms


def make(model, **more):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=3, local_sgd_warmup_steps=2, outer_optimizer="sgd",
                              outer_nesterov=True, gradient_accumulation_steps=MICRO, **more), optimizer


"""
SEEDING = threading.Lock()


def run(code, directory=""):
    program = compile(PROGRAM + code, "program", "exec")
    ranks(8, lambda comm: exec(program, {"comm": comm, "seeding": SEEDING, "directory": str(directory)}), timeout=60.0)


def test_split_by_tensor_and_stage_it_is_what_a_whole_model_does(tmp_path):
    run("""
edit, optimizer = make(mine, comm=comm, mesh=mesh, replicated=replicated)
assert edit.layer_names == ["the model, replicated", "blocks.0", "blocks.0, replicated", "blocks.1", "blocks.1, replicated"]
assert (edit.replicas, edit.replica) == (2, replica)
reference, reference_optimizer = make(whole, comm=comm.split(part + PARTS * stage))
for step in range(12):
    norms = train_mine(edit, optimizer, step)
    reference_optimizer.zero_grad()
    for micro in range(MICRO):
        x, y = batch(step, micro)
        (nn.functional.mse_loss(whole(x), y) / MICRO).backward()
    expected = reference.clip_grad_norm_(1e9, float("inf")), reference.clip_grad_norm_(0.3)
    torch.testing.assert_close(norms, expected, rtol=1e-4, atol=1e-6)
    assert norms[1] > 0.3
    reference_optimizer.step()
    torch.testing.assert_close(dict(mine.named_parameters()), apart(whole), rtol=1e-4, atol=1e-5)
edit.synchronize()
reference.synchronize()
assert edit.info.syncs == reference.info.syncs == 4
torch.testing.assert_close(dict(mine.named_parameters()), apart(whole), rtol=1e-4, atol=1e-5)
assert all(not torch.equal(value, before[name]) for name, value in mine.named_parameters())
flat = torch.cat([p.detach().reshape(-1) for p in mine.parameters()])
rows = sync.all_gather(flat)
assert torch.equal(rows[0], rows[1])
alike = torch.cat([p.detach().reshape(-1) for p in replicated])
rows = tensor.all_gather(alike)
assert torch.equal(rows[0], rows[1])
edit.save(directory, "all", exact=False)
with torch.no_grad():
    for param in mine.parameters():
        param.zero_()
edit.load(directory, "all", exact=False)
assert torch.equal(torch.cat([p.detach().reshape(-1) for p in mine.parameters()]), flat)
edit.close()
reference.close()
mesh.comm("sync")  # the mesh is the caller's
""", tmp_path)


def test_layers_are_judged_over_all_parts_and_stages():
    run("""
edit, optimizer = make(mine, comm=comm, mesh=mesh, replicated=replicated, reducer="linear", pseudo_gradnorm_reduce=True,
                       clip_pseudo_grad=0.01)
for step in range(5):
    train_mine(edit, optimizer, step)
layers = edit._layers
anchor = torch.empty(sum(layer.host.numel() for layer in layers))
edit.engine.anchor(anchor)
squares = torch.zeros(len(layers), dtype=torch.float64)
for index, (layer, old) in enumerate(zip(layers, anchor.split([layer.host.numel() for layer in layers]))):
    squares[index] = (old - layer.flats[0]).double().square().sum() / (PARTS if layer.replicated else 1)
norms = sync.all_gather(mesh.comm("model").all_reduce(squares).sqrt())
assert (norms > 0.01).all()
edit.begin_step()
mine(torch.zeros(1, WIDTH))
for index in range(len(layers)):
    report = edit.engine.layer_report(index)
    torch.testing.assert_close(torch.tensor(report[0]).double(), norms[:, index], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(torch.tensor(report[1]).double(), torch.softmax(-norms[:, index], 0), rtol=1e-4, atol=1e-7)
""")


def test_grad_scaler_skips_a_step_on_all_ranks_of_a_replica():
    run("""
optimizer = torch.optim.SGD(mine.parameters(), lr=0.02)
edit = entrain.torch.EDiT(mine, optimizer, comm=comm, mesh=mesh, replicated=replicated, local_sgd_sync_interval=2,
                          outer_optimizer="sgd")
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for step in range(6):
    optimizer.zero_grad()
    edit.begin_step()
    x, y = batch(step, 0)
    scaler.scale(nn.functional.mse_loss(mine(x), y)).backward()
    if step in (3, 5) and comm.rank == 6:
        mine.blocks[1].row.weight.grad[2, 1] = float("inf")
    edit.spread_overflow_()
    scaler.step(optimizer)
    scaler.update()
edit.synchronize()
assert (edit.info.steps, edit.info.syncs) == (6, 3), edit.info
assert scaler.get_scale() == (8.0, 2.0)[replica], (comm.rank, scaler.get_scale())
rows = sync.all_gather(torch.cat([p.detach().reshape(-1) for p in mine.parameters()]))
assert torch.equal(rows[0], rows[1]) and torch.isfinite(rows).all()
""")


def test_what_does_not_fit_is_refused():
    run("""
def refused(match, error=entrain.InvalidArgument, **options):
    with pytest.raises(error, match=match):
        make(mine, **options)


refused("a mesh without comm", mesh=mesh)
refused("comm belongs to a mesh and ends with it", comm=mesh.comm("model"))
refused("1 of the 1 replicated parameters are none of the model's", comm=comm, mesh=mesh, replicated=[nn.Parameter(torch.ones(1))])
refused("replicated is given, and no mesh with more than one rank along .tensor.", comm=comm, replicated=replicated)
refused("mesh has 2 ranks along .shard., and fully_shard has cut the model for 1", comm=comm, mesh=entrain.Mesh(comm, shard=2))
refused("mesh has 2 ranks along .context.; expected 1", comm=comm, mesh=entrain.Mesh(comm, context=2))
edit, optimizer = make(mine, comm=comm, mesh=mesh, replicated=replicated)
assert edit.begin_step() == edit.begin_step()  # the second one changes nothing
""")
