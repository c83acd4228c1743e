"""ACCO around a module; ranks are threads."""
import copy
import functools
import threading
import warnings

import pytest
from conftest import ranks

torch = pytest.importorskip("torch")
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm  # noqa: E402
from torch.optim.lr_scheduler import (  # noqa: E402
    ChainedScheduler, ConstantLR, CosineAnnealingLR, CyclicLR, LambdaLR, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR)

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
    refused("the parameter 0.weight is torch.float64; expected", "adamw", model=copy.deepcopy(model).double())
    refused("kind: 'lion' is none of adamw, agd, sgd", "lion")


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


def warm_up(step):
    return min(1.0, step / 3)


SCHEDULERS = {
    "lambda": lambda optimizer: LambdaLR(optimizer, warm_up),  # its first rate is 0
    "step": lambda optimizer: StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 6),
    "linear": lambda optimizer: LinearLR(optimizer, 0.1, total_iters=4),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, [0.01, 0.02], total_steps=10_000, cycle_momentum=False),
    "cyclic": lambda optimizer: CyclicLR(optimizer, [0.001, 0.002], [0.01, 0.02], 3, cycle_momentum=False),
    "sequential": lambda optimizer: SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=3), StepLR(optimizer, 2)], [3]),
    "chained": lambda optimizer: ChainedScheduler([ConstantLR(optimizer, 0.1, 3), StepLR(optimizer, 2, 0.5)]),
}


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_zero1_with_a_scheduler_is_the_optimizer_with_it(name, made):
    make, steps = SCHEDULERS[name], 8

    def body(comm):
        model, whole = build(seed=comm.rank), build()
        optimizer = grouped(model)
        scheduler = make if made else make(optimizer)
        reference = grouped(whole)
        expected = make(reference)
        with entrain.torch.ACCO(model, optimizer, scheduler=scheduler, comm=comm, method="zero1", min_microbatches=1, max_microbatches=1,
                                limit=steps) as acco:
            for number in range(steps):
                rates = [group["lr"] for group in reference.param_groups]
                assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates)
                assert made or scheduler.get_last_lr() == pytest.approx(rates)
                loss_of(model, comm.rank, number).backward()
                acco.step(16)
                reference.zero_grad()
                (sum(loss_of(whole, r, number) for r in range(comm.size)) / comm.size).backward()
                reference.step()
                expected.step()
                assert acco.info.lr == pytest.approx(rates[0])
            torch.testing.assert_close(flat(model), flat(whole), rtol=1e-4, atol=1e-5)
            if not made:
                with pytest.raises(entrain.FailedPrecondition, match="scheduler.step: ACCO makes the steps of the scheduler"):
                    scheduler.step()
                assert type(scheduler).__name__ == type(expected).__name__ and "step" not in scheduler.state_dict()
        if not made:
            optimizer.step()
            scheduler.step()  # nobody minds now

    ranks(2, body)


@pytest.mark.parametrize("method", ["acco", "dpu", "wp", "zero1"])
def test_rates_of_a_scheduler_follow_from_the_commit_after_a_load(method, tmp_path):
    def body(comm):
        def start(seed):
            model = build(seed)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
            return model, optimizer, entrain.torch.ACCO(model, optimizer, scheduler=scheduler, comm=comm, limit=100, method=method,
                                                        min_microbatches=1, max_microbatches=1)

        def go(model, acco, first, last):
            for number in range(first, last):
                loss_of(model, comm.rank, number).backward()
                acco.step(16)

        through, optimizer, acco = start(0)
        go(through, acco, 0, 12)
        acco.save(tmp_path, "saved")
        commits = acco.info.commits
        go(through, acco, 12, 18)
        last, rate = acco.info.commits, acco.info.lr
        acco.close()
        model, optimizer, acco = start(5)
        acco.load(tmp_path, "saved")
        assert acco.info.commits == commits and optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / (1 + commits))
        go(model, acco, 12, 18)
        assert (acco.info.commits, acco.info.lr) == (last, rate) and last > commits
        assert torch.equal(flat(model), flat(through))
        acco.close()

    ranks(2, body)


def test_a_scheduler_of_a_library_optimizer():
    comm = entrain.Comm.from_env()
    model = build()
    with entrain.torch.ACCO(model, "sgd", lr=0.5, comm=comm, method="zero1", limit=40, min_microbatches=1, max_microbatches=1,
                            scheduler=lambda optimizer: StepLR(optimizer, 1, 0.1)) as acco:
        rates = []
        for number in range(3):
            loss_of(model, 0, number).backward()
            acco.step(16)
            rates.append(acco.info.lr)
        assert rates == pytest.approx([0.5, 0.05, 0.005])


