"""EDiT's options in the form of the published code, with the outer optimizer as a class of torch.optim."""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

import torch

from ..errors import invalid
from ..train import EditConfig, EditKeywords
from ._outer import OuterScheduler, Rates, TorchOuter

# In the published code, the outer optimizer is a class of torch.optim with keyword arguments. The library has these
# itself, under the listed names of its options:
_OUTER: Dict[str, Dict[str, Tuple[str, ...]]] = {
    "SGD": {"lr": ("outer_lr",), "momentum": ("outer_momentum",), "nesterov": ("outer_nesterov",),
            "weight_decay": ("outer_weight_decay",)},
    "AdamW": {"lr": ("outer_lr",), "betas": ("outer_beta1", "outer_beta2"), "eps": ("outer_eps",),
              "weight_decay": ("outer_weight_decay",)},
}
# Defaults of torch.optim, which neither the library nor a preset replaces.
_OUTER_DEFAULTS: Dict[str, Dict[str, Any]] = {"SGD": {"lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
                                              "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}}


class TorchKeywords(EditKeywords, total=False):
    """The options of entrain.torch.EDiT."""

    #: a class of torch.optim, instead of outer_optimizer and outer_*
    outer_optim_class: Type[torch.optim.Optimizer]
    #: its arguments
    outer_optim_kwargs: Mapping[str, Any]
    #: of the published code: False is refused
    use_local_sgd: bool


def _outer_options(kind: Type[torch.optim.Optimizer], arguments: Mapping[str, Any]) -> Dict[str, Any]:
    names = _OUTER[kind.__name__] if kind in (torch.optim.SGD, torch.optim.AdamW) else {}
    if not names or not names.keys() >= arguments.keys():
        return {"outer_optimizer": "callback", "outer_step": TorchOuter(kind, arguments)}
    found: Dict[str, Any] = {"outer_optimizer": kind.__name__.lower()}
    for name, value in {**_OUTER_DEFAULTS[kind.__name__], **arguments}.items():
        found.update(zip(names[name], value if name == "betas" else (value,)))
    return found


def config_of(config: Optional[EditConfig], options: Mapping[str, Any]) -> Tuple[EditConfig, List[str]]:
    """Converts options of EDiT's constructor to options of the library. Also returns the names of those that are given."""
    given = dict(options)
    if not given.pop("use_local_sgd", True):
        raise invalid("EDiT", "use_local_sgd is false; train without an EDiT object instead")
    kind, arguments = given.pop("outer_optim_class", None), given.pop("outer_optim_kwargs", None)
    if kind is None and arguments:
        raise invalid("EDiT", "outer_optim_kwargs without outer_optim_class")
    if kind is not None:
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise invalid("EDiT", f"outer_optim_class is {kind!r}; expected a class of torch.optim")
        clash = sorted(name for name in given if name.startswith("outer_"))
        if clash:
            raise invalid("EDiT", f"both {clash[0]} and outer_optim_class are given")
        given.update(_outer_options(kind, arguments or {}))
    known = [field.name for field in dataclasses.fields(EditConfig)]
    for name in given:
        if name not in known:
            raise invalid("EDiT", f"no option is called {name!r}; the options are {', '.join(known)}, use_local_sgd, "
                                  "outer_optim_class, outer_optim_kwargs")
    return dataclasses.replace(config or EditConfig(), **given), list(given)


def scheduled(settings: EditConfig, make: OuterScheduler) -> EditConfig:
    """Returns the options with the rates of a scheduler of torch for the outer optimizer."""
    if settings.outer_schedule is not None:
        raise invalid("EDiT", "both outer_scheduler and outer_schedule are given")
    if settings.outer_optimizer == "none":
        raise invalid("EDiT", "outer_scheduler without an outer optimizer; set outer_optimizer or outer_optim_class, or a preset that has one")
    if isinstance(settings.outer_step, TorchOuter):
        settings.outer_step.schedule(make)
        return settings
    rates = Rates(make, settings.outer_lr, settings.outer_momentum)

    def schedule(layer: int, step: int, lr: float, momentum: float) -> Tuple[float, float]:
        return rates.of(step)

    return dataclasses.replace(settings, outer_schedule=schedule)
