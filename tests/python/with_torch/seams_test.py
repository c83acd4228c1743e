"""EDiT at its seams with other people's code: what trains is what is exchanged, or it is refused by name. Ranks are threads, or
processes where torch.distributed takes part."""
import pytest
from edit_test import MODEL, run
from forks import script

pytest.importorskip("torch")

# `reference` trains all replicas on every rank. EDiT averages the parameters at each exchange.
LOOP = """
import contextlib, warnings
import pytest

H, T = 3, 8


def make(m):
    return torch.optim.AdamW(m.parameters(), lr=0.02)


def reference(micro=lambda step: 1, warm=0, forward=lambda m, x: m(x)):
    replicas = [build() for _ in range(comm.size)]
    optimizers = [make(m) for m in replicas]
    for step in range(T + 1):
        if step > warm and (step - warm) % H == 0 or step == T:
            for ps in zip(*(m.parameters() for m in replicas)):
                mean = sum(p.detach() for p in ps) / comm.size
                for p in ps:
                    p.data.copy_(mean)
        if step == T:
            return replicas[0]
        for rank, (m, optimizer) in enumerate(zip(replicas, optimizers)):
            optimizer.zero_grad()
            for number in range(micro(step)):
                for r in range(comm.size) if step < warm else [rank]:
                    x, y = batch(r, 10 * step + number)
                    (nn.functional.mse_loss(forward(m, x), y) / (comm.size if step < warm else 1)).backward()
            optimizer.step()


def train(m, optimizer, micro=lambda step: 1, forward=lambda m, x: m(x), before=lambda: None):
    for step in range(T):
        before()
        optimizer.zero_grad()
        for number in range(micro(step)):
            x, y = batch(comm.rank, 10 * step + number)
            nn.functional.mse_loss(forward(m, x), y).backward()
        optimizer.step()


def body(m, x):  # what the forward pass does, by its parts
    x = m.embed(x)
    for block in m.blocks:
        x = x + block(x)
    return m.head(x)


def close(m, other):
    torch.testing.assert_close(flat(m), flat(other), rtol=1e-3, atol=1e-4)
"""


@pytest.mark.parametrize("announced", [1, 3])
@pytest.mark.parametrize("warm", [0, 4])
def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(announced, warm):
    run(LOOP + """
micro = lambda step: 2 if step % 3 == 2 else 3
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=warm,
                          gradient_accumulation_steps=announced)
train(model, optimizer, micro)
edit.synchronize()
assert edit.info.steps == T, edit.info
close(model, reference(micro, warm))
same_everywhere(comm, flat(model))
""", 2, announced=announced, warm=warm)


