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
    for tensor, says in ((torch.ones(2, dtype=torch.float64), "is torch.float64.*since the steps are made in f32"),
                         (torch.ones(2, dtype=torch.complex64), "is torch.complex64"),
                         (torch.ones(1, 3).expand(4, 3), "is expanded .*give the parameter that it was expanded from")):
        for kind in (AGD, WSAM):
            with pytest.raises(entrain.InvalidArgument, match=f"{kind.__name__}: a parameter of shape .* {says}"):
                kind([torch.nn.Parameter(tensor)])
    with pytest.raises(entrain.InvalidArgument, match="base is 'lion'"):
        WSAM(params, base="lion")
    with pytest.raises(entrain.InvalidArgument, match="step needs a closure"):
        WSAM(params).step()


MAKES = {"AGD": lambda params: AGD(params, lr=0.01, amsgrad=True),
         "maximize": lambda params: AGD(params, lr=0.01, maximize=True, foreach=True),
         "WSAM": lambda params: WSAM(params, lr=0.01, base="adamw"), "WSAM sgd": lambda params: WSAM(params, lr=0.01, momentum=0.9)}


def walk(optimizer, param, weights, steps, after=lambda: None):
    def closure():
        optimizer.zero_grad()
        loss = (param.float() * weights).sin().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        after()


@pytest.mark.parametrize("name", MAKES)
def test_strided_parameters_are_stepped_as_contiguous_ones(name):
    torch.manual_seed(1)
    values, weights = torch.randn(5, 7), torch.randn(5, 7)
    whole, turned = torch.nn.Parameter(values.clone()), torch.nn.Parameter(values.t().contiguous().t())
    assert not turned.is_contiguous()
    for param in (whole, turned):
        walk(MAKES[name]([param]), param, weights, 5)
    assert torch.equal(whole, turned) and not torch.equal(whole, values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_are_stepped_in_f32_and_rounded(dtype):
    torch.manual_seed(1)
    values, weights = torch.randn(40).to(dtype), torch.randn(40)
    short, long = torch.nn.Parameter(values.clone()), torch.nn.Parameter(values.float())

    def rounded():
        long.data.copy_(long.to(dtype))

    walk(AGD([short], lr=0.05), short, weights.to(dtype).float(), 4)
    optimizer = AGD([long], lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        (long * weights.to(dtype).float()).sin().sum().backward()
        long.grad.copy_(long.grad.to(dtype))  # the gradient of a short parameter is short
        optimizer.step()
        rounded()
    assert torch.equal(short.float(), long) and not torch.equal(short, values)


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("kind", ["bf16", "strided"])
def test_the_state_of_other_parameters_goes_on_bit_for_bit(name, kind):
    torch.manual_seed(1)
    values, weights = torch.randn(5, 7), torch.randn(5, 7)
    make = {"bf16": lambda: torch.nn.Parameter(values.bfloat16()), "strided": lambda: torch.nn.Parameter(values.t().contiguous().t())}[kind]
    param = make()
    optimizer = MAKES[name]([param])
    walk(optimizer, param, weights, 3)
    other = torch.nn.Parameter(param.detach().clone())
    again = MAKES[name]([other])
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    walk(optimizer, param, weights, 3)
    walk(again, other, weights, 3)
    assert torch.equal(param, other)


def test_sparse_gradients_are_stepped_as_dense_ones():
    found = []
    for sparse in (False, True):
        torch.manual_seed(2)
        table = torch.nn.Embedding(6, 3, sparse=sparse)
        optimizer = AGD(table.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 4, 1])).square().sum().backward()
            optimizer.step()
        found.append(table.weight.detach())
    assert torch.equal(*found)


def test_importing_the_package_does_not_import_what_takes_a_second():
    heavy = ("torch.distributed.tensor", "torch.distributed.fsdp")
    assert script(f"import sys, entrain.torch; print([name for name in {heavy!r} if name in sys.modules])").strip() == "[]"
