"""What a launcher has told this process about its place."""
from __future__ import annotations

import contextlib
import os
from typing import Dict, Iterable, Iterator

#: Variables that `hide` has removed.
_hidden: Dict[str, str] = {}


def hide(names: Iterable[str]) -> None:
    """Removes variables from the environment, so that a framework in this process does not take itself for a part of a job."""
    for name in names:
        value = os.environ.pop(name, None)
        if value is not None:
            _hidden[name] = value


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Puts them back for a call that tells the launcher that this process has joined others."""
    before = {name: os.environ.get(name) for name in _hidden}
    os.environ.update(_hidden)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