def test_a_closure_without_the_forward_pass_sees_the_exchanged_parameters():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H)
root = [layer.module is model for layer in edit._layers].index(True)
for step in range(T):
    def closure():
        assert not edit._pending[root], f"step {step}: embed and head are still being exchanged"
        optimizer.zero_grad()
        x, y = batch(comm.rank, 10 * step)
        loss = nn.functional.mse_loss(body(model, x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
edit.synchronize()
assert edit.info.steps == T and edit.info.syncs == 3
close(model, reference(forward=body))
same_everywhere(comm, flat(model))
""", 2)


def test_a_layer_whose_own_forward_pass_does_not_run_waits_before_the_models():
    run(LOOP + """
class Direct(nn.Module):  # uses a block's parts, a list's members and a module's parameters
    def __init__(self, twin):
        super().__init__()
        self.embed, self.head = twin.embed, twin.head
        self.blocks, self.more = nn.ModuleList(twin.blocks[:2]), nn.ModuleList(twin.blocks[2:])

    def see(self, module):
        layer = next(index for index, layer in enumerate(edit._layers) if layer.module is module)
        assert not edit._pending[layer], f"{edit.layer_names[layer]} is used while it is being exchanged"

    def forward(self, x):
        x = self.embed(x)
        x = x + self.blocks[0](x)
        self.see(self.blocks[1])
        x = x + self.blocks[1][1](self.blocks[1][0](x))
        self.see(self.more)
        x = x + self.more[0](x)
        self.see(self.head)
        return nn.functional.linear(x, self.head.weight, self.head.bias)

model = Direct(build())
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, layers=[*model.blocks, model.more, model.head])
for step in range(T):
    optimizer.zero_grad()
    loss_of(model, comm.rank, 10 * step).backward()
    optimizer.step()
edit.synchronize()
assert [edit.layer_names[index] for index, early in enumerate(edit._early) if not early] == ["blocks.0"], edit._early
assert edit.info.syncs == 3
same_everywhere(comm, flat(model))
""", 2)


FREE = """
class ScheduleFree(torch.optim.Optimizer):  # SGD of arXiv 2405.15682: the parameters are y; z makes the steps; x is their mean
    def __init__(self, params, lr=0.05, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta, count=0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["count"] += 1
            for y in group["params"]:
                state = self.state[y]
                if "z" not in state:
                    state["z"], state["unused"] = y.clone(), torch.zeros(1)
                z = state["z"]
                x = (y - (1 - group["beta"]) * z) / group["beta"]
                z -= group["lr"] * y.grad
                x.lerp_(z, 1 / group["count"])
                y.copy_(group["beta"] * x + (1 - group["beta"]) * z)

    def means(self):
        return torch.cat([((y - 0.1 * self.state[y]["z"]) / 0.9).detach().flatten() for y in self.param_groups[0]["params"]])


def train(model, optimizer, first, last):
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("staging", [None, True])
def test_states_that_are_models_of_their_own(warm, staging):
    run(FREE + """
options = dict(comm=comm, local_sgd_sync_interval=4, local_sgd_warmup_steps=warm, staging=staging)
apart, both = [], []
for names, found in (((), apart), (("z",), both)):
    model = build()
    optimizer = ScheduleFree(model.parameters())
    with entrain.torch.EDiT(model, optimizer, preset="published", exchange_state=names, **options) as edit:
        train(model, optimizer, 0, warm + 8)
        edit.synchronize()
        found.append(optimizer.means())
rows = comm.all_gather(apart[0])
assert not torch.equal(torch.as_tensor(rows[0]), torch.as_tensor(rows[1]))  # the model of eval() differs
same_everywhere(comm, both[0])

# Plain averaging of y and z, step by step.
models = [build() for _ in range(2)]
optimizers = [ScheduleFree(model.parameters()) for model in models]
for step in range(warm + 8):
    for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
    if step < warm:
        for a, b in zip(models[0].parameters(), models[1].parameters()):
            a.grad = (a.grad + b.grad) / 2
            b.grad = a.grad.clone()
    for optimizer in optimizers:
        optimizer.step()
    if step >= warm and (step + 1 - warm) % 4 == 0:
        with torch.no_grad():
            for a, b in zip(models[0].parameters(), models[1].parameters()):
                for one, other in ((a, b), (optimizers[0].state[a]["z"], optimizers[1].state[b]["z"])):
                    mean = (one + other) / 2
                    one.copy_(mean)
                    other.copy_(mean)
assert torch.allclose(both[0], optimizers[0].means(), atol=2e-6), (both[0] - optimizers[0].means()).abs().max()

# With an outer optimizer, over a save: the loaded z counts, not that of the new optimizer.
model = build()
optimizer = ScheduleFree(model.parameters())
edit = entrain.torch.DiLoCo(model, optimizer, exchange_state=["z"], **options)
train(model, optimizer, 0, warm + 8)
edit.synchronize()
state, inner = edit.state_dict(), copy.deepcopy(optimizer.state_dict())
assert any(name.startswith("anchor/") and name.endswith("/z") for name in state), sorted(state)
train(model, optimizer, warm + 8, warm + 14)
ended = optimizer.means()
edit.close()
model = build(5)
optimizer = ScheduleFree(model.parameters())
edit = entrain.torch.DiLoCo(model, optimizer, exchange_state=["z"], **options)
edit.load_state_dict(state)
optimizer.load_state_dict(inner)
train(model, optimizer, warm + 8, warm + 14)
assert torch.equal(optimizer.means(), ended)
edit.close()

import pytest
with pytest.raises(entrain.InvalidArgument, match="exchange_state is 'z'; expected a list"):
    entrain.torch.EDiT(model, optimizer, exchange_state="z", **options)
model = build()
optimizer = ScheduleFree(model.parameters())
edit = entrain.torch.EDiT(model, optimizer, exchange_state=["unused"], **options)
with pytest.raises(entrain.FailedPrecondition, match="exchange_state has 'unused'.*of the parameter's shape for .*; it keeps ..z"):
    train(model, optimizer, 0, 3)
edit.close()
""", 2, warm=warm, staging=staging)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("warm", [0, 5])
def test_passes_in_the_step_of_another_optimizer(told, warm):
    script(MODEL + """
import contextlib, sys, warnings

comm, told, warm, found = entrain.Comm.from_env(), sys.argv[1] == "True", int(sys.argv[2]), []
warnings.showwarning = lambda message, *unused: found.append(str(message))
generator, judge = build(1), build(2)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.02) for model in (generator, judge)]
edits = [entrain.torch.DiLoCo(model, optimizer, comm=comm.duplicate(), local_sgd_sync_interval=4, local_sgd_warmup_steps=warm)
         for model, optimizer in zip((generator, judge), optimizers)]
widen = nn.Linear(2, 6)
for step in range(14):
    x, _ = batch(comm.rank, step)
    optimizers[1].zero_grad()
    (judge(x).square().mean() - judge(widen(generator(x)).detach()).square().mean()).backward()
    optimizers[1].step()
    with edits[1].aside() if told else contextlib.nullcontext():
        optimizers[0].zero_grad()
        judge(widen(generator(x))).square().mean().backward()
        optimizers[0].step()
for edit in edits:
    edit.synchronize()
assert edits[0].info.steps == 14 and edits[1].info.steps == (14 if told else 27), (edits[0].info, edits[1].info)
assert told or any("compute them within `with edit.aside():`" in one for one in found), found
assert not told or not found, found
for model in (generator, judge):
    same_everywhere(comm, flat(model))
""", told, warm, size=2)


def test_close_ends_though_others_do_not_come_to_the_exchange():
    run("""
import time
from entrain.torch import edit as module

module._LAST_ROUND = 0.5
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2)
for step in range(2):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
begun = time.monotonic()
if comm.rank == 0:
    assert edit.begin_step()
else:
    time.sleep(2)  # it does not come
edit.close()
assert time.monotonic() - begun < 10
""", 2)


def test_an_optimizer_that_makes_its_state_makes_no_step():
    run(LOOP + """
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H)
get_optimizer_state_dict(model, optimizer)  # steps with rate 0
assert edit.info.steps == 0
train(model, optimizer)
edit.synchronize()
assert edit.info.steps == T
same_everywhere(comm, flat(model))
""", 2)


@pytest.mark.parametrize("warm", [0, 4])
@pytest.mark.parametrize("way", ["eval", "method", "part", "begin_step"])
def test_steps_without_a_forward_pass_of_the_model_in_training_mode(way, warm):
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=warm)
if way in ("eval", "begin_step"):
    model.eval()
train(model, optimizer, forward=body if way in ("method", "part") else lambda m, x: m(x),
      before=edit.begin_step if way == "begin_step" else lambda: None)
assert edit.info.steps == T and edit.info.last_sync_step == (6 if warm == 0 else 7), edit.info
edit.synchronize()
close(model, reference(warm=warm))
same_everywhere(comm, flat(model))
""", 2, way=way, warm=warm)


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Tied(nn.Module):
    # As a GPT: the first layer has parameters before and after the blocks, and one of them in both places.
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.LayerNorm(6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])
        self.way = None

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = x + (block(x) if self.way is None else checkpoint(block, x, use_reentrant=self.way))
        return self.first(self.last(x))[:, :2]


def build(seed=0):
    with seeding:
        torch.manual_seed(seed)
        return Tied()


"""


@pytest.mark.parametrize("reentrant", [True, False])
def test_warm_up_under_activation_checkpointing(reentrant):
    run(CHECKPOINTED + LOOP + """
model = build()
model.way = reentrant
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=4)
train(model, optimizer)
edit.synchronize()
close(model, reference(warm=4))
same_everywhere(comm, flat(model))
""", 2, reentrant=reentrant)


def test_gradients_that_backward_has_not_made_are_averaged_too():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=4)
for step in range(T):
    optimizer.zero_grad()
    x, y = batch(comm.rank, 10 * step)
    gradients = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
    for param, gradient in zip(model.parameters(), gradients):
        param.grad = gradient
    edit.clip_grad_norm_(1e9)
    optimizer.step()
