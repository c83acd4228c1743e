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
    assert staging == all(layer.host is not layer.flat for layer in edit._layers)
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
with pytest.raises(entrain.FailedPrecondition, match="lr was 0.02 when ACCO took it, and is 0.01 now .a scheduler of torch.*schedule_warmup"):
    acco.step(16)
acco.close()
optimizer.step()  # nobody minds now
other = torch.optim.AdamW(model.parameters(), lr=0.02)
torch.optim.lr_scheduler.LambdaLR(other, lambda step: 0.0)  # as a warm-up begins
with pytest.raises(entrain.InvalidArgument, match="the optimizer's first group has lr=0; give it the greatest rate"):
    entrain.torch.ACCO(model, other, comm=comm)
""", 1)
