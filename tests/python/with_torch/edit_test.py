"""Compares EDiT around plain modules with a reference that every rank computes for all replicas. Ranks are threads,
because importing torch takes seconds; in one test they are processes."""
import threading

import pytest
from conftest import ranks
from forks import script

pytest.importorskip("torch")

MODEL = """
import copy, threading
import torch
from torch import nn
import entrain, entrain.torch

entrain.torch.EDiT._preset = entrain.torch.AEDiT._preset = "published"  # presets_test.py tries the presets

torch.set_num_threads(1)
seeding = globals().get("seeding") or threading.Lock()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(8, 2, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def batch(replica, step):
    generator = torch.Generator().manual_seed(1000 * replica + step)
    x = torch.randn(16, 6, generator=generator)
    return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3]], 1)


def loss_of(model, replica, step):
    x, y = batch(replica, step)
    return nn.functional.mse_loss(model(x), y)


def build(seed=0):
    with seeding:  # one generator for all threads
        torch.manual_seed(seed)
        return Model()


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def same_everywhere(comm, tensor):
    assert not tensor.is_floating_point() or torch.isfinite(tensor.float()).all()
    rows = comm.all_gather(tensor.contiguous().view(torch.uint8))
    assert all(torch.equal(rows[0], row) for row in rows)

"""
SEEDING = threading.Lock()


def run(code, size, **names):
    program = compile(MODEL + code, "program", "exec")
    ranks(size, lambda comm: exec(program, {"comm": comm, "seeding": SEEDING, **names}), timeout=60.0)


METHOD = """
H, T, lr, eta, mu = 2, 9, 0.05, 0.6, 0.5
model = build(seed=comm.rank)  # the constructor makes replicas alike
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, outer_optim_class=torch.optim.SGD,
                          outer_optim_kwargs=dict(lr=eta, momentum=mu, nesterov=True))
assert edit.layer_names == ["the model", "blocks.0", "blocks.1", "blocks.2"], edit.layer_names
start = flat(model)
same_everywhere(comm, start)

# The reference: all replicas, one after another.
base = build(seed=0)
assert torch.equal(flat(base), start)
replicas = [copy.deepcopy(base) for _ in range(comm.size)]
anchor = [p.detach().clone() for p in base.parameters()]
momentum = None
def error(m):
    with torch.no_grad():
        return sum(float(loss_of(m, 50, step)) for step in range(8))


before = error(model)
for step in range(T + 1):
    if step and (step % H == 0 or step == T):
        mean = [sum(a - p.detach() for p in ps) / comm.size
                for a, ps in zip(anchor, zip(*(r.parameters() for r in replicas)))]
        momentum = mean if momentum is None else [mu * b + d for b, d in zip(momentum, mean)]
        anchor = [a - eta * (d + mu * b) for a, d, b in zip(anchor, mean, momentum)]
        for replica in replicas:
            for p, a in zip(replica.parameters(), anchor):
                p.data.copy_(a)
    if step == T:
        break
    for index, replica in enumerate(replicas):
        replica.zero_grad()
        loss_of(replica, index, step).backward()
        for p in replica.parameters():
            p.data -= lr * p.grad
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
    torch.testing.assert_close(flat(model), flat(replicas[comm.rank]), rtol=2e-5, atol=2e-6)
edit.synchronize()
torch.testing.assert_close(flat(model), flat(replicas[0]), rtol=2e-5, atol=2e-6)
same_everywhere(comm, flat(model))
assert error(model) < 0.98 * before, (before, error(model))
assert edit.info.steps == T and edit.info.syncs == 5, edit.info
assert len(set(comm.all_gather(torch.tensor([edit.info.anchor_checksum % 2**62])).ravel().tolist())) == 1
assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {id(p) for p in model.parameters()}
"""


def test_it_is_the_method():
    run(METHOD, 2)


def test_it_is_the_method_on_four_processes():
    script("import entrain; comm = entrain.Comm.from_env(timeout=60)" + MODEL + METHOD, size=4, timeout=240)