edit.synchronize()
close(model, reference(warm=4))
""", 2)


def test_parameters_that_are_frozen_or_trained_later():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=2)
model.embed.requires_grad_(False)  # before the first step
train(model, optimizer)
model.embed.requires_grad_(True)
train(model, optimizer)
edit.synchronize()
same_everywhere(comm, flat(model))
edit.close()

model.blocks[1].requires_grad_(False)
edit = entrain.torch.EDiT(model, make(model), comm=comm, local_sgd_sync_interval=H)
model.blocks[1].requires_grad_(True)
with pytest.raises(entrain.FailedPrecondition, match="the parameter blocks.1.0.weight requires gradients now, and did not, or was not there"):
    model(batch(0, 0)[0])
edit.close()

edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=1)
model.head.adapter = nn.Parameter(torch.zeros(3))  # as an adapter that comes later
loss_of(model, comm.rank, 0).backward()
optimizer.step()
with pytest.raises(entrain.FailedPrecondition, match="the parameter head.adapter requires gradients now"):
    model(batch(0, 0)[0])
""", 2)


def test_buffers_and_parameters_of_every_kind():
    run(LOOP + """
model = build(comm.rank)
rotary = torch.polar(torch.ones(4, 3), torch.arange(12.0).view(4, 3) + comm.rank)
model.register_buffer("rotary", rotary)
model.register_buffer("conjugate", rotary.conj())
model.register_buffer("strided", (torch.arange(12.0).view(3, 4) + comm.rank).t())
model.register_buffer("small", torch.ones(3).mul(comm.rank + 1).to(torch.float8_e4m3fn))
model.register_buffer("mask", torch.tensor([comm.rank == 0, True]))
model.register_buffer("expanded", torch.ones(1).expand(5))
model.register_buffer("none", torch.zeros(0, 3))
model.empty = nn.Parameter(torch.empty(3, 0))
model.nothing = nn.Parameter(torch.empty(0))
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H)
for buffer in model.buffers():
    same_everywhere(comm, buffer.resolve_conj().contiguous())
assert torch.equal(model.strided, torch.arange(12.0).view(3, 4).t()) and model.small[0].float() == 1
train(model, optimizer)
edit.synchronize()
same_everywhere(comm, flat(model))
edit.close()
model.expanded = torch.full((1,), float(comm.rank)).expand(5)
match = "the buffer expanded differs between ranks, and torch cannot write into it" if comm.rank else "rank 1 has a buffer"
with pytest.raises(entrain.InvalidArgument, match=match):
    entrain.torch.EDiT(model, optimizer, comm=comm)
""", 2)


