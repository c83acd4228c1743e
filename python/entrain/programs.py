"""The programs that come with the package: entrain-run and entrain-perf."""
from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import program_path


def _become(name: str) -> NoReturn:
    path = program_path(name)
    if path == name:
        sys.exit(f"{name}: this package was installed without its programs")
    os.execv(path, [name, *sys.argv[1:]])


def run() -> NoReturn:
    """entrain-run: starts ranks on this host."""
    _become("entrain-run")


def perf() -> NoReturn:
    """entrain-perf: measures collectives."""
    _become("entrain-perf")