@pytest.mark.parametrize("accumulation, autocast", [(1, False), (3, False), (2, True)])
def test_one_step_and_averaging_is_synchronous_sgd(accumulation, autocast):
    run("""
model, whole = build(), build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=1, outer_optimizer="sgd", outer_lr=1.0,
                          outer_momentum=0.0, gradient_accumulation_steps=A)
seen = []


def loss(m, rank, step, micro):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        x, y = batch(rank, 10 * step + micro)
        out = m(x)
    seen.append(out.dtype)
    return nn.functional.mse_loss(out.float(), y) / A


for step in range(6):
    optimizer.zero_grad()
    for micro in range(A):
        loss(model, comm.rank, step, micro).backward()
    optimizer.step()
    whole.zero_grad()
    for micro in range(A):
        (sum(loss(whole, r, step, micro) for r in range(comm.size)) / comm.size).backward()
    for p in whole.parameters():
        p.data -= 0.1 * p.grad
edit.synchronize()
assert edit.info.steps == 6 and edit.info.syncs == 6, edit.info
assert set(seen) == {torch.bfloat16 if autocast else torch.float32}
close = dict(rtol=1e-2, atol=1e-3) if autocast else dict(rtol=1e-5, atol=1e-6)
torch.testing.assert_close(flat(model), flat(whole), **close)
assert (flat(whole) - flat(build())).abs().max() > 0.03
same_everywhere(comm, flat(model))
""", 2, A=accumulation, autocast=autocast)


def test_wsam_with_its_two_passes_a_step():
    run("""
from entrain.torch.optim import WSAM

W, H, T = 3, 2, 9
model, replicas = build(), [build() for _ in range(comm.size)]


def make(m):
    return WSAM(m.parameters(), base="adamw", lr=0.01, rho=0.05)


def closure(m, optimizer, ranks, step):
    def loss():
        optimizer.zero_grad()
        value = sum(loss_of(m, rank, step) for rank in ranks) / len(ranks)
        value.backward()
        return value

    return loss


optimizer, others = make(model), [make(m) for m in replicas]
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, local_sgd_warmup_steps=W)
for step in range(T + 1):
    if step > W and (step - W) % H == 0:
        for ps in zip(*(m.parameters() for m in replicas)):
            mean = sum(p.detach() for p in ps) / comm.size
            for p in ps:
                p.data.copy_(mean)
    if step == T:
        break
    for rank, (m, other) in enumerate(zip(replicas, others)):
        other.step(closure(m, other, range(comm.size) if step < W else [rank], step))
    optimizer.step(closure(model, optimizer, [comm.rank], step))
    torch.testing.assert_close(flat(model), flat(replicas[comm.rank]), rtol=1e-3, atol=1e-4)
edit.synchronize()
torch.testing.assert_close(flat(model), flat(replicas[0]), rtol=1e-3, atol=1e-4)
assert edit.info.steps == T and edit.info.syncs == 3, edit.info
""", 2)


def test_the_second_pass_of_wsam_begins_no_exchange():
    # In the block the parameters are not the replica's own. Time is up in the second pass of every other step.
    run("""
import time
from entrain.torch.optim import WSAM

model = build()
optimizer = WSAM(model.parameters(), lr=0.01, rho=0.05)
edit = entrain.torch.AEDiT(model, optimizer, comm=comm, local_sgd_sync_time=0.3, min_total_global_steps=1, outer_optimizer="sgd")
passes = []


def closure():
    optimizer.zero_grad()
    met = edit.info.rendezvous
    if len(passes) % 4 == 3:
        time.sleep(0.35)  # longer than the interval of the exchanges
    loss = loss_of(model, comm.rank, len(passes))
    passes.append(edit.info.rendezvous - met)
    loss.backward()
    return loss


for step in range(6):
    optimizer.step(closure)
edit.leave()
assert passes == [0] * 12 and edit.info.rendezvous >= 2, (passes, edit.info)  # the step begins before its closure
assert edit.info.steps == 6, edit.info
same_everywhere(comm, flat(model))
""", 2)