def test_sparse_gradients_are_refused_where_they_cannot_be_averaged():
    run(LOOP + """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4, sparse=True)

    def forward(self, x):
        return self.words(x).sum()


model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with pytest.raises(entrain.InvalidArgument, match="the module 'words' has sparse gradients .*local_sgd_warmup_steps=0"):
    entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_warmup_steps=3)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2)
for step in range(4):
    optimizer.zero_grad()
    model(torch.tensor([comm.rank, step])).backward()
    optimizer.step()
edit.synchronize()
same_everywhere(comm, flat(model))
""", 2)


def test_copies_of_the_model_are_plain_models():
    run(LOOP + """
import io, pickle
from torch.optim.swa_utils import AveragedModel

model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))  # classes that pickle knows
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=2)
for step in range(4):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
file = io.BytesIO()
torch.save(model, file)
file.seek(0)
average = AveragedModel(model)
copies = [copy.deepcopy(model), average.module, pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
steps = edit.info.steps
for other in copies:
    assert torch.equal(flat(other), flat(model))
    loss_of(other.train(), comm.rank, 0).backward()  # begins no step
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert not torch.equal(flat(other), flat(model))
average.update_parameters(model)
assert edit.info.steps == steps
edit.synchronize()
same_everywhere(comm, flat(model))
""", 2)


def test_set_ups_that_make_an_exchange_useless_are_warned_of():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, reducer="linear", pseudo_gradnorm_reduce=True)
with pytest.warns(UserWarning, match="all replicas have made the same steps") if comm.rank == 0 else contextlib.nullcontext():
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()  # the same data everywhere: a sampler was forgotten
        optimizer.step()
    edit.synchronize()
    comm.barrier()
""", 2)
    run(LOOP + """
model = build()
with pytest.warns(UserWarning, match="EDiT has one replica, so nothing is exchanged"):
    entrain.torch.EDiT(model, make(model), comm=comm)
""", 1)


def test_replicas_that_differ_when_the_anchors_are_made():
    run(LOOP + """
for warm in (0, 2):
    model = build()
    optimizer = make(model)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=warm, outer_optimizer="sgd")
    with torch.no_grad():
        model.head.weight[0, 0] += comm.rank
    with pytest.raises(entrain.FailedPrecondition, match=f"replicas differ {'after warm-up, ' if warm else ''}at step {warm}, .*: the parameter "
                                                         "head.weight has other values on replica 1 than on replica 0"):
        train(model, optimizer)
    edit.close()
