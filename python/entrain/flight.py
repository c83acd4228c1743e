"""The flight recorder: the last calls of every communicator of a process."""
from __future__ import annotations

import json
import os
import re
import socket
from typing import Any, Dict, List, Optional, Union

from ._library import NULL, lib
from .errors import check


def flight_dump(path: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
    """Writes the last calls of all communicators of this process to a new JSON file. Any thread may call it.

    `path`: the file to create. None: a file in the directory that ENTRAIN_FLIGHT_DIR names. `entrain-perf --flight
    FILES` merges the files of the ranks and names the rank that holds the others up. Raises FailedPrecondition if the
    file exists, or if `path` is None and ENTRAIN_FLIGHT_DIR is not set."""
    check(lib.entrain_flight_dump(NULL if path is None else os.fsencode(path)))


def flight_processes() -> List[int]:
    """Returns the processes of this host, in this network namespace, that answer `flight_of`."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        return sorted({int(found[1]) for found in re.finditer(r"@entrain-flight-(\d+)\n", table.read())})


def flight_of(pid: int, timeout: float = 5.0) -> Dict[str, Any]:
    """Returns the last calls of a process of this user and host, the calling process included (docs/flight.md has the members). Raises
    OSError if the process has no communicator, or its recorder is off, and TimeoutError if it has not answered after `timeout` seconds,
    as a stopped process."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(timeout)
        asked.connect(f"\0entrain-flight-{pid}")
        with asked.makefile("rb") as answer:
            found: Dict[str, Any] = json.load(answer)
    return found
