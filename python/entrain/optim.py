"""Optimizers over flat f32 arrays (entrain/optim.h): SGD, AdamW, AGD, and WSAM around any of them.

A step on a part of the arrays gives this part the same values as a step on the whole arrays. So each rank can step its
own shard.
Arrays are contiguous, in host memory, and updated in place."""
from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple

from ._library import NULL, ffi, lib, new_struct
from .arrays import Buffer, DType, buffer_of
from .errors import check, invalid
from .lifetime import Handle, Life, inside
from .reductions import constant


def _flat(operation: str, name: str, array: Any, count: Optional[int], writable: bool) -> Buffer:
    buffer = buffer_of(operation, name, array, writable=writable)
    if buffer.dtype is not DType.F32:
        raise invalid(operation, f"{name} is {buffer.dtype.name.lower()}; optimizers take f32")
    if count is not None and buffer.count != count:
        raise invalid(operation, f"{name} has {buffer.count} elements; params has {count}")
    return buffer


def _states(operation: str, state: Sequence[Any], arrays: int, count: int) -> Tuple[Any, List[Buffer]]:
    if len(state) != arrays:
        raise invalid(operation, f"state has {len(state)} arrays; the optimizer has {arrays}")
    buffers = [_flat(operation, f"state[{i}]", array, count, True) for i, array in enumerate(state)]
    return ffi.new("void*[]", [buffer.pointer for buffer in buffers]) if buffers else NULL, buffers


@dataclasses.dataclass(frozen=True)
class OptimInfo:
    """For agd: the number of element updates by all steps, and how many of them took the adaptive branch. Both are 0
    for other kinds."""

    elements: int
    adaptive: int