""", 2)


def test_compiled_models():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=2)
with seeding:
    for block in model.blocks:
        block.compile(backend="aot_eager")
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(T):  # threads compile one after the other
        optimizer.zero_grad()
        x, y = batch(comm.rank, 10 * step)
        out = compiled(x) if comm.size == 1 else None
        nn.functional.mse_loss(out, y).backward()
        optimizer.step()
edit.synchronize()
assert edit.info.steps == T
close(model, reference())
""", 1)


PROCESSES = """
import copy, datetime, sys, threading
import pytest
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel as DDP
import entrain, entrain.torch

torch.set_num_threads(1)
seeding = threading.Lock()
comm = entrain.Comm.from_env(timeout=60)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], comm.size), rank=comm.rank, world_size=comm.size,
                        timeout=datetime.timedelta(seconds=60))
"""


def processes(code, store, size):
    from edit_test import MODEL
    script(MODEL.replace("seeding = globals", "old = globals") + PROCESSES + LOOP + code + "\ndist.destroy_process_group()\n", store, size=size,
           timeout=200)


def test_ddp_over_the_replicas_is_refused(tmp_path):
    processes("""
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H)
wrapped = DDP(model)  # as Trainer and accelerate do by themselves
with pytest.raises(entrain.InvalidArgument, match="DistributedDataParallel averages the gradients of the ranks .0, 1. at every step"):
    wrapped(batch(0, 0)[0])
edit.close()
with pytest.raises(entrain.InvalidArgument, match="DistributedDataParallel averages the gradients"):
    entrain.torch.EDiT(wrapped, optimizer, comm=comm)
""", tmp_path / "store", 2)


def test_ddp_islands(tmp_path):
    # A replica is two processes, whose gradients DDP averages. Each of them exchanges with its counterpart.
    processes("""
islands = [dist.new_group([0, 1]), dist.new_group([2, 3])]
across = comm.split(comm.rank % 2)
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=across, local_sgd_sync_interval=H, local_sgd_warmup_steps=4)
wrapped = DDP(model, process_group=islands[comm.rank // 2])
train(wrapped, optimizer)
edit.synchronize()
same_everywhere(comm, flat(model))
replicas = [build(), build()]
optimizers = [make(m) for m in replicas]
for step in range(T + 1):
    if step > 4 and (step - 4) % H == 0 or step == T:
        for ps in zip(*(m.parameters() for m in replicas)):
            mean = sum(p.detach() for p in ps) / 2
            for p in ps:
                p.data.copy_(mean)
    if step < T:
        for number, (m, other) in enumerate(zip(replicas, optimizers)):
            other.zero_grad()
            among = range(4) if step < 4 else (2 * number, 2 * number + 1)
            sum(nn.functional.mse_loss(m(batch(r, 10 * step)[0]), batch(r, 10 * step)[1]) for r in among).div(len(among)).backward()
            other.step()
close(model, replicas[0])
""", tmp_path / "store", 4)


def test_fsdp1_is_refused(tmp_path):
    processes("""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

for whole in (True, False):
    model = build()
    if whole:
        model = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        model.blocks[1] = FSDP(model.blocks[1], device_id=torch.device("cpu"))
    with pytest.raises(entrain.InvalidArgument, match="FullyShardedDataParallel .FSDP1.; shard the model with .*fully_shard"):
        entrain.torch.EDiT(model, make(model), comm=comm)
    if whole:
        with pytest.raises(entrain.InvalidArgument, match="FSDP1"):
            entrain.torch.EDiT(model.module, make(model), comm=comm)
""", tmp_path / "store", 2)


def test_fully_shard_of_every_granularity(tmp_path):
    processes("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sync", "shard"))["shard"]