def test_warm_up_averages_gradients_with_accumulation_and_unused_parameters():
    run("""
A = 3
model, whole = build(), build()
for m in (model, whole):
    m.unused = nn.Linear(2, 2)       # in no rank's graph
    m.sometimes = nn.Linear(6, 2)    # in rank 1's graph only
whole.load_state_dict(model.state_dict())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
reference = torch.optim.AdamW(whole.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4, local_sgd_warmup_steps=100,
                          gradient_accumulation_steps=A)
whole.load_state_dict(model.state_dict())
def loss(m, rank, micro):
    value = loss_of(m, rank, micro)
    return value + m.sometimes(batch(rank, micro)[0]).square().mean() if rank == 1 else value
for step in range(4):
    optimizer.zero_grad()
    for micro in range(A):
        (loss(model, comm.rank, A * step + micro) / A).backward()
    optimizer.step()
    reference.zero_grad()
    for micro in range(A):
        (sum(loss(whole, r, A * step + micro) for r in range(comm.size)) / A / comm.size).backward()
    reference.step()
    assert model.unused.weight.grad is None and model.sometimes.weight.grad is not None
torch.testing.assert_close(flat(model), flat(whole), rtol=1e-4, atol=1e-5)
same_everywhere(comm, flat(model))
assert edit.info.in_warmup and edit.info.steps == 4
with edit.consensus():
    torch.testing.assert_close(flat(model), flat(whole), rtol=1e-4, atol=1e-5)
""", 2)


def test_warm_up_averages_layers_under_the_backward_pass():
    run("""
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4, local_sgd_warmup_steps=100)
started, seen = [], []
all_reduce = edit._sync.all_reduce
def watched(array, **options):
    started.append(options["tag"])
    return all_reduce(array, **options)
edit._sync.all_reduce = watched
model.embed.weight.register_hook(lambda grad: seen.append(list(started)))
for step in range(2):
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
assert seen == [[3, 2, 1], [3, 2, 1, 0, 3, 2, 1]], seen
assert started == 2 * [3, 2, 1, 0]
same_everywhere(comm, flat(model))
""", 2)


SCALED = """
def train(edit, model, optimizer, scaler, steps, spoiled, zero="first", clip=True):
    # Of the steps in `spoiled` the loss is not finite on this rank. Gradients are cleared before or after the forward pass.
    for step in range(steps):
        if zero == "first":
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, comm.rank, step) * (float("inf") if step in spoiled else 1)
        if zero == "last":
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            edit.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()


def make(fused=False, **options):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, **options)
    return edit, model, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0)


"""


def test_a_step_that_grad_scaler_skips_on_one_replica_counts_as_attempted():
    # Replicas must count the same steps. Otherwise they would exchange at different steps; here an exchange is due at
    # the last one.
    run(SCALED + """
for fused in (False, True):
    for zero in ("first", "last"):
        edit, model, optimizer, scaler = make(fused)
        # The last one too. The factor of clipping makes NaN of what is infinite.
        train(edit, model, optimizer, scaler, 8, {3, 7} if comm.rank == 1 else (), zero, clip=fused)
        edit.synchronize()
        assert (edit.info.steps, edit.info.syncs, edit.info.last_sync_step) == (8, 4, 8), (fused, zero, edit.info)
        assert scaler.get_scale() == (2.0 if comm.rank == 1 else 8.0), scaler.get_scale()
        assert torch.isfinite(flat(model)).all()
        same_everywhere(comm, flat(model))
        edit.close()
""", 2)


def test_a_step_that_grad_scaler_skips_in_warm_up_is_skipped_by_all():
    run(SCALED + """
edit, model, optimizer, scaler = make(local_sgd_warmup_steps=5)
train(edit, model, optimizer, scaler, 7, {3} if comm.rank == 1 else ())  # gradients are everybody's
assert (edit.info.steps, edit.info.last_sync_step) == (7, 5), edit.info
assert scaler.get_scale() == 4.0 and torch.isfinite(flat(model)).all()
edit.synchronize()
same_everywhere(comm, flat(model))
""", 2)


