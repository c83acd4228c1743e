"""AGD and WSAM as optimizers of PyTorch, with the library's kernels. They work in f32. Contiguous f32 parameters on the CPU are
stepped in place. Other parameters (bf16, f16, strided, on a device) are stepped in f32 copies, and rounded after each step. The
state is f32, on the CPU."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor

from ..errors import invalid
from ..optim import WSAM as Ascent
from ..optim import Optim
from ._layers import is_dtensor, local_of

_STATE = {"sgd": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}


def _names(kind: str, options: Dict[str, Any]) -> Tuple[str, ...]:
    if kind != "agd":
        return _STATE[kind]
    return ("exp_avg", "exp_avg_diff_sq", *(("max_exp_avg_diff_sq",) if options["amsgrad"] else ()),
            *(("accelerated",) if options["win"] else ()))


class _Flat(torch.optim.Optimizer):
    """Steps each parameter by an Optim with the options of its group. Groups may differ in all options."""

    def __init__(self, params: Any, kind: str, lr: float, options: Dict[str, Any]) -> None:
        self._kind = kind
        self._optims: Dict[Tuple[Any, ...], Optim] = {}
        self._options = sorted(options)
        super().__init__(params, {"lr": lr, **options})

    def add_param_group(self, group: Dict[str, Any]) -> None:
        """Adds a group of parameters, with options of its own. Refuses types that f32 does not hold."""
        super().add_param_group(group)
        for param in self.param_groups[-1]["params"]:
            local = local_of(param.detach())
            if local.dtype not in (torch.float32, torch.bfloat16, torch.float16) or local.layout is not torch.strided:
                raise invalid(type(self).__name__, f"a parameter of shape {tuple(param.shape)} is {local.dtype}, {local.layout}; expected "
                                                   "strided f32, bf16 or f16, since the steps are made in f32")
            if local.numel() and any(size > 1 and stride == 0 for size, stride in zip(local.shape, local.stride())):
                raise invalid(type(self).__name__, f"a parameter of shape {tuple(param.shape)} is expanded (strides {local.stride()}): its "
                                                   "elements share memory; give the parameter that it was expanded from")

    @torch.no_grad()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As every optimizer of PyTorch, which gives arrays the types of the parameters; these stay f32."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(saved, own):
            if _is_f32(local_of(param)):
                continue
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor) and not is_dtensor(value):
                    self.state[param][name] = value.detach().to("cpu", torch.float32, copy=True)

    def _optim(self, group: Dict[str, Any]) -> Optim:
        key = tuple(tuple(group[name]) if name == "betas" else group[name] for name in self._options)
        if key not in self._optims:
            options = {name: group[name] for name in self._options}
            betas = options.pop("betas", None)
            if betas is not None:
                options["beta1"], options["beta2"] = betas
            self._optims[key] = Optim(self._kind, **options)
        return self._optims[key]

    def _arrays(self, param: Tensor, group: Dict[str, Any], count: int) -> List[Tensor]:
        """Returns the state arrays of a parameter, and counts its step."""
        state = self.state[param]
        names = _names(self._kind, group)[:count]
        if not state:
            state["step"] = 0
            for name in names:
                state[name] = torch.zeros_like(param, memory_format=torch.contiguous_format) if is_dtensor(param) else \
                    torch.zeros(param.shape)
        state["step"] += 1
        return [local_of(state[name]) for name in names]

    def __getstate__(self) -> Dict[str, Any]:
        state = dict(super().__getstate__())
        state["_optims"] = {}
        return state


def _is_f32(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()


def _f32(tensor: Tensor) -> Tensor:
    """Returns the tensor, or a copy in f32 on the CPU."""
    return tensor if _is_f32(tensor) else tensor.detach().to("cpu", torch.float32, memory_format=torch.contiguous_format, copy=True)


def _back(tensor: Tensor, values: Tensor) -> None:
    """Writes what `_f32` has returned, if it is a copy."""
    if values is not tensor:
        tensor.copy_(values)


def _gradient(param: Tensor) -> Tensor:
    """Returns the gradient as contiguous f32 on the CPU, also that of an embedding with sparse gradients."""
    assert param.grad is not None
    gradient = local_of(param.grad)
    return _f32(gradient.to_dense() if gradient.layout is not torch.strided else gradient)


def _evaluate(closure: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        return closure()


class AGD(_Flat):
    """AGD (arXiv 2312.01658): the preconditioner is the change of the gradient; entrain/optim.h has the rule. Begin
    with a tenth of AdamW's learning rate.

    lr, betas, weight_decay and so on may differ between parameter groups. delta: 1e-14 is usual for transformers. clip: the largest
    quotient of an element; 0: no limit. decay: "decoupled", "fixed" or "coupled". maximize: the steps let the loss grow. foreach has
    no effect, because the library's kernels step whole arrays. DTensors of f32 are stepped shard by shard. Parameters without a
    gradient do not change. f64 and complex parameters are refused (entrain.InvalidArgument)."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), delta: float = 1e-5,
                 weight_decay: float = 0.0, clip: float = 0.0, decay: str = "decoupled", amsgrad: bool = False,
                 win: bool = False, *, foreach: Optional[bool] = None, maximize: bool = False) -> None:
        self._maximize = maximize
        super().__init__(params, "agd", lr, {"betas": betas, "delta": delta, "weight_decay": weight_decay, "clip": clip,
                                             "decay": decay, "amsgrad": amsgrad, "win": win})

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes one step. `closure` is as in every optimizer of PyTorch."""
        loss = None if closure is None else _evaluate(closure)
        for group in self.param_groups:
            optim = self._optim(group)
            for param in group["params"]:
                if param.grad is None:
                    continue
                arrays = self._arrays(param, group, optim.state_arrays)
                local = local_of(param.data) if is_dtensor(param) else param
                values, gradient = _f32(local), _gradient(param)
                optim.step(values, gradient.neg() if self._maximize else gradient, arrays, self.state[param]["step"], float(group["lr"]))
                _back(local, values)
        return loss


class WSAM(_Flat):
    """Weighted sharpness-aware minimisation (arXiv 2305.15817) around SGD, AdamW or AGD of the library. `step` takes a
    closure that clears the gradients, computes the loss, calls backward and returns the loss. `step` calls the closure
    twice, at w and at w + e.

    base      "sgd", "adamw" or "agd", with the options of entrain.Optim by keyword: momentum, betas, weight_decay, ...
    rho       length of e. gamma in [0, 1): 0 is the base optimizer alone, 1/2 SAM
    max_norm  clips both gradients by their norms over all parameters; 0: off

    Each process has its own perturbation (as published). But if the backward pass averages gradients over workers, as in the warm-up
    of EDiT and in DDP, all workers have the same perturbation. DTensors are refused."""

    def __init__(self, params: Any, lr: float = 1e-3, base: str = "sgd", *, rho: float = 0.05, gamma: float = 0.9,
                 sam_eps: float = 1e-12, max_norm: float = 0.0, adaptive: bool = False, decouple: bool = True,
                 **options: Any) -> None:
        defaults: Dict[str, Dict[str, Any]] = {
            "sgd": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
            "adamw": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
            "agd": {"betas": (0.9, 0.999), "delta": 1e-5, "weight_decay": 0.0, "clip": 0.0, "decay": "decoupled",
                    "amsgrad": False, "win": False}}
        if base not in defaults:
            raise invalid("WSAM", f"base is {base!r}; expected one of {', '.join(defaults)}")
        for name in options:
            if name not in defaults[base]:
                raise invalid("WSAM", f"{base} has no option {name!r}; it has {', '.join(defaults[base])}")
        self._settings: Dict[str, Any] = {"rho": rho, "gamma": gamma, "sam_eps": sam_eps, "max_norm": max_norm, "adaptive": adaptive,
                          "decouple": decouple}
        self._ascents: Dict[int, Ascent] = {}
        super().__init__(params, base, lr, {**defaults[base], **options})

    def __getstate__(self) -> Dict[str, Any]:
        return {**super().__getstate__(), "_ascents": {}}

    def _ascent(self, group: Dict[str, Any]) -> Ascent:
        optim = self._optim(group)
        if id(optim) not in self._ascents:
            self._ascents[id(optim)] = Ascent(optim, **self._settings)
        return self._ascents[id(optim)]

    def _with_gradients(self) -> Iterable[Tuple[Ascent, Dict[str, Any], Tensor]]:
        for group in self.param_groups:
            for param in group["params"]:
                if is_dtensor(param):
                    raise invalid("WSAM", "a parameter is a DTensor; WSAM needs the norm over all parts of it")
                if param.grad is not None:
                    yield self._ascent(group), group, param

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes one step. Returns the loss at w."""
        if closure is None:
            raise invalid("WSAM", "step needs a closure: a step takes two gradients")
        loss = _evaluate(closure)
        entries = list(self._with_gradients())
        first = [_gradient(param).clone() for _, _, param in entries]
        masters = [_f32(param) for _, _, param in entries]
        total = sum(ascent.ascent_sum(values, gradient) for (ascent, _, _), values, gradient in zip(entries, masters, first))
        saved = [torch.empty_like(values) for values in masters]
        for (ascent, _, param), values, gradient, copy in zip(entries, masters, first, saved):
            ascent.ascend(values, copy, gradient, total)
            _back(param, values)
        try:
            _evaluate(closure)
        finally:
            for (ascent, _, param), values, copy in zip(entries, masters, saved):
                ascent.restore(values, copy)
                _back(param, values)
        second = [torch.zeros_like(g) if param.grad is None else _gradient(param) for (_, _, param), g in zip(entries, first)]
        sums = None
        if self._settings["max_norm"] > 0:
            sums = (sum(float(g.double().square().sum()) for g in first), sum(float(g.double().square().sum()) for g in second))
        for (ascent, group, param), values, g, g2 in zip(entries, masters, first, second):
            arrays = self._arrays(param, group, ascent.state_arrays)
            ascent.step(values, g, g2, arrays, self.state[param]["step"], float(group["lr"]), sums)
            _back(param, values)
        return loss