OPTIONS = dict(local_sgd_sync_interval=H, local_sgd_warmup_steps=2, outer_optimizer="sgd", outer_lr=1.0, outer_momentum=0.0)
twins = comm.split(comm.rank % 2)
base = 2 * (comm.rank // 2)


def compare(form):
    plain = build()
    plain_optimizer = make(plain)
    plain_edit = entrain.torch.EDiT(plain, plain_optimizer, comm=twins, **OPTIONS)
    model = build()
    if form == "pairs":
        fully_shard([model.blocks[0], model.blocks[1]], mesh=mesh)
    elif form == "prefetch":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        for one, two in zip(model.blocks, list(model.blocks)[1:]):
            one.set_modules_to_forward_prefetch([two])
    fully_shard(model, mesh=mesh)
    optimizer = make(model)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, **OPTIONS)
    for step in range(2 * T):
        optimizer.zero_grad()
        loss = loss_of(model, comm.rank, step)
        loss.backward()
        optimizer.step()
        plain_optimizer.zero_grad()
        losses = [loss_of(plain, base + one, step) for one in (0, 1)]
        (sum(losses) / 2).backward()
        plain_optimizer.step()
        torch.testing.assert_close(loss, losses[comm.rank % 2], rtol=1e-4, atol=1e-5)  # a stale parameter shows here
    edit.synchronize()
    plain_edit.synchronize()
    whole = torch.cat([p.full_tensor().reshape(-1) for p in model.parameters()]).detach()
    torch.testing.assert_close(whole, flat(plain), rtol=1e-3, atol=1e-4)
    edit.close()
    plain_edit.close()


for form in ("root only", "pairs", "prefetch"):
    compare(form)
""", tmp_path / "store", 4)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_grad_scaler_with_micro_batches_that_nobody_has_announced(mode):
    # One micro-batch of one replica overflows; the step is skipped on it, and counts once.
    run(LOOP + """
for warm in (0, 4):
    model = build()
    getattr(model, mode)()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=warm)
    for step in range(T):
        for number in range(3):
            x, y = batch(comm.rank, 10 * step + number)
            bad = float("inf") if comm.rank == 1 and step in (1, 5) and number == 0 else 1.0
            scaler.scale(nn.functional.mse_loss(model(x), y) * bad).backward()
        if step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    edit.synchronize()
    assert edit.info.steps == T, (mode, warm, edit.info)
    assert torch.isfinite(flat(model)).all()
    same_everywhere(comm, flat(model))
    edit.close()
""", 2, mode=mode)


# A fused optimizer looks for infinity without GradScaler.unscale_.
@pytest.mark.parametrize("options", [dict(lr=0.05), dict(lr=0.05, fused=True)])
def test_a_short_step_of_which_one_replica_overflows_in_warm_up(options):
    run(LOOP + """
model = build()
optimizer = torch.optim.SGD(model.parameters(), **options)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=6, gradient_accumulation_steps=4)
for step in range(T):
    for number in range(3 if step % 2 else 4):
        x, y = batch(comm.rank, 10 * step + number)
        bad = float("inf") if comm.rank == 1 and step == 3 and number == 1 else 1.0
        scaler.scale(nn.functional.mse_loss(model(x), y) * bad).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
assert scaler.get_scale() == 4.0, "all replicas have skipped the step"
edit.synchronize()
assert edit.info.steps == T and torch.isfinite(flat(model)).all()
same_everywhere(comm, flat(model))
""", 2, options=options)


def test_different_numbers_of_passes_in_warm_up_are_named():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=6)
with pytest.raises(entrain.FailedPrecondition, match="replicas make different numbers of backward passes in a step"):
    for step in range(3):
        optimizer.zero_grad()
        for number in range(1 + comm.rank):
            loss_of(model, comm.rank, step).backward()
        optimizer.step()
""", 2)


def test_a_backward_pass_that_raises_and_is_repeated():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=4)


def spoil(gradient):
    raise MemoryError("too large a batch")


for step in range(T):
    optimizer.zero_grad()
    if step == 2:
        x, y = batch(comm.rank, 99)
        first = model.embed(x)
        first.register_hook(spoil)
        for block in model.blocks:
            first = first + block(first)
        with pytest.raises(MemoryError):
            nn.functional.mse_loss(model(x) * 0 + model.head(first), y).backward()
        optimizer.zero_grad()
    x, y = batch(comm.rank, 10 * step)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
edit.synchronize()
# All have cleared the gradients of one step, so all count it.
assert edit.info.steps == T + 1
same_everywhere(comm, flat(model))
""", 2)


@pytest.mark.parametrize("around", [True, False])
def test_ddp_islands_that_edit_is_given(around, tmp_path):
    processes("""