def test_schedulers_that_cannot_be_expressed_are_refused():
    comm = entrain.Comm.from_env()
    model = build()
    options = dict(comm=comm, method="zero1", min_microbatches=1, max_microbatches=1)

    def refused(match, make, **more):
        optimizer = grouped(model)
        with pytest.raises(entrain.InvalidArgument, match=match):
            entrain.torch.ACCO(model, optimizer, scheduler=make(optimizer), **options, **more)
        with pytest.raises(entrain.InvalidArgument, match=match):
            entrain.torch.ACCO(model, grouped(model), scheduler=make, **options, **more)

    refused("changes the ratio between the rates of the groups: that of group 1 to the first is 2, and at commit 901",
            lambda optimizer: LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.0 if step < 900 else 0.5]))
    refused("and at commit 5001 the rates are",
            lambda optimizer: LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.0 if step < 5000 else 0.5]), limit=6000)
    refused("changes the ratio between the rates", lambda optimizer: CosineAnnealingLR(optimizer, 6, eta_min=0.005))
    refused(r"has the rates \[0.01, 0.0\] at commit 1: one group's is 0",
            lambda optimizer: LambdaLR(optimizer, [lambda _: 1.0, lambda _: 0.0]))
    refused("has the rates .*-0.01.* at commit 4; expected numbers of at least 0",
            lambda optimizer: LambdaLR(optimizer, lambda step: 3 - 4 * (step > 2)))
    refused("scheduler is, or makes, ReduceLROnPlateau; expected a scheduler", ReduceLROnPlateau)
    refused("OneCycleLR changes betas of group 0 at commit [12],.*cycle_momentum=False",
            lambda optimizer: OneCycleLR(optimizer, [0.01, 0.02], total_steps=10_000))
    refused("scheduler and min_lr both say the rates", lambda optimizer: StepLR(optimizer, 2), min_lr=0.1)
    refused("scheduler and lr both say the rates", lambda optimizer: StepLR(optimizer, 2), lr=0.1)
    optimizer = grouped(model)
    with pytest.raises(entrain.InvalidArgument, match="the scheduler StepLR was made on another optimizer"):
        entrain.torch.ACCO(model, grouped(model), scheduler=StepLR(optimizer, 2), **options)
    with pytest.raises(entrain.InvalidArgument, match="scheduler is a StepLR, and the optimizer none of torch.optim"):
        entrain.torch.ACCO(model, "adamw", scheduler=StepLR(optimizer, 2), **options)
    with pytest.raises(entrain.InvalidArgument, match="scheduler is, or makes, str"):
        entrain.torch.ACCO(model, "adamw", scheduler="cosine", **options)
    scheduler = StepLR(optimizer, 2)
    optimizer.step()
    scheduler.step()
    with pytest.raises(entrain.InvalidArgument, match="the scheduler StepLR has made 1 steps"):
        entrain.torch.ACCO(model, optimizer, scheduler=scheduler, **options)
    # Far behind the commits that the constructor knows, the refusal comes 1000 commits before the rates would matter.
    optimizer = grouped(model)
    late = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.0 if step < 1004 else 0.5])
    with entrain.torch.ACCO(model, optimizer, scheduler=late, **options) as acco:
        with pytest.raises(entrain.FailedPrecondition, match="and at commit 1005 the rates are"):
            for number in range(5):
                loss_of(model, 0, number).backward()
                acco.step(16)
        assert acco.info.commits == 4


def test_ranks_with_other_schedulers_are_refused():
    def body(comm):
        model = build()
        with pytest.raises(entrain.Mismatch, match="identity: rates of the scheduler"):
            entrain.torch.ACCO(model, "adamw", comm=comm, scheduler=functools.partial(StepLR, step_size=2 + comm.rank))

    ranks(2, body)


