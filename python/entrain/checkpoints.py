"""The checkpoints in a directory: which of them a run continues from, and which of them stay."""
from __future__ import annotations

import os
import re
import warnings
from typing import Callable, List, Optional, Union

import numpy as np

from .comm import Comm
from .errors import Error, FailedPrecondition, InvalidArgument, invalid

Directory = Union[str, "os.PathLike[str]"]

_PART = re.compile(r"_\d{4,}_[0-9a-f]{8}$")  # of a file that belongs to the checkpoint named before it


def checkpoints_in(directory: Directory) -> List[str]:
    """Returns the names of the complete checkpoints in a directory, the newest first, as `load` takes them. The newest one is
    that with the greatest number at the end of its name ("step-00000120"). If the names have no number, it is the one that
    was written last. Local."""
    try:
        names = [entry.name[:-len(".ckpt")] for entry in os.scandir(directory) if entry.name.endswith(".ckpt")]
    except FileNotFoundError:
        return []

    def age(name: str) -> "tuple[int, float]":
        number = re.search(r"(\d+)$", name)
        return int(number.group()) if number else -1, os.stat(os.path.join(directory, name + ".ckpt")).st_mtime

    return sorted((name for name in names if not _PART.search(name)), key=age, reverse=True)


def check_keep(call: str, keep: Optional[int]) -> None:
    if keep is not None and keep < 1:
        raise invalid(call, f"keep is {keep}; expected 1 or more, or None")


def remove_old_checkpoints(directory: Directory, keep: int, saved: str) -> None:
    """Removes all checkpoints in a directory but the one that was just saved, and the newest ones up to `keep`. Local: call it on
    one rank, after a save."""
    for name in [name for name in checkpoints_in(directory) if name != saved][keep - 1:]:
        # First the file that refers to the others: without it they are no checkpoint.
        os.unlink(os.path.join(directory, name + ".ckpt"))
        for entry in list(os.scandir(directory)):
            if entry.name.startswith(name) and _PART.fullmatch(entry.name[len(name):].partition(".")[0]):
                os.unlink(entry.path)


def broadcast_text(comm: Comm, text: str) -> str:
    """Returns rank 0's text on all ranks. Collective."""
    data = np.frombuffer(text.encode(), np.uint8).copy()
    length = np.array([data.size])
    comm.broadcast(length, root=0)
    data = data if comm.rank == 0 else np.zeros(int(length[0]), np.uint8)
    if length[0]:
        comm.broadcast(data, root=0)
    return data.tobytes().decode()


def resume_from(comm: Comm, directory: Directory, load: Callable[[str], None]) -> Optional[str]:
    """Calls `load` with the names of the checkpoints that rank 0 finds, the newest first, until one is whole. Returns its
    name; None: there is no checkpoint. Rank 0 warns of those that are damaged. If all are damaged, raises the error of the
    newest. Collective over `comm`."""
    text = broadcast_text(comm, "\0".join(checkpoints_in(directory)) if comm.rank == 0 else "")
    first: Optional[Error] = None
    for name in filter(None, text.split("\0")):
        try:
            load(name)
            return name
        except (InvalidArgument, FailedPrecondition) as error:  # on all ranks
            if isinstance(error, FailedPrecondition) and "No such file" not in str(error):  # else the file of a rank is missing
                raise
            first = first or error
            if comm.rank == 0:
                warnings.warn(f"resume: {error}; trying an older checkpoint", stacklevel=3)
    if first is not None:
        raise first
    return None
