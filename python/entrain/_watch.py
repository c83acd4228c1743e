"""The observer (entrain.observe) of the objects and ranges of a thread."""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Dict, Optional

if TYPE_CHECKING:
    from .observe import Observer

_observers: Dict[int, "Observer"] = {}  # by thread


def begin(observer: "Observer") -> None:
    _observers[threading.get_ident()] = observer


def end(observer: "Observer") -> None:
    for thread in [thread for thread, one in _observers.items() if one is observer]:
        del _observers[thread]


def observer(*, of_backward: bool = False) -> "Optional[Observer]":
    """Returns the observer of this thread. of_backward: on a thread that PyTorch has started, for a backward pass on a device, that of the
    process, if there is one alone."""
    if not _observers:
        return None
    found = _observers.get(threading.get_ident())
    if found is None and of_backward and len(_observers) == 1 and threading.current_thread().name.startswith("Dummy-"):
        return next(iter(_observers.values()))
    return found
