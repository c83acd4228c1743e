"""Optimizers of torch.optim as the outer optimizer, if the library does not have them itself."""
from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..errors import invalid
from ._layers import Layer, like, local_of


@dataclasses.dataclass
class _Part:
    """This rank's part of a parameter's anchor, in the form that the optimizer takes."""

    name: str
    param: nn.Parameter
    #: Has memory only inside a step.
    shell: nn.Parameter
    #: A template of the state that the optimizer has after a step: tensors and numbers. Their values do not matter.
    kept: Dict[str, Any]


#: Makes a scheduler of torch.optim.lr_scheduler for the optimizer that it is given.
OuterScheduler = Callable[[torch.optim.Optimizer], Any]


class Rates:
    """The rates of a scheduler of torch.optim.lr_scheduler by the number of the outer step, from 1, so that they are the same on all
    ranks, for each layer, after a load and on a newcomer. The scheduler works on an optimizer without parameters of the model."""

    def __init__(self, make: OuterScheduler, lr: float, momentum: float) -> None:
        if isinstance(make, torch.optim.lr_scheduler.LRScheduler):
            raise invalid("EDiT", "outer_scheduler is a scheduler, which has an optimizer already; expected a function that makes it: "
                                  f"lambda optimizer: {type(make).__name__}(optimizer, ...)")
        self._optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr, momentum=momentum)
        self._scheduler = make(self._optimizer)
        if not isinstance(self._scheduler, torch.optim.lr_scheduler.LRScheduler) or \
                isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise invalid("EDiT", f"outer_scheduler makes {type(self._scheduler).__name__}; expected a scheduler of "
                                  "torch.optim.lr_scheduler whose rates follow from the number of steps alone")
        self._known: List[Tuple[float, float]] = []
        self._lock = threading.Lock()

    def of(self, step: int) -> Tuple[float, float]:
        """Returns the learning rate and the momentum of outer step `step`."""
        with self._lock:
            while len(self._known) < step:
                if self._known:
                    self._optimizer.step()  # without gradients it does nothing; the scheduler expects the call
                    self._scheduler.step()
                group = self._optimizer.param_groups[0]
                self._known.append((float(group["lr"]), float(group["momentum"])))
            return self._known[step - 1]