@pytest.mark.parametrize("kinds", [(torch.float32, torch.bfloat16), (torch.float16,), (torch.bfloat16, torch.float16, torch.float32)])
@pytest.mark.parametrize("method", ["zero1", "acco"])
def test_parameters_of_several_types_train_in_f32(kinds, method, tmp_path):
    def typed(seed):
        model = build(seed)
        for number, param in enumerate(model.parameters()):
            param.data = param.data.to(kinds[number % len(kinds)])
        return model

    def loss(model, rank, number):  # each parameter is cast where it is used, as autocast does
        whole = torch.func.functional_call(model, {name: param.float() for name, param in model.named_parameters()},
                                           (torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * rank + number)),))
        return whole.square().mean() + (whole[:, 0] - 1).square().mean()

    def body(comm):
        model = typed(comm.rank)
        sizes = [(name, param.dtype, param.shape) for name, param in model.named_parameters()]
        start = typed(0)
        # The reference: masters in f32, and what the forward pass sees is rounded.
        masters = [param.detach().float() for param in start.parameters()]
        shells = [torch.nn.Parameter(master) for master in masters]
        reference = torch.optim.AdamW(shells, lr=0.02)
        whole = typed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        with entrain.torch.ACCO(model, optimizer, comm=comm, method=method, limit=8, min_microbatches=2, max_microbatches=2) as acco:
            assert [(name, param.dtype, param.shape) for name, param in model.named_parameters()] == sizes
            assert torch.equal(flat32(model), flat32(start))
            number = 0
            while not acco.finished:
                loss(model, comm.rank, number).backward()
                assert all(p.grad is None for p in model.parameters())
                acco.step(16)
                number += 1
                if method == "zero1" and number % 2 == 0:
                    sums = [torch.zeros_like(master) for master in masters]
                    for rank in range(comm.size):
                        for micro in range(number - 2, number):
                            for place, gradient in zip(sums, torch.autograd.grad(loss(whole, rank, micro), list(whole.parameters()))):
                                place += gradient
                    for shell, gradient in zip(shells, sums):
                        shell.grad = gradient / 2 / comm.size
                    reference.step()
                    for param, shell in zip(whole.parameters(), shells):
                        param.data.copy_(shell.detach())
            if method == "zero1":
                assert number == 16
                torch.testing.assert_close(flat32(model), flat32(whole), rtol=2e-2, atol=1e-3)
                torch.testing.assert_close(acco._host, torch.cat([shell.detach().reshape(-1) for shell in shells]), rtol=1e-3, atol=1e-4)
            for param, first, _ in acco._places:  # rounded to nearest
                assert torch.equal(param.detach().reshape(-1), acco._host[first:first + param.numel()].to(param.dtype))
            acco.save(tmp_path, f"saved-{method}")
            ended = flat32(model).clone()
        rows = comm.all_gather(ended)
        assert torch.equal(rows[0], rows[1])
        again = typed(7)
        with entrain.torch.ACCO(again, torch.optim.AdamW(again.parameters()), comm=comm, method=method, limit=8) as acco:
            acco.load(tmp_path, f"saved-{method}")
            assert torch.equal(flat32(again), ended)
        with pytest.raises(entrain.InvalidArgument, match="staging is False, and the parameters are of several types"):
            entrain.torch.ACCO(again, "adamw", comm=comm, staging=False)

    ranks(2, body)


def flat32(model):
    return torch.cat([p.detach().float().reshape(-1) for p in model.parameters()])


def test_a_program_keeps_its_buffers_its_data_and_its_random_numbers_in_the_checkpoint(tmp_path):
    """As docs/python.md says."""
    def body(comm):
        class Noisy(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
                self.register_buffer("factor", torch.ones(3, dtype=torch.bfloat16))

            def forward(self, x):
                return self.norm(self.layer(x))

        def start(seed):
            with SEEDING:
                torch.manual_seed(seed)
                model = Noisy()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
            acco = entrain.torch.ACCO(model, optimizer, comm=comm, method="dpu", limit=40, min_microbatches=1, max_microbatches=1,
                                      scheduler=StepLR(optimizer, 3, 0.5))
            generator = torch.Generator().manual_seed(seed + comm.rank)
            position, numbers = torch.zeros(1, dtype=torch.int64), generator.get_state()
            for name, buffer in model.named_buffers():
                acco.channel.add_state(f"buffers/{name}", buffer)
            acco.channel.add_state("position", position)
            acco.channel.add_state("random-numbers", numbers)
            return model, acco, generator, position, numbers

        def go(model, acco, generator, position, count):
            for _ in range(count):
                x = torch.randn(16, 6, generator=generator) + int(position)
                model(x).square().mean().add(model.layer(x).sum() * 1e-3).backward()
                position += 1
                acco.step(16)

        through, acco, generator, position, numbers = start(0)
        go(through, acco, generator, position, 7)
        numbers.copy_(generator.get_state())
        acco.save(tmp_path, "step-7")
        go(through, acco, generator, position, 5)
        acco.close()
        model, acco, generator, again, numbers = start(5)
        assert acco.resume(tmp_path) == "step-7" and int(again) == 7
        generator.set_state(numbers)
        go(model, acco, generator, again, 5)
        acco.close()
        assert torch.equal(flat(model), flat(through)) and int(again) == int(position) == 12
        for (name, mine), theirs in zip(model.named_buffers(), through.buffers()):
            assert torch.equal(mine, theirs), name
        assert model.norm.num_batches_tracked == 12

    ranks(2, body)