islands = [dist.new_group([0, 1]), dist.new_group([2, 3])]
across = comm.split(comm.rank % 2)
model = build()
optimizer = make(model)
wrapped = DDP(model, process_group=islands[comm.rank // 2])
edit = entrain.torch.EDiT(wrapped if around else model, optimizer, comm=across, local_sgd_sync_interval=H, local_sgd_warmup_steps=4)
for step in range(4):
    optimizer.zero_grad()
    x, y = batch(comm.rank, 10 * step)
    nn.functional.mse_loss(wrapped(x), y).backward()
    optimizer.step()
same_everywhere(comm, flat(model))  # in warm-up all are equal
""".replace("around", repr(around)), tmp_path / "store", 4)


def test_a_kept_checkpoint_is_the_one_that_was_saved(tmp_path):
    run(LOOP + """
import os
for number in (1000, 2000):
    if comm.rank == 0:
        open(os.path.join(directory, f"step-{number}.ckpt"), "w").close()
comm.barrier()
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, outer_optimizer="sgd")
train(model, optimizer)
edit.synchronize()
assert edit.checkpoint_due is edit.checkpoint_due is False  # asked twice
edit.save(directory, "step-8", keep=2)
comm.barrier()
assert sorted(os.listdir(directory)) == ["step-2000.ckpt", "step-8.ckpt"], os.listdir(directory)
""", 2, directory=str(tmp_path))


def test_acco_refuses_what_would_train_beside_it():
    run(LOOP + """
def channel(model):
    return entrain.torch.ACCO(model, "adamw", comm=comm, method="dpu", limit=40, min_microbatches=1, max_microbatches=1)


for spoil, match in ((lambda m: m.head.requires_grad_(True), "the parameter head.weight requires gradients now"),
                     (lambda m: setattr(m.embed.weight, "data", m.embed.weight.data.clone()), "the parameter embed.weight no longer lies where")):
    model = build()
    model.head.requires_grad_(False)
    acco = channel(model)
    loss_of(model, comm.rank, 0).backward()
    acco.step(16)
    spoil(model)
    with pytest.raises(entrain.FailedPrecondition, match=match):
        for step in range(4):
            loss_of(model, comm.rank, step).backward()
            acco.step(16)
    acco.close()
with pytest.raises(entrain.InvalidArgument, match="the module '0' has sparse gradients .*set sparse=False"):
    channel(nn.Sequential(nn.Embedding(4, 4, sparse=True)))
model = build()
acco = channel(model)
other = copy.deepcopy(model)
loss_of(other, comm.rank, 0).backward()
assert other.head.weight.grad is not None  # a plain model
acco.close()
""", 1)


def test_acco_refuses_ddp(tmp_path):
    processes("""
model = build()
acco = entrain.torch.ACCO(model, "adamw", comm=comm, limit=4)
with pytest.raises(entrain.FailedPrecondition, match="DistributedDataParallel is around the model: ACCO averages the gradients itself"):
    DDP(model)(batch(0, 0)[0])
acco.close()
with pytest.raises(entrain.InvalidArgument, match="the model is, or has inside, DistributedDataParallel"):
    entrain.torch.ACCO(DDP(build()), "adamw", comm=comm, limit=4)
""", tmp_path / "store", 2)


def test_a_state_dictionary_waits_for_the_exchange_that_has_begun():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, overlap_steps=0)
for step in range(H):
    x, y = batch(comm.rank, 10 * step)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
assert edit.begin_step() and any(edit._pending)
state = {name: value.clone() for name, value in model.state_dict().items()}
assert not any(edit._pending)
for name, value in model.state_dict().items():
    assert torch.equal(value, state[name]), name
same_everywhere(comm, torch.cat([value.reshape(-1) for value in state.values()]))
copy.deepcopy(model).state_dict()
edit.close()
""", 2)


def test_parameters_that_move_into_shared_memory_are_named():
    run(LOOP + """
model = build()
edit = entrain.torch.EDiT(model, make(model), comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=0)
model.share_memory()
with pytest.raises(entrain.FailedPrecondition, match="moved into shared memory after they were bound"):
    model(batch(0, 0)[0])
shared = build()
shared.share_memory()  # before is right
edit = entrain.torch.EDiT(shared, make(shared), comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=0)
train(shared, edit.optimizer)
edit.synchronize()
same_everywhere(comm, flat(shared))
model = build()
acco = entrain.torch.ACCO(model, torch.optim.SGD(model.parameters(), lr=0.01), comm=comm, method="zero1")
model.share_memory()
loss_of(model, 0, 0).backward()
with pytest.raises(entrain.FailedPrecondition, match="moved into shared memory after ACCO was made"):
    acco.step()
""", 2)


