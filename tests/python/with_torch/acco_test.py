"""ACCO around a module; ranks are threads."""
import copy
import threading

import pytest
from conftest import ranks

torch = pytest.importorskip("torch")
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
