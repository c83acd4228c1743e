"""Parameters that the library does not see, as on an accelerator: a twin in host memory gives the same bits."""
import pytest
from edit_test import run

pytest.importorskip("torch")

WAYS = {
    "plain": dict(local_sgd_sync_interval=3),
    "weighted": dict(local_sgd_sync_interval=3, local_sgd_warmup_steps=2, reducer="linear", pseudo_gradnorm_reduce=True,
                     clip_pseudo_grad=0.05, outer_optimizer="sgd", outer_nesterov=True),
    "gta": dict(local_sgd_sync_interval=3, reducer="gta", density=0.5, sparsification_method="magnitude", outer_optimizer="sgd"),
    "behind": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", overlap_steps=2),
    "mix": dict(local_sgd_sync_interval=3, reducer="linear", outer_optimizer="sgd", overlap_steps=1, overlap_merge="mix"),
    "fragments": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", overlap_steps=1, fragments=2),
    "int8": dict(local_sgd_sync_interval=2, reducer="linear", outer_optimizer="sgd", wire_format="int8"),
    "callback": dict(local_sgd_sync_interval=3, outer_optim_class="RMSprop"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_twin_gives_the_same_bits(way, dtype):
    run("""
options = dict(options)
if "outer_optim_class" in options:
    options["outer_optim_class"] = getattr(torch.optim, options["outer_optim_class"])
found = []
for staging in (False, True):
    model = build().to(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, staging=staging, **options)
    assert staging == all(layer.host is not layer.flats[0] for layer in edit._layers)
    seen = []
    for step in range(13):
        optimizer.zero_grad()
        x, y = batch(comm.rank, step)
        nn.functional.mse_loss(model(x.to(model.head.weight.dtype)).float(), y).backward()
        optimizer.step()
        if step in (5, 9) and not options.get("overlap_steps"):
            with edit.consensus():
                seen.append(flat(model).clone())
        seen.append(flat(model).clone())
    edit.synchronize()
    found.append((seen, flat(model).clone(), edit.info.anchor_checksum, edit.info.syncs))
    same_everywhere(comm, flat(model))
    edit.close()
one, other = found
assert all(torch.equal(a, b) for a, b in zip(one[0], other[0])) and torch.equal(one[1], other[1]) and one[2:] == other[2:] and one[3] > 1
""", 2, options=WAYS[way], dtype=dtype)


@pytest.mark.parametrize("types", ["norms in float32", "three", "float16"])
def test_parameters_of_several_types(types):
    run("""
class Norms(Model):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(3)])

    def forward(self, x):
        x = self.embed(x.to(self.embed.weight.dtype))
        for block, norm in zip(self.blocks, self.norms):
            x = x + block(norm(x.to(norm.weight.dtype)).to(x.dtype))
        return self.head(x.to(self.head.weight.dtype)).float()

with seeding:
    torch.manual_seed(3)
    model = Norms()
model.to(torch.float16 if types == "float16" else torch.bfloat16)
if types != "float16":
    model.norms.float()
if types == "three":
    model.head.half()
kinds = {name: param.dtype for name, param in model.named_parameters()}
assert len(set(kinds.values())) == {"norms in float32": 2, "three": 3, "float16": 1}[types]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
edit = entrain.torch.DiLoCo(model, optimizer, comm=comm, local_sgd_sync_interval=3, layers=[*model.blocks, model.norms])
anchor, momentum = flat(model).float(), 0
for step in range(12):
    if step and step % 3 == 0:
        mean = flat(model).float().clone()  # DiLoCo, in float32
        comm.all_reduce(mean, op="avg")
        gradient = anchor - mean
        momentum = 0.8 * momentum + gradient
        anchor = anchor - 0.7 * (0.8 * momentum + gradient)
    optimizer.zero_grad()
    loss = loss_of(model, comm.rank, step)
    if step and step % 3 == 0:
        for name, param in model.named_parameters():
            offset = sum(one.numel() for other, one in model.named_parameters() if list(kinds).index(other) < list(kinds).index(name))
            expected = anchor[offset:offset + param.numel()].view(param.shape)
            close = {torch.float32: 1e-6, torch.bfloat16: 0.008, torch.float16: 0.001}[param.dtype]
            assert torch.allclose(param.detach().float(), expected, rtol=close, atol=1e-6), (step, name)
            same_everywhere(comm, param.detach())
    loss.backward()
    optimizer.step()
before = flat(model).clone()
with edit.consensus():
    assert not torch.equal(flat(model), before)
assert torch.equal(flat(model), before) and {name: param.dtype for name, param in model.named_parameters()} == kinds
edit.synchronize()
state = edit.state_dict()
edit.close()
ended = flat(model).clone()

other = Norms().to(torch.bfloat16)
for (name, param), mine in zip(other.named_parameters(), model.parameters()):
    param.data = torch.zeros_like(mine)
edit = entrain.torch.DiLoCo(other, torch.optim.SGD(other.parameters(), lr=0.05), comm=comm, local_sgd_sync_interval=3,
                            layers=[*other.blocks, other.norms])
edit.load_state_dict(state)
assert torch.equal(flat(other), ended)
edit.close()
try:
    entrain.torch.EDiT(model, optimizer, comm=comm, staging=False)
    raise SystemExit("taken")
except entrain.InvalidArgument as error:
    assert "of several types, which needs a twin in float32" in str(error), error
try:
    double = build().double()
    entrain.torch.EDiT(double, torch.optim.SGD(double.parameters(), lr=0.05), comm=comm)
    raise SystemExit("taken")
except entrain.InvalidArgument as error:
    assert "the parameter embed.weight is torch.float64; expected" in str(error), error
""", 2, types=types)


@pytest.mark.parametrize("method", ["acco", "dpu", "wp", "zero1"])
def test_a_twin_gives_acco_the_same_bits(method):
    run("""
found = []
for staging in (False, True):
    model = build()
    acco = entrain.torch.ACCO(model, torch.optim.AdamW(model.parameters(), lr=0.02), comm=comm, method=method, limit=12, staging=staging,
                              min_microbatches=1, max_microbatches=1)
    step = 0
    while not acco.finished:
        loss_of(model, comm.rank, step).backward()
        acco.step(16)
        step += 1
    found.append((step, flat(model).clone(), acco.info.commits))
    acco.close()
assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1]) and found[0][2] == found[1][2], (method, found)
""", 2, method=method)


def test_what_has_no_twin_is_refused():
    run("""
import pytest

with torch.device("meta"):
    far = Model()
with pytest.raises(entrain.InvalidArgument, match="the parameter embed.weight is on meta; give the model its memory first"):
    entrain.torch.EDiT(far, torch.optim.SGD(far.parameters(), lr=0.1), comm=comm)
with pytest.raises(entrain.InvalidArgument, match="on meta"):
    entrain.torch.ACCO(far, "adamw", comm=comm)
""", 1)


def test_accos_optimizer_is_not_used_in_silence():
    run("""
import pytest

model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
acco = entrain.torch.ACCO(model, optimizer, comm=comm, method="dpu", limit=12, min_microbatches=1, max_microbatches=1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else 0.5)
for step in range(2):
    loss_of(model, comm.rank, step).backward()
    acco.step(16)
    scheduler.step() if step else None
with pytest.raises(entrain.FailedPrecondition, match="optimizer.step: ACCO makes the steps"):
    optimizer.step()
optimizer.param_groups[0]["lr"] = 0.01
with pytest.raises(entrain.FailedPrecondition, match="lr was 0.02 when ACCO took it, and is 0.01 now .*scheduler=.*schedule_warmup"):
    acco.step(16)
acco.close()
optimizer.step()  # nobody minds now
other = torch.optim.AdamW(model.parameters(), lr=0.02)
torch.optim.lr_scheduler.LambdaLR(other, lambda step: 0.0)  # as a warm-up begins
with pytest.raises(entrain.InvalidArgument, match="group 0 of the optimizer has lr=0. If a scheduler of torch has set it.*scheduler="):
    entrain.torch.ACCO(model, other, comm=comm)
""", 1)
