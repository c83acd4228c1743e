"""AGD and WSAM as optimizers of PyTorch, with the library's kernels, in place on the tensors' memory. f32, on the
CPU."""
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
                state[name] = torch.zeros_like(param, memory_format=torch.contiguous_format)
        state["step"] += 1
        return [local_of(state[name]) for name in names]

    def __getstate__(self) -> Dict[str, Any]:
        state = dict(super().__getstate__())
        state["_optims"] = {}
        return state


def _evaluate(closure: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        return closure()


class AGD(_Flat):
    """AGD (arXiv 2312.01658): the preconditioner is the change of the gradient; entrain/optim.h has the rule. Begin
    with a tenth of AdamW's learning rate.

    lr, betas, weight_decay and so on may differ between parameter groups. delta: 1e-14 is usual for transformers.
    clip: largest quotient of an element, 0: off. decay: "decoupled", "fixed", "coupled". DTensors are stepped shard
    by shard. Parameters without a gradient do not change. Parameters other than contiguous f32 on the CPU raise
    entrain.InvalidArgument."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), delta: float = 1e-5,
                 weight_decay: float = 0.0, clip: float = 0.0, decay: str = "decoupled", amsgrad: bool = False,
                 win: bool = False) -> None:
        super().__init__(params, "agd", lr, {"betas": betas, "delta": delta, "weight_decay": weight_decay, "clip": clip,
                                             "decay": decay, "amsgrad": amsgrad, "win": win})

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes one step. `closure` as in every optimizer of PyTorch."""
        loss = None if closure is None else _evaluate(closure)
        for group in self.param_groups:
            optim = self._optim(group)
            for param in group["params"]:
                if param.grad is None:
                    continue
                arrays = self._arrays(param, group, optim.state_arrays)
                optim.step(local_of(param.data) if is_dtensor(param) else param, local_of(param.grad).contiguous(), arrays,
                           self.state[param]["step"], float(group["lr"]))
        return loss


class WSAM(_Flat):
    """Weighted sharpness-aware minimisation (arXiv 2305.15817) around SGD, AdamW or AGD of the library. `step` takes a
    closure that clears the gradients, computes the loss, calls backward and returns the loss. `step` calls the closure
    twice, at w and at w + e.

    base      "sgd", "adamw" or "agd", with the options of entrain.Optim by keyword: momentum, betas, weight_decay, ...
    rho       length of e. gamma in [0, 1): 0 is the base optimizer alone, 1/2 SAM
    max_norm  clips both gradients by their norms over all parameters; 0: off

    Each process has its own perturbation (as published). If the backward pass averages gradients over workers, as in
    the warm-up of EDiT and in DDP, all have the same perturbation. DTensors are refused."""

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
        first = [param.grad.contiguous().clone() for _, _, param in entries]  # type: ignore[union-attr]
        total = sum(ascent.ascent_sum(param, gradient) for (ascent, _, param), gradient in zip(entries, first))
        saved = [torch.empty_like(param) for _, _, param in entries]
        for (ascent, _, param), gradient, copy in zip(entries, first, saved):
            ascent.ascend(param, copy, gradient, total)
        try:
            _evaluate(closure)
        finally:
            for (ascent, _, param), copy in zip(entries, saved):
                ascent.restore(param, copy)
        second = [torch.zeros_like(g) if param.grad is None else param.grad.contiguous()
                  for (_, _, param), g in zip(entries, first)]
        sums = None
        if self._settings["max_norm"] > 0:
            sums = (sum(float(g.double().square().sum()) for g in first), sum(float(g.double().square().sum()) for g in second))
        for (ascent, group, param), g, g2 in zip(entries, first, second):
            arrays = self._arrays(param, group, ascent.state_arrays)
            ascent.step(param, g, g2, arrays, self.state[param]["step"], float(group["lr"]), sums)
        return loss