class TorchOuter:
    """Implements EditConfig.outer_step with an optimizer of torch.optim, one for each layer. Thread safety: the library
    calls the object during an exchange. The other methods must be called while there is no exchange."""

    def __init__(self, kind: Type[torch.optim.Optimizer], arguments: Mapping[str, Any]) -> None:
        self._kind, self._arguments = kind, dict(arguments)
        self.rates: Optional[Rates] = None  # of a scheduler
        self._parts: List[List[_Part]] = []
        self._optimizers: List[torch.optim.Optimizer] = []
        self._layers: Sequence[Layer] = ()
        self._kept(torch.zeros(1, 1))  # reports errors before any collective call

    @property
    def name(self) -> str:
        return self._kind.__name__

    def schedule(self, make: OuterScheduler) -> None:
        """The rates become those of the scheduler."""
        group = self._make([nn.Parameter(torch.zeros(1))]).param_groups[0]
        self.rates = Rates(make, float(group["lr"]), float(group.get("momentum", 0)))

    def bind(self, layers: Sequence[Layer], *, whole: bool) -> None:
        """Must be called once, after the layers are known. whole: this rank has all of each parameter."""
        self._layers = layers
        for layer in layers:
            parts = []
            for name, param in layer.params:
                shell = nn.Parameter(torch.zeros(local_of(param).shape))
                kept = self._kept(torch.zeros_like(shell))
                strange = [key for key, value in kept.items() if np.ndim(value) and value.shape != shell.shape]
                if strange and not whole:
                    raise invalid("EDiT", f"the outer {self.name} keeps {strange[0]} of the shape {tuple(kept[strange[0]].shape)} for "
                                          f"{name}; expected an optimizer that steps each element by itself, since a replica has "
                                          "several ranks")
                parts.append(_Part(name, param, shell, kept))
            self._parts.append(parts)
            self._optimizers.append(self._make([part.shell for part in parts]))
            self._take_memory(parts)

    def _make(self, params: List[nn.Parameter]) -> torch.optim.Optimizer:
        try:
            return self._kind(params, **self._arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise invalid("EDiT", f"the outer {self.name} cannot be made: {error}") from error

    def _kept(self, values: Tensor) -> Dict[str, Any]:
        param = nn.Parameter(values)
        param.grad = torch.zeros_like(values)
        optimizer = self._make([param])
        try:
            optimizer.step()
        except (TypeError, RuntimeError) as error:
            raise invalid("EDiT", f"the outer {self.name} cannot make a step: {error}") from error
        return {key: value for key, value in optimizer.state[param].items() if value is not None}

    @staticmethod
    def _take_memory(parts: Sequence[_Part]) -> None:
        for part in parts:
            part.shell.grad = None
            part.shell.data = torch.empty(0)

    def __call__(self, layer: int, step: int, anchor: npt.NDArray[np.float32], grad: npt.NDArray[np.float32]) -> None:
        values, gradients, parts = torch.from_numpy(anchor), torch.from_numpy(grad), self._parts[layer]
        offset = 0
        # Padding at the end may be absent from the arrays.
        for part, room in zip(parts, self._layers[layer].rooms):
            local = local_of(part.param)
            part.shell.data = values[offset:offset + local.numel()].view(local.shape)
            part.shell.grad = gradients[offset:offset + local.numel()].view(local.shape)
            offset += room
        if self.rates is not None:
            for group in self._optimizers[layer].param_groups:
                group["lr"], momentum = self.rates.of(step)
                if "momentum" in group:
                    group["momentum"] = momentum
        try:
            self._optimizers[layer].step()
        finally:
            self._take_memory(parts)

    def state(self, suffix: str, *, zeros: bool = False) -> Dict[str, Tensor]:
        """Returns copies of the optimizers' states, named "outer/KEY`suffix`/PARAMETER". States with the shape of a
        sharded parameter are DTensors. KEY "known" is 1 if there is a state. If there is none, "known" and all other
        values are zero. zeros: all values are zero."""
        found: Dict[str, Tensor] = {}
        for optimizer, part in self._each():
            state = {} if zeros else optimizer.state.get(part.shell, {})
            found[f"outer/known{suffix}/{part.name}"] = torch.tensor(int(bool(state)))
            for key, template in part.kept.items():
                value = torch.as_tensor(state.get(key, 0), dtype=getattr(template, "dtype", torch.float64))
                value = value.detach().expand(np.shape(template)).clone()
                part_of_param = np.ndim(template) and template.shape == local_of(part.param).shape
                found[f"outer/{key}{suffix}/{part.name}"] = like(value, part.param) if part_of_param else value
        return found

    def parse(self, state: Mapping[str, Tensor], suffix: str) -> "List[Dict[str, Any]]":
        """Converts the result of `state` to the argument of `install`. A KeyError names a missing entry."""
        found = []
        for _, part in self._each():
            values: Dict[str, Any] = {}
            for key, template in part.kept.items():
                value = local_of(state[f"outer/{key}{suffix}/{part.name}"].detach())
                values[key] = value.reshape(template.shape).clone() if isinstance(template, Tensor) else type(template)(value)
            found.append(values if int(state[f"outer/known{suffix}/{part.name}"]) else {})
        return found

    def install(self, states: "List[Dict[str, Any]]") -> None:
        for (optimizer, part), values in zip(self._each(), states):
            optimizer.state.pop(part.shell, None)
            if values:
                optimizer.state[part.shell] = values

    def _each(self) -> Iterator[Tuple[torch.optim.Optimizer, _Part]]:
        for optimizer, parts in zip(self._optimizers, self._parts):
            for part in parts:
                yield optimizer, part