def test_forward_passes_that_no_step_follows_do_not_count():
    run("""
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2)
for step in range(4):
    optimizer.zero_grad()
    model(batch(comm.rank, step)[0])                    # of which nothing becomes
    first = loss_of(model, comm.rank, step)             # two passes of one step, ...
    (first + loss_of(model, comm.rank, step)).backward()
    loss_of(model, comm.rank, step).backward()          # ... and one more
    optimizer.step()
assert edit.info.steps == 4 and edit.info.last_sync_step == 2, edit.info
""", 2)


OUTER = [("Adagrad", dict(lr=0.05, initial_accumulator_value=0.1)), ("RMSprop", dict(lr=0.01, momentum=0.5, centered=True)),
         ("NAdam", dict(lr=0.02)), ("SGD", dict(lr=0.6, momentum=0.5, dampening=0.1)), ("AdamW", dict(amsgrad=True)),
         ("Adafactor", dict(lr=0.01))]


@pytest.mark.parametrize("kind, arguments", OUTER, ids=[kind for kind, _ in OUTER])
def test_any_optimizer_of_torch_is_an_outer_one(kind, arguments):
    run("""
H, T, kind = 2, 8, getattr(torch.optim, kind)


def start(seed):
    model = build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, optimizer, entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=H, outer_optim_class=kind,
                                                outer_optim_kwargs=arguments)


model, optimizer, edit = start(0)
replicas = [build(0) for _ in range(comm.size)]
anchor = [nn.Parameter(p.detach().clone()) for p in replicas[0].parameters()]
outer = kind(anchor, **arguments)


def go(step):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()


for step in range(T + 1):
    if step and step % H == 0:
        for a, *ps in zip(anchor, *(r.parameters() for r in replicas)):
            a.grad = sum(a.detach() - p.detach() for p in ps) / comm.size
        outer.step()
        for replica in replicas:
            for p, a in zip(replica.parameters(), anchor):
                p.data.copy_(a)
        if step == T:
            break
    for index, replica in enumerate(replicas):
        replica.zero_grad()
        loss_of(replica, index, step).backward()
        for p in replica.parameters():
            p.data -= 0.05 * p.grad
    if step == 4:
        state = [edit.state_dict(exact=exact) for exact in (True, False)]
        early = flat(model)
        shared[comm.rank] = state[1]
    go(step)
    torch.testing.assert_close(flat(model), flat(replicas[comm.rank]), rtol=1e-3, atol=2e-5)
edit.synchronize()
torch.testing.assert_close(flat(model), flat(replicas[0]), rtol=1e-3, atol=2e-5)
same_everywhere(comm, flat(model))
end, empty = flat(model), edit.empty_state_dict()
assert {name: value.shape for name, value in empty.items()} == {name: value.shape for name, value in state[0].items()}
with pytest.raises(entrain.FailedPrecondition, match=f"save: the outer {kind.__name__}"):
    edit.save("anywhere")
edit.close()
for kept in (state[0], shared[0]):  # of the portable one rank 0's is for all
    model, optimizer, edit = start(5)
    with pytest.raises(KeyError, match="outer/.*blocks.1.0.bias"):
        edit.load_state_dict({name: value for name, value in kept.items() if not ("outer" in name and "blocks.1.0.bias" in name)})
    edit.load_state_dict(kept)
    assert torch.equal(flat(model), early)
    for step in range(4, T):
        go(step)
    edit.synchronize()
    assert torch.equal(flat(model), end)
    edit.close()
""", 2, kind=kind, arguments=arguments, pytest=pytest, shared={})


