"""The flight recorder: the last calls of every communicator of this process."""
from __future__ import annotations

import os
from typing import Optional, Union

from ._library import NULL, lib
from .errors import check


def flight_dump(path: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
    """Writes the last calls of all communicators of this process to a new JSON file. Any thread may call it.

    `path`: the file to create. None: a file in the directory that ENTRAIN_FLIGHT_DIR names. `entrain-perf --flight
    FILES` merges the files of the ranks and names the rank that holds the others up. Raises FailedPrecondition if the
    file exists, or if `path` is None and ENTRAIN_FLIGHT_DIR is not set."""
    check(lib.entrain_flight_dump(NULL if path is None else os.fsencode(path)))
