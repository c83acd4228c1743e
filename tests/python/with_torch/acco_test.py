"""ACCO around a module; ranks are threads."""
import copy
import threading
import warnings

import pytest
from conftest import ranks

torch = pytest.importorskip("torch")
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm  # noqa: E402

import entrain  # noqa: E402
import entrain.torch  # noqa: E402

torch.set_num_threads(1)  # each rank is a thread already
SEEDING = threading.Lock()


def build(seed=0, dtype=torch.float32):
    with SEEDING:  # one generator for all threads
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(dtype)


def loss_of(model, rank, number):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * rank + number))
    dtype = next(model.parameters()).dtype
    return torch.nn.functional.mse_loss(model(x.to(dtype)), torch.stack([x[:, 0] * x[:, 1], x[:, 2]], 1).to(dtype))


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def grouped(model):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0, "lr": 0.02}], lr=0.01)


def test_zero1_is_the_optimizer_on_the_mean_gradient_of_all_micro_batches():
    def body(comm):
        model, whole = build(seed=comm.rank), build()
        whole.requires_grad_(True)
        steps = 8
        with entrain.torch.ACCO(model, grouped(model), comm=comm, method="zero1", min_microbatches=2, max_microbatches=2,
                                limit=steps) as acco:
            reference = grouped(whole)
            number = 0
            while not acco.finished:
                loss_of(model, comm.rank, number).backward()
                assert all(p.grad is None for p in model.parameters())
                acco.step(16)
                number += 1
            for step in range(steps):
                reference.zero_grad()
                (sum(loss_of(whole, r, 2 * step + i) for r in range(comm.size) for i in range(2)) / 2 / comm.size).backward()
                reference.step()
            torch.testing.assert_close(flat(model), flat(whole), rtol=1e-4, atol=1e-5)
            assert acco.info.commits == steps and acco.info.tokens == 16 * 2 * steps * comm.size

    ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_acco_trains_and_all_ranks_end_alike(dtype):
    def body(comm):
        model = build(comm.rank, dtype)
        before = sum(float(loss_of(model, 9, n).detach()) for n in range(8))
        with entrain.torch.ACCO(model, "adamw", comm=comm, lr=0.02, limit=40) as acco:
            number = 0
            while not acco.finished:
                loss_of(model, comm.rank, number).backward()
                acco.step(16)
                number += 1
        assert sum(float(loss_of(model, 9, n).detach()) for n in range(8)) < before
        rows = comm.all_gather(flat(model).view(torch.uint8))
        assert torch.equal(rows[0], rows[1])

    ranks(2, body)


def test_errors_name_what_is_wrong():
    comm = entrain.Comm.from_env()
    model = build()

    def refused(match, optimizer, model=model, **options):
        with pytest.raises(entrain.InvalidArgument, match=match):
            entrain.torch.ACCO(model, optimizer, comm=comm, **options)

    refused("the optimizer is a Adagrad", torch.optim.Adagrad(model.parameters()))
    refused("the optimizer has amsgrad=True", torch.optim.AdamW(model.parameters(), amsgrad=True))
    refused("does not step the parameter 0.bias", torch.optim.SGD([p for p in model.parameters() if p.dim() > 1]))
    refused("the parameters are torch.float64", "adamw", model=copy.deepcopy(model).double())
    refused("kind: 'lion' is none of adamw, agd, sgd", "lion")
    refused("join=0: the model has the buffer 1.running_mean, and the other ranks do not send it", "adamw",
            model=torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), join=0)


def test_a_run_resumes_from_the_newest_checkpoint(tmp_path):
    def body(comm):
        def start(seed):
            model = build(seed)
            return model, entrain.torch.ACCO(model, "adamw", comm=comm, lr=0.02, limit=40, method="dpu", min_microbatches=1,
                                             max_microbatches=1)

        def go(model, acco, first, last):
            for number in range(first, last):
                loss_of(model, comm.rank, number).backward()
                acco.step(16)

        through, acco = start(0)
        assert acco.resume(tmp_path) is None
        for first in range(0, 12, 4):
            go(through, acco, first, first + 4)
            acco.save(tmp_path, f"step-{first + 4}", keep=2)
        go(through, acco, 12, 14)
        acco.close()
        assert entrain.checkpoints_in(tmp_path) == ["step-12", "step-8"]
        model, acco = start(0)
        go(model, acco, 0, 4)
        with pytest.raises(entrain.FailedPrecondition, match="step-12.ckpt is of step .*, which has begun anew, is at step"):
            acco.save(tmp_path, "step-12")
        acco.close()
        model, acco = start(5)
        assert acco.resume(tmp_path) == "step-12"
        go(model, acco, 12, 14)
        assert torch.equal(flat(model), flat(through))
        acco.close()

    ranks(2, body)