CHECKPOINTS = """
def start(seed, warmup=2, kind=entrain.torch.EDiT, **options):
    model = build(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = options or dict(local_sgd_sync_interval=3)
    edit = kind(model, optimizer, comm=comm, local_sgd_warmup_steps=warmup, reducer="linear", pseudo_gradnorm_reduce=True,
                clip_pseudo_grad=0.5, outer_optimizer="sgd", outer_nesterov=True, skip_anomaly=True, ewma_warmup_steps=4, **options)
    return model, optimizer, edit


def go(model, optimizer, first, last, before=lambda step: None):
    losses = []
    for step in range(first, last):
        before(step)
        optimizer.zero_grad()
        loss = loss_of(model, comm.rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def end(model, optimizer, edit, first, last):
    # What a run that goes on comes to.
    losses = go(model, optimizer, first, last)
    result = losses, flat(model), edit.info.anchor_checksum
    edit.close()
    return result


def same(one, other):
    return one[0] == other[0] and torch.equal(one[1], other[1]) and one[2] == other[2] != 0
"""


def test_saving_changes_nothing_and_resumes_bit_for_bit(tmp_path):
    run(CHECKPOINTS + """
through = end(*start(0), 0, 20)
model, optimizer, edit = start(0)
kept = {}


def save(step):
    if step in (2, 8, 11):  # where anchors are made, and where replicas exchange
        edit.save(directory, f"exact-{step}")
        edit.save(directory, f"portable-{step}", exact=False)
        kept[step] = edit.state_dict(), copy.deepcopy(optimizer.state_dict())
        assert edit.info.steps == step


saved = go(model, optimizer, 0, 20, save), flat(model), edit.info.anchor_checksum
assert same(through, saved)
edit.close()
for step in (2, 8):
    for way in ("state_dict", "file"):
        model, optimizer, edit = start(5)
        if way == "file":
            edit.load(directory, f"exact-{step}")
        else:
            edit.load_state_dict(kept[step][0])
        optimizer.load_state_dict(copy.deepcopy(kept[step][1]))
        assert edit.info.steps == step
        rest = end(model, optimizer, edit, step, 20)
        assert same((through[0][step:], *through[1:]), rest), (step, way)
""", 2, directory=str(tmp_path))


def test_state_is_saved_where_replicas_exchange_alone(tmp_path):
    run(CHECKPOINTS + """
import pytest

through = end(*start(0), 0, 12)
model, optimizer, edit = start(0)
losses = go(model, optimizer, 0, 1)
for call in (edit.state_dict, lambda: edit.save(directory)):
    with pytest.raises(entrain.FailedPrecondition, match="step 1 has had no exchange .there was none yet."):
        call()
losses += go(model, optimizer, 1, 9)
assert edit.begin_step() is False
with pytest.raises(entrain.FailedPrecondition, match="step 9 has had no exchange .the last was at step 8.; call save where begin_step"):
    edit.save(directory)
with pytest.raises(entrain.FailedPrecondition, match=r"reduce: .* step 9 has had no exchange .*; call reduce where begin_step returns True, or after sync"):
    edit.reduce([1.0])
losses += go(model, optimizer, 9, 11)
assert edit.begin_step() is True
edit.state_dict()
losses += go(model, optimizer, 11, 12)
assert same(through, (losses, flat(model), edit.info.anchor_checksum))  # in spite of the errors
edit.synchronize()  # an exchange more, by request
same_everywhere(comm, flat(model))
edit.save(directory)
assert edit.info.last_sync_step == 12
""", 2, directory=str(tmp_path))


