"""Averages the gradients of plain modules over replicas during the backward pass, one layer at a time."""
from __future__ import annotations

import dataclasses
from typing import Callable, List, Optional, Sequence, Set

import torch
from torch import Tensor, nn

from .._library import lib
from ..comm import Comm
from ..errors import ErrorRecord, FailedPrecondition
from ..works import Work
from ._layers import Layer
from ._reports import span


@dataclasses.dataclass
class _Part:
    """The gradients of one layer."""

    params: List[nn.Parameter]
    #: All gradients, then 1 or 0 for each parameter: whether it has a gradient. The first part has after these a number
    #: for each part: whether a gradient was added after its all-reduce had started; and the number of this mean.
    flat: Tensor
    #: The parameters to which this pass has added a gradient.
    added: Set[int] = dataclasses.field(default_factory=set)
    work: Optional[Work[Tensor]] = None
    late: bool = False  # a gradient was added after the start

    @property
    def sizes(self) -> List[int]:
        numbers = [param.numel() for param in self.params]
        return [*numbers, len(numbers), self.flat.numel() - sum(numbers) - len(numbers)]


class GradientMean:
    """Averages the gradients of `layers` over `comm` in each backward pass in which `due()` returns true. A layer's all-reduce
    starts when all its parameters have a gradient, and runs during the rest of the pass; that of the first layer starts at the
    end. The pass ends when all averages have come. A parameter without a gradient on this rank gets one if it has one on
    another rank. `memory` is the communicator that allocates the arrays.

    The mean is right whatever autograd does, because the mean of a mean is the same mean: several passes in a step, a layer
    that gets gradients in several parts of a pass (reentrant checkpointing, shared weights), layers without a gradient on some
    rank. But all ranks must make the same number of passes in a step (FailedPrecondition).
    `deferred()` says that somebody else (DistributedDataParallel) also writes gradients at the end of the pass, and before
    this mean must be made."""

    def __init__(self, layers: Sequence[Layer], comm: Comm, memory: Comm, due: Callable[[], bool],
                 deferred: Callable[[], bool]) -> None:
        self._comm, self._due, self._deferred = comm, due, deferred
        self._parts: List[_Part] = []
        self._queued = False  # _end runs at the end of this pass
        self._number = 0  # of means since `begin_step`
        for index, layer in enumerate(layers):
            params = [param for _, param in layer.params]
            count = sum(param.numel() for param in params) + len(params) + (0 if index else len(layers) + 1)
            self._parts.append(_Part(params, torch.from_numpy(memory.alloc(count, "f32"))))

    @property
    def averaged(self) -> bool:
        """Whether gradients were averaged since `begin_step`."""
        return self._number > 0

    def begin_step(self) -> None:
        self._number = 0

    def begin_pass(self) -> None:
        """Must be called before a forward pass. Forgets a backward pass that has raised an exception."""
        if self._queued:
            self._queued = False
            for part in self._parts:
                part.added.clear()
                part.late = part.work is not None

    def average(self) -> None:
        """Averages the gradients as they are. Collective."""
        self._number += 1
        for index in reversed(range(len(self._parts))):
            if self._parts[index].work is None:
                self._start(index)
        for number in self._finish(self._parts[0]):
            part = self._parts[number]
            assert part.work is not None
            part.work.wait()  # not the mean of all gradients
            self._start(number)
        for part in self._parts[1:]:
            self._finish(part)

    def added(self, index: int, param: Tensor) -> None:
        """Must be called when the backward pass has added a gradient to a parameter of layer `index`."""
        part = self._parts[index]
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # type: ignore[attr-defined]
        part.late = part.work is not None
        part.added.add(id(param))
        if index and part.work is None and len(part.added) == len(part.params) and self._due() and not self._deferred():
            self._start(index)

    def _end(self) -> None:
        if self._deferred():
            # What was queued during the pass, by DistributedDataParallel, runs before what is queued now.
            torch.autograd.Variable._execution_engine.queue_callback(self._last)  # type: ignore[attr-defined]
        else:
            self._last()

    def _last(self) -> None:
        self._queued = False
        if self._due():
            with span("mean"):
                self.average()
        for part in self._parts:
            part.added.clear()

    @torch.no_grad()
    def _start(self, index: int) -> None:
        part = self._parts[index]
        pieces = part.flat.split(part.sizes)
        for number, (param, piece) in enumerate(zip(part.params, pieces)):
            pieces[-2][number] = param.grad is not None
            if param.grad is None:
                piece.zero_()
            else:
                piece.copy_(param.grad.reshape(-1))
        if index == 0:
            for number, other in enumerate(self._parts):
                pieces[-1][number] = other.late
            pieces[-1][-1] = self._number
        # Tagged by the layer's number, because replicas may come to their layers in different orders.
        part.work = self._comm.all_reduce(part.flat, op="avg", async_=True, tag=index)

    @torch.no_grad()
    def _finish(self, part: _Part) -> List[int]:
        """Waits for the means and writes them. Returns the parts whose gradients were not all in their all-reduce on some
        rank, if `part` has these numbers."""
        assert part.work is not None
        part.work.wait()
        part.work, part.late = None, False
        pieces = part.flat.split(part.sizes)
        if pieces[-1].numel() and float(pieces[-1][-1]) != self._number:
            raise FailedPrecondition(ErrorRecord(
                code=lib.ENTRAIN_FAILED_PRECONDITION,
                text=f"warm-up: this rank averages the gradients of a step for the {self._number}th time, and others for another: "
                     "replicas make different numbers of backward passes in a step. Give each the same number, or "
                     "gradient_accumulation_steps, the number that all make, so that they are averaged once"))
        somewhere = (pieces[-2] > 0).tolist()
        for param, piece, present in zip(part.params, pieces, somewhere):
            if present and param.grad is None:
                param.grad = piece.view(param.shape).to(param.device, param.dtype, copy=True)
            elif present:
                param.grad.copy_(piece.view(param.shape))
        return (pieces[-1][:-1] > 0).nonzero().flatten().tolist()  # type: ignore[no-any-return]