def test_what_the_optimizer_steps_beside_the_model():
    run(LOOP + """
class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


model, other = build(), Criterion()
warned = pytest.warns(UserWarning, match="the optimizer steps 1 parameters that the model does not have")
with warned if comm.rank == 0 else contextlib.nullcontext():  # warnings are those of all threads
    edit = entrain.torch.EDiT(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1), comm=comm)
    comm.barrier()
edit.close()
model = build()
with pytest.raises(entrain.InvalidArgument, match="the optimizer has 1 parameters that the model does not have"):
    entrain.torch.ACCO(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1), comm=comm, method="zero1")
""", 2)


def test_an_optimizer_that_was_replaced_is_warned_of():
    run(LOOP + """
model = build()
optimizer = make(model)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=100, local_sgd_warmup_steps=0)
with pytest.warns(UserWarning, match="Was this optimizer replaced?") if comm.rank == 0 else contextlib.nullcontext():
    for step in range(70):
        if step == 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = loss_of(model, comm.rank, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    comm.barrier()
""", 2)


def test_two_edit_objects_with_one_optimizer_count_the_steps_that_are_skipped():
    run(LOOP + """
encoder, decoder = build(), build()
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
edits = [entrain.torch.EDiT(one, optimizer, comm=comm, local_sgd_sync_interval=4, local_sgd_warmup_steps=0) for one in (encoder, decoder)]
for step in range(T):
    x, y = batch(comm.rank, step)
    bad = float("inf") if comm.rank == 1 and step == 1 else 1.0
    loss = nn.functional.mse_loss(encoder(x), y) + nn.functional.mse_loss(decoder(x), y)
    optimizer.zero_grad()
    scaler.scale(loss * bad).backward()
    scaler.step(optimizer)
    scaler.update()
for edit, model in zip(edits, (encoder, decoder)):
    edit.synchronize()
    assert edit.info.steps == T, edit.info
    same_everywhere(comm, flat(model))
""", 2)


def test_acco_refuses_other_options_and_gradients_of_other_ways():
    run(LOOP + """
model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
acco = entrain.torch.ACCO(model, optimizer, comm=comm, method="zero1")
loss_of(model, comm.rank, 0).backward()
acco.step()
optimizer.param_groups[0]["weight_decay"] = 0.1
with pytest.raises(entrain.FailedPrecondition, match="weight_decay was 0.0 when ACCO took it, and is 0.1 now"):
    acco.step()
optimizer.param_groups[0]["weight_decay"] = 0.0
params = list(model.parameters())
for param, gradient in zip(params, torch.autograd.grad(loss_of(model, comm.rank, 1), params)):
    param.grad = gradient
with pytest.raises(entrain.FailedPrecondition, match="a gradient that no backward pass has made"):
    acco.step()
acco.close()
""", 2)


def test_blocks_that_replicas_leave_out_under_fully_shard_in_warm_up_are_named(tmp_path):
    """fully_shard tells nothing of a block without gradients. Without the tag of a block, its neighbour of equal size would be averaged
    with another replica's block."""
    processes("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("sync", "shard"))["shard"]
model = build()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
short = comm.duplicate()
short.set_timeout(3.0)
edit = entrain.torch.EDiT(model, make(model), comm=short, local_sgd_sync_interval=4, local_sgd_warmup_steps=8)


def forward(x):
    x = model.embed(x)
    for index, block in enumerate(model.blocks):
        if index != comm.rank:  # each replica leaves another one out
            x = x + block(x)
    return model.head(x)


model.forward = forward
loss = model(batch(comm.rank, 0)[0]).square().mean()
with pytest.raises(entrain.Error, match="has not started the call|timed out"):
    loss.backward()
""", tmp_path / "store", 2)


def test_a_wish_that_comes_while_an_exchange_begins_is_kept():
    run(LOOP + """
model = build()
edit = entrain.torch.EDiT(model, make(model), comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=0)
begin, due = edit.engine.begin_forward, []


def begin_forward(*arguments, **options):
    began = begin(*arguments, **options)
    if began and comm.rank == 1 and edit.info.steps == 2:  # as a signal's handler, when the wait for the others is over
        edit.wish_checkpoint()
    return began


edit.engine.begin_forward = begin_forward
for step in range(6):
    if edit.begin_step() and edit.checkpoint_due:
        due.append(step)
    edit.optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    edit.optimizer.step()
assert due == [4], due
edit.close()
""", 2)
