"""Exceptions: one class per status code of the library, each with the whole error record."""
from __future__ import annotations

import dataclasses
import enum
from typing import Any, Dict, Type

from ._library import lib, new_struct, text_of


class Phase(enum.IntEnum):
    """The phase of a call in which it failed."""

    NONE = lib.ENTRAIN_PHASE_NONE
    BOOTSTRAP = lib.ENTRAIN_PHASE_BOOTSTRAP
    CONNECT = lib.ENTRAIN_PHASE_CONNECT
    CHECK = lib.ENTRAIN_PHASE_CHECK
    TRANSFER = lib.ENTRAIN_PHASE_TRANSFER
    REDUCE = lib.ENTRAIN_PHASE_REDUCE


class Scope(enum.IntEnum):
    """The objects that must be made anew after an error."""

    NONE = lib.ENTRAIN_SCOPE_NONE
    CALL = lib.ENTRAIN_SCOPE_CALL
    COMM = lib.ENTRAIN_SCOPE_COMM


@dataclasses.dataclass(frozen=True)
class ErrorRecord:
    """The library's record of an error (entrain_error_t in entrain/comm.h)."""

    code: int
    text: str
    scope: Scope = Scope.CALL
    phase: Phase = Phase.NONE
    #: Rank in the communicator concerned; -1: unknown.
    guilty_rank: int = -1
    #: Rank in the communicator from which the communicator concerned was split; -1: unknown.
    guilty_world_rank: int = -1
    #: Identity of the guilty rank's process, 16 bytes; zeros: unknown.
    peer_id: bytes = bytes(16)
    peer_address: str = ""
    #: "all_reduce"; empty: no call.
    operation: str = ""
    #: Number of the call, from 1; 0: no call.
    sequence: int = 0
    #: -1: untagged.
    tag: int = -1
    elapsed_ns: int = 0
    deadline_ns: int = 0
    bytes_done: int = 0
    sys_errno: int = 0
    generation: int = 0

    @property
    def code_name(self) -> str:
        """Returns the name of the code, such as "ENTRAIN_PEER_LOST"."""
        return text_of(lib.entrain_status_name(self.code))


class Error(RuntimeError):
    """An error of the library. `record` has the call, rank, phase and peer."""

    def __init__(self, record: ErrorRecord) -> None:
        super().__init__(record.text)
        self.record = record

    def __str__(self) -> str:
        return self.record.text

    def __reduce__(self) -> Any:
        return type(self), (self.record,)


class InvalidArgument(Error, ValueError):
    """An argument is wrong. Only this call fails."""


class FailedPrecondition(Error):
    """The arguments are right, but the call is not allowed at this time. Only this call fails."""


class Unimplemented(Error, NotImplementedError):
    """This build does not support the call. Only this call fails."""


class ResourceExhausted(Error):
    """Memory, descriptors or another local resource ran out. Only this call fails."""


class PeerLost(Error, ConnectionError):
    """A peer or a server is gone or cannot be reached. Ends the communicators that contain the peer."""


class Mismatch(Error):
    """Ranks made different calls. Ends the communicator."""


class StaleGeneration(Error):
    """The other ranks have gone on without this one, in a newer generation of the communicator. Ends the communicator."""


class TimedOut(Error, TimeoutError):
    """A deadline passed. Ends the communicator of the call."""


class Aborted(Error):
    """A process ended the communicator. If an exception in a callback of this process was the cause, `__cause__` is
    this exception."""


class Internal(Error):
    """A defect of the library."""


_CLASSES: Dict[int, Type[Error]] = {
    lib.ENTRAIN_INVALID_ARGUMENT: InvalidArgument,
    lib.ENTRAIN_FAILED_PRECONDITION: FailedPrecondition,
    lib.ENTRAIN_UNIMPLEMENTED: Unimplemented,
    lib.ENTRAIN_RESOURCE_EXHAUSTED: ResourceExhausted,
    lib.ENTRAIN_PEER_LOST: PeerLost,
    lib.ENTRAIN_MISMATCH: Mismatch,
    lib.ENTRAIN_STALE_GENERATION: StaleGeneration,
    lib.ENTRAIN_TIMED_OUT: TimedOut,
    lib.ENTRAIN_ABORTED: Aborted,
    lib.ENTRAIN_INTERNAL: Internal,
}


def record_of(struct: Any) -> ErrorRecord:
    """Converts an entrain_error_t* to an ErrorRecord."""
    return ErrorRecord(
        code=struct.code, text=text_of(struct.text), scope=Scope(struct.scope), phase=Phase(struct.phase),
        guilty_rank=struct.guilty_rank, guilty_world_rank=struct.guilty_world_rank,
        peer_id=bytes(struct.peer_id.bytes), peer_address=text_of(struct.peer_address), operation=text_of(struct.operation),
        sequence=struct.sequence, tag=struct.tag, elapsed_ns=struct.elapsed_ns, deadline_ns=struct.deadline_ns,
        bytes_done=struct.bytes_done, sys_errno=struct.sys_errno, generation=struct.generation)


def error_of(record: ErrorRecord) -> Error:
    """Returns the exception for a record."""
    return _CLASSES.get(record.code, Error)(record)


def last_error(status: int) -> Error:
    """Returns the exception for a call of this thread that returned `status`."""
    struct = new_struct("error")
    if lib.entrain_last_error_record(struct) == 0 and struct.code == status:
        return error_of(record_of(struct))
    return error_of(ErrorRecord(code=status, text=text_of(lib.entrain_last_error()) or text_of(lib.entrain_status_name(status))))


def check(status: int) -> None:
    """Raises an error unless the status is ENTRAIN_OK. Must run in the thread that made the call."""
    if status != 0:
        raise last_error(status)


def invalid(operation: str, text: str) -> InvalidArgument:
    """Returns the exception for an argument error that this package has found itself."""
    return InvalidArgument(ErrorRecord(code=lib.ENTRAIN_INVALID_ARGUMENT, text=f"{operation}: {text}", phase=Phase.CHECK,
                                       operation=operation))


def closed(what: str) -> FailedPrecondition:
    return FailedPrecondition(ErrorRecord(code=lib.ENTRAIN_FAILED_PRECONDITION, text=f"the {what} is closed"))
