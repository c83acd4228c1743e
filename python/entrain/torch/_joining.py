"""What replicas hand to one that joins them, beside what the library sends: buffers, and states of the program's choice."""
from __future__ import annotations

import contextlib
import io
import math
import random
import time
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np
import torch
from torch import Tensor, nn

from ..comm import Comm
from ..errors import invalid
from ..store import Store
from ._layers import is_dtensor, like, local_of


_WAIT = 20.0  # seconds for the meeting, and for each piece of the state: the others wait for both at the next exchange
_PIECE = 4 << 20


class HandOver:
    """states     objects with state_dict and load_state_dict, by name
    store      where a member and a newcomer meet; None: that of the launcher
    position   this rank's number within its replica
    of         what joins, as messages name it. ACCO's replicas are ranks
    limit      seconds after which a member gives up, because the other members wait for it in their next round; None: it gives up
               only if one piece takes longer than _WAIT"""

    def __init__(self, call: str, model: nn.Module, states: Optional[Mapping[str, Any]], store: Optional[Store], position: int,
                 of: str = "replica", limit: Optional[float] = None) -> None:
        self._call, self._model, self._store, self._position = call, model, store, position
        self._states = check_states(call, "hand_over", states)
        self._of, self._limit = of, math.inf if limit is None else limit

    def meet(self, reduce: Callable[[List[float]], List[float]], replica: int, most: int, joining: bool) -> None:
        """Must be called by all ranks at the first exchange of newcomers, when it is over. `joining`: this rank's replica is one. Each
        newcomer gets the state from a member; the other members do not wait. If that fails, whatever the reason, both go on, and
        the newcomer without it: a member must not be lost through one that joins."""
        values = [0.0] * (2 * most)
        if not joining:
            values[replica] = 1
        elif self._position == 0:
            values[most + replica] = random.SystemRandom().randrange(1, 1 << 32)  # no two meetings in a store have one name
        values = reduce(values)
        members = [number for number in range(most) if values[number] > 0]
        newcomers = [number for number in range(most) if values[most + number] > 0]
        for index, newcomer in enumerate(newcomers if members else ()):
            member = members[index % len(members)]
            if replica in (member, newcomer):
                try:
                    self._pass_on(f"hand over {int(values[most + newcomer]):x} {self._position}", gives=replica == member)
                except Exception as error:  # also of state_dict, torch.save, torch.load and load_state_dict
                    lost = "its inner optimizer and its buffers begin" if self._of == "replica" else "its buffers begin"
                    warnings.warn(f"{self._call}: {self._of} {newcomer} joins without the state of {self._of} {member}: {lost} anew "
                                  f"({error})", stacklevel=2)

    def _pass_on(self, name: str, gives: bool) -> None:
        data, failure, end = np.empty(0, np.uint8), None, time.monotonic() + self._limit
        if gives:
            try:
                data = np.frombuffer(self._state().getbuffer(), np.uint8)
            except Exception as error:  # of the program; the newcomer learns of it at once
                failure = error
        with Store.open("env:") if self._store is None else contextlib.nullcontext(self._store) as store:
            comm = Comm.create(store, 0 if gives else 1, 2, name=name, timeout=min(_WAIT, self._limit / 2))
        with comm:
            length = np.array([data.size])
            comm.broadcast(length, root=0)
            if not length[0]:
                raise failure or RuntimeError("the member could not make its state; its own warning says why")
            if not gives:
                data = np.empty(int(length[0]), np.uint8)
            for first in range(0, data.size, _PIECE):
                if gives and time.monotonic() > end:
                    raise TimeoutError(f"the state of {data.size} bytes took longer than {self._limit:g} s")
                comm.broadcast(data[first:first + _PIECE], root=0)
        if not gives:
            found = torch.load(io.BytesIO(data.data), map_location="cpu", weights_only=True)
            give_states(self._states, found["states"])  # of the same names: the members have compared them (identity)
            give_buffers(self._model, found["buffers"])

    def _state(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save({"states": states_of(self._states), "buffers": dict(self._model.named_buffers())}, file)
        return file


def check_states(call: str, argument: str, states: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    found = dict(states or {})
    for name, one in found.items():
        if not (callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))):
            raise invalid(call, f"{argument}: {name} is {one!r}; expected an object with state_dict and load_state_dict")
    return found


def states_of(states: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the states with this rank's parts of the tensors that fully_shard has divided."""
    return {name: _local(one.state_dict()) for name, one in states.items()}


def give_states(states: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name, one in states.items():
        if isinstance(one, torch.optim.Optimizer):
            _divide(one, found[name])
        one.load_state_dict(found[name])


@torch.no_grad()
def give_buffers(model: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Gives the model the buffers of another one. A buffer that is None here, since the model makes it later, becomes a copy."""
    own = dict(model.named_buffers())
    for name, value in found.items():
        place, _, last = name.rpartition(".")
        if name in own:
            if own[name].shape != value.shape:
                raise RuntimeError(f"size mismatch for the buffer {name}: {list(value.shape)} was saved, and the model has "
                                   f"{list(own[name].shape)}")
            own[name].copy_(value)
            continue
        module = dict(model.named_modules()).get(place)
        if module is not None and last in module._buffers:
            at = next((tensor.device for tensor in (*model.parameters(), *own.values())), value.device)
            module._buffers[last] = value.detach().to(at, copy=True)
        else:
            warnings.warn(f"the buffer {name} was saved, and the model has none of this name", stacklevel=3)
    for name in own.keys() - found.keys():
        warnings.warn(f"the buffer {name} was not saved, and keeps its value", stacklevel=3)


def _local(value: Any) -> Any:
    if isinstance(value, Tensor):
        return local_of(value.detach())
    if isinstance(value, dict):
        return {key: _local(one) for key, one in value.items()}
    return [_local(one) for one in value] if isinstance(value, list) else value


def _divide(optimizer: torch.optim.Optimizer, state: Dict[str, Any]) -> None:
    """Makes DTensors of the state of parameters that are DTensors."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"]):
        for param, key in zip(group["params"], saved["params"]):
            for name, value in state["state"].get(key, {}).items():
                if is_dtensor(param) and isinstance(value, Tensor) and value.dim() and value.shape == local_of(param).shape:
                    state["state"][key][name] = like(value, param)
