"""AGD and WSAM as optimizers of PyTorch, against the golden trajectories."""
import copy
import json

import pytest
from conftest import ROOT, script

torch = pytest.importorskip("torch")
import entrain  # noqa: E402
from entrain.torch.optim import AGD, WSAM  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/testdata/optimizers.json").read_text())
NAMES = {"adam": "adamw"}


def rosenbrock(parts):
    x = torch.cat(parts)
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def start():
    """Returns the start vector as two parameters. Stepping them must give the same
    result as stepping the whole vector."""
    x0 = torch.tensor(GOLDEN["objectives"]["rosen4"]["x0"])
    return [torch.nn.Parameter(x0[:1].clone()), torch.nn.Parameter(x0[1:].clone())]


def follow(optimizer, params, wanted):
    def closure():
        optimizer.zero_grad()
        loss = rosenbrock(params)
        loss.backward()
        return loss

    for step in range(1, 51):
        optimizer.step(closure)
        if str(step) in wanted:
            got = torch.cat([p.detach() for p in params]).double()
            want = torch.tensor(wanted[str(step)], dtype=torch.float64)
            assert ((got - want).abs() <= 1e-4 * want.abs().clamp(min=1)).all(), (step, got, want)


@pytest.mark.parametrize("golden", GOLDEN["agd"], ids=lambda golden: golden["case"])
def test_agd(golden):
    params = start()
    follow(AGD(params, **golden["hyper"]), params, golden["f32"]["params"])


@pytest.mark.parametrize("golden", GOLDEN["wsam"], ids=lambda golden: golden["case"])
def test_wsam(golden):
    params = start()
    base = NAMES.get(golden["base"], golden["base"])
    follow(WSAM(params, base=base, **golden["base_hyper"], **golden["hyper"]), params, golden["f32"]["params"])


@pytest.mark.parametrize("make", [lambda params: AGD(params, lr=0.01, amsgrad=True, win=True),
                                  lambda params: WSAM(params, lr=1e-3, base="adamw", max_norm=1.0)])
def test_state_dict_goes_on_bit_for_bit(make):
    params = start()
    optimizer = make(params)
    follow(optimizer, params, {})
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = make(others)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    follow(optimizer, params, {})
    follow(other, others, {})
    assert all(torch.equal(p, q) for p, q in zip(params, others))


def test_groups_have_options_of_their_own_and_errors_name_arguments():
    params = start()
    optimizer = AGD([{"params": params[:1], "weight_decay": 0.5}, {"params": params[1:]}], lr=0.1)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.allclose(params[0], before[0] * 0.95) and torch.equal(params[1], before[1])
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    with pytest.raises(entrain.InvalidArgument, match="params is bf16; optimizers take f32"):
        AGD([half]).step()
    with pytest.raises(entrain.InvalidArgument, match="base is 'lion'"):
        WSAM(params, base="lion")
    with pytest.raises(entrain.InvalidArgument, match="step needs a closure"):
        WSAM(params).step()


def test_importing_the_package_does_not_import_what_takes_a_second():
    heavy = ("torch.distributed.tensor", "torch.distributed.fsdp")
    assert script(f"import sys, entrain.torch; print([name for name in {heavy!r} if name in sys.modules])").strip() == "[]"