class Optim(Handle):
    """An optimizer without state of its own. The caller owns `state_arrays` f32 arrays as long as the parameters,
    zero before the first step. To save an optimizer, save these arrays and the number of the step."""

    _what = "optimizer"

    def __init__(self, kind: str, *, momentum: float = 0.0, nesterov: bool = False, beta1: Optional[float] = None,
                 beta2: Optional[float] = None, eps: Optional[float] = None, weight_decay: float = 0.0,
                 delta: Optional[float] = None, clip: float = 0.0, decay: str = "decoupled", amsgrad: bool = False,
                 win: bool = False) -> None:
        """kind: "sgd", "adamw" or "agd" (arXiv 2312.01658; begin with a tenth of AdamW's learning rate). None: the
        library's default. The library refuses options that the kind does not have.

        weight_decay  sgd: added to the gradient; adamw: decoupled; agd: as `decay` says
        delta         agd: default 1e-5; for transformers 1e-14 is usual
        clip          agd: largest quotient of an element; 0: off
        decay         agd: "decoupled", "fixed", "coupled"
        amsgrad, win  agd: the largest second moment so far; decay within an accelerated step"""
        config = new_struct("optim_config")
        config.kind = constant("OPTIM", kind, "kind")
        config.nesterov, config.momentum, config.weight_decay = nesterov, momentum, weight_decay
        for name, value in (("beta1", beta1), ("beta2", beta2), ("eps", eps), ("delta", delta)):
            if value is not None:
                setattr(config, name, value)
        config.clip, config.decay, config.amsgrad, config.win = clip, constant("DECAY", decay, "decay"), amsgrad, win
        out = ffi.new("entrain_optim_t**")
        check(lib.entrain_optim_create(config, out))
        super().__init__(Life(out[0], lib.entrain_optim_destroy))
        arrays = ffi.new("int32_t*")
        self._call(lib.entrain_optim_state_arrays, arrays)
        #: The number of state arrays that a step needs.
        self.state_arrays = int(arrays[0])

    @classmethod
    def sgd(cls, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> "Optim":
        """SGD; momentum in [0, 1)."""
        return cls("sgd", momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)

    @classmethod
    def adamw(cls, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0) -> "Optim":
        """AdamW with decoupled weight decay."""
        return cls("adamw", beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)

    @classmethod
    def agd(cls, *, beta1: float = 0.9, beta2: float = 0.999, delta: float = 1e-5, weight_decay: float = 0.0,
            clip: float = 0.0, decay: str = "decoupled", amsgrad: bool = False, win: bool = False) -> "Optim":
        """AGD; see __init__."""
        return cls("agd", beta1=beta1, beta2=beta2, delta=delta, weight_decay=weight_decay, clip=clip, decay=decay,
                   amsgrad=amsgrad, win=win)

    def step(self, params: Any, grads: Any, state: Sequence[Any], step: int, lr: float) -> None:
        """Makes one step in this thread and updates `params` and `state` in place. `step` counts from 1. Several
        threads may step different slices of one vector at once."""
        p = _flat("step", "params", params, None, True)
        g = _flat("step", "grads", grads, p.count, False)
        pointers, _kept = _states("step", state, self.state_arrays, p.count)
        self._call(lib.entrain_optim_step, p.pointer, g.pointer, pointers, p.count, p.dtype, step, lr)

    def preview(self, params: Any, grads: Any, state: Sequence[Any], out: Any, step: int, lr: float) -> None:
        """Writes to `out`, bit for bit, the parameters that `step` would compute. `params` and state do not change."""
        p = _flat("preview", "params", params, None, False)
        g = _flat("preview", "grads", grads, p.count, False)
        o = _flat("preview", "out", out, p.count, True)
        pointers, _kept = _states("preview", state, self.state_arrays, p.count)
        self._call(lib.entrain_optim_preview, p.pointer, g.pointer, pointers, o.pointer, p.count, p.dtype, step, lr)

    def info(self) -> OptimInfo:
        """Returns counts since the optimizer was made."""
        out = new_struct("optim_info")
        self._call(lib.entrain_optim_info, out)
        return OptimInfo(out.elements, out.adaptive)


class WSAM(Handle):
    """Weighted sharpness-aware minimisation (arXiv 2305.15817) around an optimizer. A step takes two gradients of the same
    data, g at w and g2 at w + e:

        g = gradient();  wsam.ascend(w, saved, g, wsam.ascent_sum(w, g))
        g2 = gradient(); wsam.restore(w, saved); wsam.step(w, g, g2, state, step, lr)

    With data parallelism: see entrain/optim.h on local and global perturbation."""

    _what = "WSAM object"

    def __init__(self, base: Optim, *, rho: float = 0.05, gamma: float = 0.9, sam_eps: float = 1e-12, max_norm: float = 0.0,
                 adaptive: bool = False, decouple: bool = True) -> None:
        """rho >= 0: length of e. gamma in [0, 1): 0 is the base optimizer alone, 1/2 SAM. max_norm: clips g and g2 by their
        norms; 0: off. `base` may be closed before this object."""
        config = new_struct("optim_config")
        config.kind = lib.ENTRAIN_OPTIM_WSAM
        config.rho, config.gamma, config.sam_eps = rho, gamma, sam_eps
        config.max_norm, config.adaptive, config.decouple = max_norm, adaptive, decouple
        out = ffi.new("entrain_optim_t**")
        with inside(base) as (config.base,):
            check(lib.entrain_optim_create(config, out))
        super().__init__(Life(out[0], lib.entrain_optim_destroy))
        self.state_arrays = base.state_arrays

    def ascent_sum(self, params: Any, grads: Any) -> float:
        """Returns the sum of g^2 over these elements (adaptive: the sum of (w g)^2). The caller adds up the sums of the
        slices of a vector."""
        p = _flat("ascent_sum", "params", params, None, False)
        g = _flat("ascent_sum", "grads", grads, p.count, False)
        total = ffi.new("double*")
        self._call(lib.entrain_wsam_ascent_sum, p.pointer, g.pointer, p.count, p.dtype, total)
        return float(total[0])

    def ascend(self, params: Any, saved: Any, grads: Any, total: float) -> None:
        """Copies `params` to `saved`, and moves `params` to w + e. `total`: ascent_sum of the whole vector."""
        p = _flat("ascend", "params", params, None, True)
        s = _flat("ascend", "saved", saved, p.count, True)
        g = _flat("ascend", "grads", grads, p.count, False)
        self._call(lib.entrain_wsam_ascend, p.pointer, s.pointer, g.pointer, p.count, p.dtype, total)

    def restore(self, params: Any, saved: Any) -> None:
        """Copies `saved` to `params`, bit for bit."""
        p = _flat("restore", "params", params, None, True)
        s = _flat("restore", "saved", saved, p.count, False)
        self._call(lib.entrain_wsam_return, p.pointer, s.pointer, p.count, p.dtype)

    def combine(self, grads: Any, second: Any, out: Any) -> None:
        """Computes out = alpha g2 + (1 - alpha) g, alpha = gamma / (1 - gamma). Only for coupled steps without
        max_norm. `out` may be g or g2."""
        g = _flat("combine", "grads", grads, None, False)
        s = _flat("combine", "second", second, g.count, False)
        o = _flat("combine", "out", out, g.count, True)
        self._call(lib.entrain_wsam_combine, g.pointer, s.pointer, o.pointer, g.count, g.dtype)

    def _arguments(self, operation: str, params: Any, grads: Any, second: Any, sums: Optional[Tuple[float, float]],
                   state: Sequence[Any], writable: bool) -> Tuple[Any, ...]:
        p = _flat(operation, "params", params, None, writable)
        g = _flat(operation, "grads", grads, p.count, False)
        s = _flat(operation, "second", second, p.count, False)
        pointers, kept = _states(operation, state, self.state_arrays, p.count)
        return p, g, s, NULL if sums is None else ffi.new("double[2]", list(sums)), pointers, kept

    def step(self, params: Any, grads: Any, second: Any, state: Sequence[Any], step: int, lr: float,
             sums: Optional[Tuple[float, float]] = None) -> None:
        """Makes one step at w, after `restore`. `sums`: with max_norm the sums of squares of g and g2 over the whole
        vector."""
        p, g, s, c_sums, pointers, _kept = self._arguments("step", params, grads, second, sums, state, True)
        self._call(lib.entrain_wsam_step, p.pointer, g.pointer, s.pointer, c_sums, pointers, p.count, p.dtype, step, lr)

    def preview(self, params: Any, grads: Any, second: Any, state: Sequence[Any], out: Any, step: int, lr: float,
                sums: Optional[Tuple[float, float]] = None) -> None:
        """Writes to `out` the parameters that `step` would compute."""
        p, g, s, c_sums, pointers, _kept = self._arguments("preview", params, grads, second, sums, state, False)
        o = _flat("preview", "out", out, p.count, True)
        self._call(lib.entrain_wsam_preview, p.pointer, g.pointer, s.pointer, c_sums, pointers, o.pointer, p.count,
                   p.dtype, step, lr)