def test_a_program_that_is_started_again_resumes_by_itself(tmp_path):
    run(CHECKPOINTS + """
import contextlib, os
import pytest

model, optimizer, edit = start(0)
assert edit.resume(directory) is None  # there is none: the run begins


def save(step):
    if step in (2, 8, 11):
        edit.save(directory, f"step-{step:04}", keep=2)


through = go(model, optimizer, 0, 14, save), flat(model), edit.info.anchor_checksum
edit.close()
assert entrain.checkpoints_in(directory) == ["step-0011", "step-0008"]

# It is started again, but does not resume: it must not undo what it has done before.
model, optimizer, edit = start(0)
go(model, optimizer, 0, 2)
with pytest.raises(entrain.FailedPrecondition, match="step-0011.ckpt is of step 11, and this run, which has begun anew, is at step 2"):
    edit.save(directory, "step-0011")
with pytest.raises(entrain.InvalidArgument, match="keep is 0"):
    edit.save(directory, "step-0002", keep=0)
edit.close()

# The newest checkpoint is damaged: the one before it counts.
comm.barrier()
if comm.rank == 0:
    with open(os.path.join(directory, "step-0011.ckpt"), "r+b") as file:
        file.truncate(os.path.getsize(file.name) // 2)
comm.barrier()
model, optimizer, edit = start(5)
with pytest.warns(UserWarning, match="step-0011.ckpt") if comm.rank == 0 else contextlib.nullcontext():
    assert edit.resume(directory) == "step-0008"
assert edit.info.steps == 8
edit.save(directory, "step-0008")  # a run that has resumed may
""", 2, directory=str(tmp_path))


def test_a_run_goes_on_from_warm_up_without_a_checkpoint_of_edit():
    # In warm-up replicas are equal: the state consists of model, optimizer and the number of steps.
    run(CHECKPOINTS + """
through = end(*start(0, warmup=5), 0, 14)
model, optimizer, edit = start(0, warmup=5)
losses = go(model, optimizer, 0, 3)
state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
edit.close()
model, optimizer, edit = start(7, warmup=5 - 3)
model.load_state_dict(state[0])
optimizer.load_state_dict(state[1])
rest = end(model, optimizer, edit, 3, 14)
assert same(through, (losses + rest[0], *rest[1:]))
""", 2)


def test_rounds_that_no_replica_waits_for(tmp_path):
    run(CHECKPOINTS + """
import time

options = dict(local_sgd_sync_interval=4, overlap_steps=4, overlap_merge="mix", fragments=2, quorum=1, round_deadline=5.0, late="carry",
               use_step_weight=True, step_weight_ratio=1.0)


def make(seed):
    model = build(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, entrain.torch.EDiT(model, optimizer, comm=comm, reducer="linear", outer_optimizer="sgd", outer_nesterov=True,
                                                **options)


def train(first, last):
    for step in range(first, last):
        go(model, optimizer, step, step + 1)
        edit.record(16)
        time.sleep(0.01 + 0.01 * comm.rank)  # replicas of different speed


model, optimizer, edit = make(comm.rank)
train(0, 30 - 10 * comm.rank)
edit.synchronize()  # needs all replicas
same_everywhere(comm, flat(model))
assert edit.info.rendezvous - edit.info.missed >= 2, edit.info
edit.save(directory, "all", exact=False)
train(30, 50 - 10 * comm.rank)
edit.leave()
same_everywhere(comm, flat(model))
edit.close()
model, optimizer, edit = make(7)
edit.load(directory, "all", exact=False)
same_everywhere(comm, flat(model))
train(30, 40)
edit.leave()
same_everywhere(comm, flat(model))
edit.close()
""", 2, directory=str(tmp_path))


