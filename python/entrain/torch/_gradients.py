"""Averages the gradients of plain modules over replicas during the backward pass, one layer at a time."""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, List, Optional, Sequence

import torch
from torch import Tensor, nn

from ..comm import Comm
from ..works import Work
from ._layers import Layer


@dataclasses.dataclass
class _Part:
    """The gradients of one layer."""

    params: List[nn.Parameter]
    #: All gradients, then 1 or 0 for each parameter: whether it has a gradient.
    flat: Tensor
    computed: bool = False
    work: Optional[Work[Tensor]] = None


class GradientMean:
    """Averages the gradients of `layers` over `comm` in each backward pass in which `due()` returns true, until
    `close`. A layer's all-reduce starts when its last gradient has been added, and runs during the rest of the pass.
    The pass ends when all averages have come. A parameter without a gradient on this rank gets one if it has one on
    another rank. `memory` is the communicator that allocates the arrays."""

    def __init__(self, layers: Sequence[Layer], comm: Comm, memory: Comm, due: Callable[[], bool]) -> None:
        self._comm, self._due = comm, due
        self._parts: List[_Part] = []
        self._all_computed = False
        self._hooks: List[Any] = []
        watch = torch.autograd.graph.register_multi_grad_hook
        for index, layer in enumerate(layers):
            params = [param for _, param in layer.params]
            flat = torch.from_numpy(memory.alloc(sum(param.numel() for param in params) + len(params), "f32"))
            self._parts.append(_Part(params, flat))
            # These hooks run before the last gradient is added to its parameter.
            self._hooks.append(watch(params, functools.partial(self._layer_computed, index)))
            self._hooks += [param.register_post_accumulate_grad_hook(functools.partial(self._added, index)) for param in params]
        self._hooks.append(watch([param for part in self._parts for param in part.params], self._computed))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _layer_computed(self, index: int, gradients: Any) -> None:
        self._parts[index].computed = True

    def _computed(self, gradients: Any) -> None:
        self._all_computed = True

    @torch.no_grad()
    def _added(self, index: int, param: Tensor) -> None:
        part, last = self._parts[index], self._all_computed
        if not part.computed:
            return
        part.computed = self._all_computed = False
        if not self._due():
            return
        # Averaging an average again does not change it, so a step may have several backward passes.
        self._start(index)
        if last:
            for other in range(len(self._parts)):
                if self._parts[other].work is None:  # no gradient of this layer was computed here
                    self._start(other)
            for part in self._parts:
                self._finish(part)

    def _start(self, index: int) -> None:
        part = self._parts[index]
        pieces = part.flat.split([param.numel() for param in part.params] + [len(part.params)])
        for number, (param, piece) in enumerate(zip(part.params, pieces)):
            pieces[-1][number] = param.grad is not None
            if param.grad is None:
                piece.zero_()
            else:
                piece.copy_(param.grad.reshape(-1))
        # Tagged by the layer's number, because replicas may come to their layers in different orders.
        part.work = self._comm.all_reduce(part.flat, op="avg", async_=True, tag=index)

    def _finish(self, part: _Part) -> None:
        assert part.work is not None
        part.work.wait()
        part.work = None
        pieces = part.flat.split([param.numel() for param in part.params] + [len(part.params)])
        somewhere = (pieces[-1] > 0).tolist()
        for param, piece, present in zip(part.params, pieces, somewhere):
            if present and param.grad is None:
                param.grad = piece.view(param.shape).to(param.dtype, copy=True)
            elif present:
                param.grad.copy_(piece.view(param.shape))
