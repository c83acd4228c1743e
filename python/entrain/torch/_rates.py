"""Schedulers of torch.optim.lr_scheduler as the schedule of ACCO's rates."""
from __future__ import annotations

import copy
import hashlib
import math
import threading
from typing import Any, Callable, Dict, List, Optional, Union

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from .._library import lib
from ..errors import ErrorRecord, FailedPrecondition, invalid

#: A scheduler that was made on the optimizer, or a function that makes one on the optimizer that it is given.
Scheduler = Union[LRScheduler, Callable[[torch.optim.Optimizer], Any]]

#: Commits ahead of which rates are known and checked, so that a scheduler that cannot be expressed is refused before it matters.
_AHEAD = 1000
_MOST_AHEAD = 10_000
_OPTIONS = ("betas", "momentum", "weight_decay", "eps", "dampening", "nesterov")


class _Inexpressible(Exception):
    pass


class CommitRates:
    """The rates of a scheduler by the number of the commit, from 1, so that they are the same on all ranks, after a load and on a
    newcomer. The channel has one rate, times a constant factor for each group, so the ratios between groups must not change. The
    scheduler works on an optimizer with the given one's groups, and without parameters of the model, because the channel may need a
    rate before, or again after, the program sees it.

    Thread safety: the channel's thread calls `of`. The other methods must be called on the caller's thread."""

    def __init__(self, given: Scheduler, optimizer: Optional[torch.optim.Optimizer], lr: float, limit: int) -> None:
        self._given: Optional[LRScheduler] = given if isinstance(given, LRScheduler) else None
        self._optimizer = optimizer
        if isinstance(given, ReduceLROnPlateau):
            raise self._wrong(given)
        if self._given is not None:
            self._check_given(self._given)
        elif not callable(given):
            raise self._wrong(given)
        self._shell = self._without_model(lr)
        options = self._options()
        self._scheduler = self._copied(self._given) if self._given is not None else given(self._shell)  # type: ignore[operator]
        if not isinstance(self._scheduler, LRScheduler) or isinstance(self._scheduler, ReduceLROnPlateau) or \
                self._scheduler.optimizer is not self._shell:
            raise self._wrong(self._scheduler)
        self.name = type(self._scheduler).__name__
        self._fixed = options
        # torch warns of a scheduler's step before the first one of the optimizer, which here makes none.
        step: Any = lambda *unused: None
        step._wrapped_by_lr_sched = True
        self._shell.step = step  # type: ignore[method-assign]
        self._shell._opt_called = True  # type: ignore[attr-defined]
        self._known: List[float] = []
        self._peaks = [0.0] * len(self._shell.param_groups)
        #: The rate of each group divided by that of the first. Empty until a rate is not 0.
        self.ratios: List[float] = []
        self._lock = threading.Lock()
        self._kind: Any = None
        try:
            self._extend(max(_AHEAD, min(limit, _MOST_AHEAD)))
            if not self.ratios:
                self._take_ratios([float(group["initial_lr"]) for group in self._shell.param_groups], "as they were given")
        except _Inexpressible as error:
            raise invalid("ACCO", str(error)) from None

    @staticmethod
    def _wrong(found: Any) -> Exception:
        name = found.__name__ if isinstance(found, type) else type(found).__name__
        return invalid("ACCO", f"scheduler is, or makes, {name}; expected a scheduler of torch.optim.lr_scheduler that was made on the "
                               "given optimizer, or a function that makes one on its argument, whose rates follow from the number of "
                               "steps alone")

    def _check_given(self, scheduler: LRScheduler) -> None:
        name = type(scheduler).__name__
        if self._optimizer is None:
            raise invalid("ACCO", f"scheduler is a {name}, and the optimizer none of torch.optim; give the optimizer that it was made on, "
                                  f"or a function that makes it: lambda optimizer: {name}(optimizer, ...)")
        if scheduler.optimizer is not self._optimizer:
            raise invalid("ACCO", f"the scheduler {name} was made on another optimizer than the given one")
        if getattr(scheduler, "last_epoch", 0) > 0:
            raise invalid("ACCO", f"the scheduler {name} has made {scheduler.last_epoch} steps. Its rates follow from the number of the "
                                  "commit, which a load brings; give a scheduler that has made none, or a function that makes one")

    def _without_model(self, lr: float) -> torch.optim.Optimizer:
        if self._optimizer is None:
            return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
        groups: List[Dict[str, Any]] = []
        for group in self._optimizer.param_groups:
            own = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            if self._given is None and "initial_lr" in own:
                own["lr"] = own.pop("initial_lr")  # of another scheduler
            groups.append({**own, "params": [nn.Parameter(torch.zeros(1))]})
        kind: Any = type(self._optimizer)
        made: torch.optim.Optimizer = kind(groups)
        return made

    def _copied(self, scheduler: LRScheduler) -> Any:
        try:
            return copy.deepcopy(scheduler, {id(self._optimizer): self._shell})
        except Exception as error:  # of the program's functions
            name = type(scheduler).__name__
            raise invalid("ACCO", f"the scheduler {name} cannot be copied ({error}); give a function that makes it: lambda optimizer: "
                                  f"{name}(optimizer, ...)") from error

    def _options(self) -> List[Dict[str, Any]]:
        return [{key: copy.copy(group[key]) for key in _OPTIONS if key in group} for group in self._shell.param_groups]

    def _extend(self, count: int) -> None:
        while len(self._known) < count:
            if self._known:
                self._scheduler.step()
            number = len(self._known) + 1
            rates = [float(group["lr"]) for group in self._shell.param_groups]
            for index, (options, fixed) in enumerate(zip(self._options(), self._fixed)):
                changed = [key for key, value in fixed.items() if options[key] != value]
                if changed:
                    raise _Inexpressible(f"the scheduler {self.name} changes {changed[0]} of group {index} at commit {number}, and ACCO "
                                         "can change only rates; OneCycleLR and CyclicLR need cycle_momentum=False")
            if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
                raise _Inexpressible(f"the scheduler {self.name} has the rates {rates} at commit {number}; expected numbers of at least 0")
            self._peaks = [max(peak, rate) for peak, rate in zip(self._peaks, rates)]
            if not self.ratios and any(rates):
                self._take_ratios(rates, f"at commit {number}")
            for index, (rate, ratio) in enumerate(zip(rates, self.ratios)):
                if abs(rate - ratio * rates[0]) > 1e-6 * ratio * rates[0] + 1e-9 * self._peaks[index]:
                    raise _Inexpressible(f"the scheduler {self.name} changes the ratio between the rates of the groups: that of group "
                                         f"{index} to the first is {ratio:g}, and at commit {number} the rates are {rate:g} and "
                                         f"{rates[0]:g}. ACCO has one schedule, times a constant factor for each group")
            self._known.append(rates[0])

    def _take_ratios(self, rates: List[float], when: str) -> None:
        if not all(rates):
            raise _Inexpressible(f"the scheduler {self.name} has the rates {rates} {when}: one group's is 0, and another's is not. ACCO "
                                 "has one schedule, times a constant factor above 0 for each group; freeze the parameters of the other "
                                 "group instead")
        self.ratios = [rate / rates[0] for rate in rates]

    def of(self, commit: int) -> float:
        """Returns the rate of the first group at commit `commit`."""
        with self._lock:
            self._extend(commit)
            return self._known[commit - 1]

    def show(self, commit: int) -> None:
        """Lets the optimizer's groups, and the scheduler's get_last_lr, have the rates of this commit, for logs. Refuses a scheduler that
        cannot be expressed soon after it."""
        try:
            with self._lock:
                self._extend(commit + _AHEAD)
        except _Inexpressible as error:
            raise FailedPrecondition(ErrorRecord(code=lib.ENTRAIN_FAILED_PRECONDITION, text=str(error))) from None
        if self._optimizer is None:
            return
        rates = [ratio * self._known[commit - 1] for ratio in self.ratios]
        for group, rate in zip(self._optimizer.param_groups, rates):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._given is not None:
            self._given._last_lr = list(rates)

    @property
    def identity(self) -> Dict[str, str]:
        """By which ranks refuse others whose rates differ."""
        rates = " ".join(f"{rate:.6g}" for rate in self._known[:_AHEAD] + self.ratios)  # last bits may differ between machines
        return {"rates of the scheduler": hashlib.blake2b(rates.encode(), digest_size=8).hexdigest()}

    def refuse_steps(self, refuse: Callable[[], None]) -> None:
        """Lets the given scheduler's step() call `refuse`. Its state_dict() has all attributes of the object, so the class has the step."""
        scheduler = self._given
        if scheduler is not None:
            self._kind = type(scheduler)
            scheduler.__class__ = type(self._kind.__name__, (self._kind,), {"step": lambda self, *unused, **more: refuse(),
                                                                            "__module__": self._kind.__module__})

    def close(self) -> None:
        if self._given is not None and self._kind is not None:
            self._given.__class__ = self._kind
            self._kind = None