def test_a_wish_makes_all_replicas_save_at_their_next_exchange(tmp_path):
    run(CHECKPOINTS + """
import pytest, time

# By time: replicas of other speeds come to it at other steps of theirs.
model, optimizer, edit = start(0, kind=entrain.torch.AEDiT, local_sgd_sync_time=0.02, min_total_global_steps=6)
with pytest.raises(entrain.FailedPrecondition, match="wish_checkpoint"):
    edit.save(directory)
steps, saved = 0, []
while not (saved and edit.info.syncs > saved[0][0] + 2) and steps < 4000:
    if steps == 5 and comm.rank == 1:
        edit.wish_checkpoint()
    edit.begin_step()
    if edit.checkpoint_due:
        edit.save(directory, "exact")
        edit.save(directory, "portable", exact=False)
        state, moments = edit.state_dict(), copy.deepcopy(optimizer.state_dict())
        saved.append((edit.info.syncs, edit.info.steps, edit.info.anchor_checksum, flat(model)))
    go(model, optimizer, steps, steps + 1)
    steps += 1
    time.sleep(0.004 * comm.rank)  # replicas of different speed
edit.leave()
assert len(saved) == 1 and saved[0][1] >= 5, saved
assert len(set(comm.all_gather(torch.tensor([saved[0][0]])).ravel().tolist())) == 1
same_everywhere(comm, saved[0][3])
edit.save(directory, "left")
edit.close()
for load in (lambda: edit.load(directory, "exact"), lambda: edit.load_state_dict(state)):
    model, optimizer, edit = start(5, kind=entrain.torch.AEDiT, local_sgd_sync_time=0.02, min_total_global_steps=6)
    load()
    optimizer.load_state_dict(copy.deepcopy(moments))
    assert (edit.info.syncs, edit.info.steps, edit.info.anchor_checksum) == saved[0][:3]
    assert torch.equal(flat(model), saved[0][3])
    edit.close()

# By steps: at the next exchange too.
model, optimizer, edit = start(0)
due = []


def begin(step):
    if step == 6 and comm.rank == 0:
        edit.wish_checkpoint()
    edit.begin_step()
    if edit.checkpoint_due:
        due.append(step)
        edit.state_dict(exact=False)


go(model, optimizer, 0, 15, begin)
assert due == [8], due
""", 2, directory=str(tmp_path))


def test_reduce_where_a_step_begins_with_an_exchange():
    run("""
import pytest

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, outer_optimizer="sgd")
exchanges = 0
for step in range(7):
    if edit.begin_step() and step:
        with pytest.raises(entrain.FailedPrecondition, match="is under way; wait for all layers first"):
            edit.engine.reduce([])
        here = edit.reduce([comm.rank + 1])
        assert (here.rank, here.ranks, here.values) == (comm.rank, comm.size, [comm.size * (comm.size + 1) / 2]), here
        exchanges += 1
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
assert exchanges == 3 and edit.info.losses == 0
edit.close()
""", 2)


def test_evaluation_of_the_consensus():
    run("""
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4, outer_optimizer="sgd")
start = flat(model)
for step in range(3):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
live = flat(model)
with edit.consensus():
    assert torch.equal(flat(model), start)
    model.eval()
    with torch.no_grad():
        loss_of(model, 9, 9)
    model.train()
assert torch.equal(flat(model), live)
edit.close()

# Plain averaging has no anchors.
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4)
loss_of(model, comm.rank, 0).backward()
optimizer.step()
mean = comm.all_reduce(flat(model), op="avg")
with edit.consensus():
    torch.testing.assert_close(flat(model), mean)
edit.close()

# While an exchange runs behind steps, there are no agreed parameters.
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4, outer_optimizer="sgd", overlap_steps=2)
for step in range(5):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
try:
    with edit.consensus():
        raise AssertionError("not refused")
except entrain.FailedPrecondition as refused:
    assert "call synchronize on all ranks first" in str(refused), refused
edit.synchronize()
with edit.consensus():
    same_everywhere(comm, flat(model))
edit.close()
""", 2)


def test_bf16_and_frozen_and_tied_parameters():
    run("""
model = build(comm.rank).bfloat16()
model.embed.weight.requires_grad_(False)
model.blocks[2][0].weight = model.blocks[0][0].weight
model.register_buffer("scale", torch.full((), float(comm.rank)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, outer_optimizer="sgd",
                          layers=list(model.blocks))
names = [[name for name, _ in layer.params] for layer in edit._layers]
assert "blocks.0.0.weight" in names[0] and all("embed.weight" not in layer for layer in names), names
assert model.scale == 0
frozen = model.embed.weight.clone()
for step in range(5):
    x, y = (t.bfloat16() for t in batch(comm.rank, step))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
edit.synchronize()
same_everywhere(comm, flat(model))
assert torch.equal(frozen, model.embed.weight)
""", 2)