def test_clipping_of_torch_is_refused_by_name():
    comm = entrain.Comm.from_env()
    model, other = build(), build()
    acco = entrain.torch.ACCO(model, "adamw", comm=comm, method="dpu", limit=40, clip_norm=1e-3, min_microbatches=1, max_microbatches=1)
    loss_of(model, 0, 0).backward()
    for name, call in (("clip_grad_norm_", lambda: clip_grad_norm_(model.parameters(), 1.0)),  # imported before ACCO was made
                       ("clip_grad_norm_", lambda: torch.nn.utils.clip_grad_norm_(max_norm=1.0, parameters=list(model.parameters()))),
                       ("clip_grad_norm_", lambda: clip_grad_norm_(model[0].weight, 1.0)),
                       ("clip_grad_value_", lambda: clip_grad_value_(model.parameters(), 0.1)),
                       ("clip_grads_with_norm_", lambda: clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(2.0)))):
        with pytest.raises(entrain.FailedPrecondition, match=f"{name} would find no gradients.*clip_norm.*acco.info.grad_norm"):
            call()
    with pytest.warns(UserWarning, match="get_total_norm would find no gradients"):
        assert get_total_norm([p.grad for p in model.parameters() if p.grad is not None]) == 0
    with warnings.catch_warnings():  # what is not ACCO's stays torch's
        warnings.simplefilter("error")
        assert float(get_total_norm(model.parameters())) > 0  # of the parameters themselves
        assert clip_grad_norm_(other.parameters(), 1.0) == 0
        loss_of(other, 0, 0).backward()
        whole = float(get_total_norm([p.grad for p in other.parameters()]))
        assert float(clip_grad_norm_(other.parameters(), 1e-3)) == pytest.approx(whole)
        assert float(get_total_norm([p.grad for p in other.parameters()])) == pytest.approx(1e-3, rel=1e-2)
    with pytest.warns(UserWarning, match="`parameters` is an empty generator"):
        clip_grad_norm_((p for p in ()), 1.0)
    for number in range(1, 4):
        acco.step(16)
        loss_of(model, 0, number).backward()
    assert acco.info.grad_norm > 1e-3 and acco.info.clip_factor < 1
    acco.close()
    loss_of(model, 0, 0).backward()  # the parameters are the program's again
    assert float(clip_grad_norm_(model.parameters(), 1.0)) > 0
    clip_grad_value_(model.parameters(), 0.1)


def test_a_grad_scaler_is_refused_where_it_scales_accos_gradients():
    comm = entrain.Comm.from_env()
    model, other = build(), build()
    with entrain.torch.ACCO(model, "adamw", comm=comm, method="dpu", limit=40) as acco:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for scaled in (scaler.scale(loss_of(model, 0, 0)), scaler.scale([loss_of(model, 0, 0)])[0]):
            with pytest.raises(entrain.FailedPrecondition, match="the gradients come from GradScaler.scale.*enabled=False"):
                scaled.backward()
            assert not acco._gradients.any() and all(p.grad is None for p in model.parameters())
        x = torch.utils.checkpoint.checkpoint(model[1], model[0](torch.ones(1, 6)), use_reentrant=True)  # a pass inside the pass
        with pytest.raises(entrain.FailedPrecondition, match="the gradients come from GradScaler.scale"):
            scaler.scale(model[3](x).sum()).backward()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        scaler.scale(loss_of(other, 0, 0)).backward()  # of a model that is not ACCO's
        scaler.step(optimizer)
        scaler.update()
        loss_of(model, 0, 0).backward()
        torch.amp.GradScaler("cpu", enabled=False).scale(loss_of(model, 0, 1)).backward()
        assert acco._gradients.any()
        acco.step(16)
