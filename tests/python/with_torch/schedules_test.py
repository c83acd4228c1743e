"""The outer optimizer's rates and the intervals by schedule."""
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, ReduceLROnPlateau

import entrain
import entrain.torch
from conftest import ranks


class OwnSGD(torch.optim.SGD):
    """torch makes its steps, since the library does not know the class."""


def make(comm, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, entrain.torch.EDiT(model, optimizer, comm=comm, preset="published", skip_anomaly=True, **options)


def train(model, optimizer, comm, steps):
    for step in range(*steps):
        generator = torch.Generator().manual_seed(100 * step + comm.rank)
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def flat(model):
    return torch.cat([param.detach().ravel() for param in model.parameters()]).clone()


SCHEDULERS = {
    "cosine": lambda outer: CosineAnnealingLR(outer, 4),
    "linear": lambda outer: LinearLR(outer, 1.0, 0.25, total_iters=3),
    "one cycle": lambda outer: OneCycleLR(outer, 0.9, total_steps=20),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, OwnSGD])
def test_a_scheduler_of_torch_steps_with_the_outer_optimizer(name, kind):
    """The reference is DiLoCo with torch's own outer optimizer and scheduler, on the mean of both replicas."""
    def body(comm):
        model, optimizer, edit = make(comm, local_sgd_sync_interval=2, outer_optim_class=kind,
                                      outer_optim_kwargs=dict(lr=0.7, momentum=0.5, nesterov=True), outer_scheduler=SCHEDULERS[name])
        anchor = nn.Parameter(flat(model))
        outer = torch.optim.SGD([anchor], lr=0.7, momentum=0.5, nesterov=True)
        scheduler = SCHEDULERS[name](outer)
        for number in range(6):
            train(model, optimizer, comm, (2 * number, 2 * number + 2))
            own = flat(model)
            anchor.grad = anchor.detach() - torch.from_numpy(comm.all_reduce(own.numpy())) / comm.size
            outer.step()
            scheduler.step()
            model(torch.zeros(1, 3))  # makes the exchange
            assert edit.info.syncs == number + 1
            torch.testing.assert_close(flat(model), anchor.detach(), rtol=0, atol=2e-6)
        edit.close()
    ranks(2, body)


def test_the_rates_follow_from_the_outer_step_after_a_load(tmp_path):
    def body(comm):
        def run(model, optimizer, edit, steps):
            train(model, optimizer, comm, steps)
            model(torch.zeros(1, 3))

        options = dict(local_sgd_sync_interval=2, outer_optimizer="sgd", outer_lr=0.5, outer_momentum=0.5,
                       outer_scheduler=SCHEDULERS["cosine"])
        model, optimizer, edit = make(comm, **options)
        run(model, optimizer, edit, (0, 6))
        edit.save(tmp_path)
        run(model, optimizer, edit, (6, 10))
        through = flat(model)
        edit.close()
        model, optimizer, edit = make(comm, **options)
        edit.load(tmp_path)
        run(model, optimizer, edit, (6, 10))
        assert torch.equal(flat(model), through)
        edit.close()
    ranks(2, body)


def test_layers_may_have_rates_of_their_own():
    asked = []

    def body(comm):
        def schedule(layer, step, lr, momentum):
            asked.append((layer, step, lr, momentum))
            return (0.0 if layer == 0 else lr), momentum

        model, optimizer, edit = make(comm, local_sgd_sync_interval=2, outer_optimizer="sgd", outer_lr=0.5, outer_momentum=0.25,
                                      outer_schedule=schedule)
        begin = [param.detach().clone() for param in model.parameters()]
        train(model, optimizer, comm, (0, 2))
        model(torch.zeros(1, 3))
        now = list(model.parameters())
        assert torch.equal(now[0], begin[0]) and torch.equal(now[1], begin[1])
        assert not torch.equal(now[2], begin[2])
        edit.close()
    ranks(2, body)
    assert {(0, 1, 0.5, 0.25), (1, 1, 0.5, 0.25)} <= set(asked)


def test_intervals_by_schedule():
    def body(comm):
        model, optimizer, edit = make(comm, outer_optimizer="sgd", interval_schedule=lambda exchanges, steps: exchanges + 1)
        at = []
        for step in range(11):
            train(model, optimizer, comm, (step, step + 1))
            at += [edit.info.last_sync_step] if edit.info.last_sync_step not in at else []
        assert at == [0, 1, 3, 6, 10], at
        edit.close()
        # A preset's H gives way.
        model = nn.Linear(2, 2)
        edit = entrain.torch.EDiT(model, torch.optim.SGD(model.parameters()), comm=comm, interval_schedule=lambda exchanges, steps: 2)
        edit.close()
    ranks(2, body)


def test_a_schedule_that_raises_is_the_cause_of_the_error():
    def body(comm):
        def schedule(layer, step, lr, momentum):
            raise KeyError("no rate")

        model, optimizer, edit = make(comm, local_sgd_sync_interval=1, outer_optimizer="sgd", outer_schedule=schedule)
        with pytest.raises(entrain.Aborted, match="outer_schedule: layer 0, step 1, returned 1") as raised:
            train(model, optimizer, comm, (0, 3))
        assert isinstance(raised.value.__cause__, KeyError)
        edit.close()
    ranks(1, body)


@pytest.mark.parametrize("options, says", [
    (dict(outer_scheduler=lambda outer: ReduceLROnPlateau(outer)), "makes ReduceLROnPlateau; expected a scheduler .* whose rates follow"),
    (dict(outer_scheduler=lambda outer: None), "outer_scheduler makes NoneType"),
    (dict(outer_scheduler=CosineAnnealingLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), 4)), "has an optimizer already"),
    (dict(outer_scheduler=SCHEDULERS["linear"], outer_schedule=lambda *_: (1, 0)), "both outer_scheduler and outer_schedule"),
    (dict(outer_scheduler=SCHEDULERS["linear"], outer_optimizer="none"), "outer_scheduler without an outer optimizer"),
    (dict(outer_schedule=lambda *_: (1, 0), outer_optimizer="none"), "outer_schedule: a function needs an outer_optimizer"),
    (dict(interval_schedule=lambda *_: 2, local_sgd_sync_interval=3), "interval_schedule: a function with local_sgd_sync_interval"),
])
def test_refusals(options, says):
    def body(comm):
        with pytest.raises(entrain.InvalidArgument, match=says):
            make(comm, **{"outer_optimizer": "sgd", **options})
    ranks(1, body)