def test_a_layer_that_takes_no_part_and_evaluation_in_between():
    # The layers in between have no gradients, and evaluation is not part of a step. So the result is synchronous SGD of
    # the other layers.
    run("""
model, whole = build(), build()
for m in (model, whole):
    m.forward = lambda x, m=m: m.head(m.embed(x))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=1, outer_optimizer="sgd", outer_lr=1.0,
                          outer_momentum=0.0)
blocks = flat(model.blocks).clone()
for step in range(4):
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
    with torch.no_grad():
        loss_of(model, comm.rank, step)
    model.eval()
    loss_of(model, comm.rank, step)
    model.train()
    assert edit.info.steps == step + 1 and edit.info.syncs == step
    whole.zero_grad()
    (sum(loss_of(whole, r, step) for r in range(comm.size)) / comm.size).backward()
    for p in whole.parameters():
        p.data -= 0 if p.grad is None else 0.1 * p.grad
edit.synchronize()
assert edit.info.syncs == 4 and torch.equal(flat(model.blocks), blocks)
torch.testing.assert_close(flat(model), flat(whole), rtol=1e-5, atol=1e-6)
assert not torch.equal(model.head.weight, build().head.weight)
same_everywhere(comm, flat(model))
""", 2)


def test_errors_name_what_is_wrong():
    run("""
import pytest

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def refused(error, match, model=model, **options):
    with pytest.raises(error, match=match):
        entrain.torch.EDiT(model, optimizer, comm=comm, **options)


refused(entrain.InvalidArgument, "no option is called 'sync_interval'; the options are local_sgd_sync_interval,", sync_interval=3)
refused(entrain.InvalidArgument, "reducer: 'mean' is none of gta, linear, none", reducer="mean")
refused(entrain.InvalidArgument, "layers.0. is no module of the model", layers=[nn.Linear(1, 1)])
refused(entrain.InvalidArgument, "the parameter embed.weight is torch.float64", model=build().double())
refused(entrain.InvalidArgument, "the outer LBFGS cannot make a step: .*closure", outer_optim_class=torch.optim.LBFGS)
refused(entrain.InvalidArgument, "the outer SGD cannot be made: .*speed", outer_optim_class=torch.optim.SGD,
        outer_optim_kwargs=dict(speed=3))
refused(entrain.InvalidArgument, "outer_optim_class is .*; expected a class of torch.optim", outer_optim_class=nn.Linear)
refused(entrain.InvalidArgument, "both outer_lr and outer_optim_class", outer_optim_class=torch.optim.SGD, outer_lr=0.3,
        outer_optim_kwargs=dict(lr=0.5))
refused(entrain.InvalidArgument, "clip_pseudo_grad", clip_pseudo_grad=1.0)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, config=entrain.EditConfig(local_sgd_sync_interval=5), local_sgd_sync_interval=1)
model(batch(0, 0)[0])
with pytest.raises(entrain.FailedPrecondition, match="begin_step: the step has begun"):
    edit.begin_step()
edit.close()
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=1, outer_optimizer="sgd")
model.blocks[1][0].weight.data = model.blocks[1][0].weight.data.clone()
with pytest.raises(entrain.FailedPrecondition, match="blocks.1.0.weight no longer lies where EDiT has bound it"):
    for step in range(3):
        loss_of(model, 0, step).backward()
        optimizer.step()
""", 1)


def test_replicas_of_different_speed_and_one_that_ends_earlier():
    run("""
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
edit = entrain.torch.AEDiT(model, optimizer, comm=comm, local_sgd_sync_time=0.02, min_total_global_steps=4,
                           outer_optimizer="sgd", use_step_weight=True)
steps = 0
while steps < 4000 and (steps < 40 if comm.rank else edit.info.syncs < 3):
    optimizer.zero_grad()
    loss = loss_of(model, comm.rank, steps)
    loss.backward()
    optimizer.step()
    edit.record(16, loss.item(), 1.0)
    steps += 1
edit.leave()
assert edit.info.steps == steps and edit.info.syncs >= 3
same_everywhere(comm, flat(model))
""", 2)
