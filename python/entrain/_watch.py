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


def observer() -> "Optional[Observer]":
    """Returns the observer of this thread. A process with one observer has it on all threads, because PyTorch runs backward passes on
    threads of its own."""
    if not _observers:
        return None
    found = _observers.get(threading.get_ident())
    return found if found is not None or len(_observers) > 1 else next(iter(_observers.values()))
