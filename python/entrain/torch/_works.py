"""Started calls in the form of c10d's works and futures."""
from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any, Callable, List, Optional

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from .. import errors
from .._library import IN_PROGRESS, NULL, OK, ffi, lib
from ..comm import Comm
from ..errors import Error, TimedOut, check
from ..lifetime import Handle, Life
from ..reductions import Reduction
from ..works import _notifier, _unfinished, orphan, wait_for, work_error
from ._tensors import Buffers, stream_of

NO_TIMEOUT = timedelta(0)
_Base: Any = dist.Work

_process = os.getpid()


def _after_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class Work(_Base):
    """A started call of c10d. It keeps the tensors until the call is over, even if the Work is dropped earlier."""

    def __init__(self, operation: str, out: Any, held: Any, finish: Optional[Callable[[], None]], result: List[Tensor]) -> None:
        """`out`: the address to which the library has written the handle. The Work takes the handle from there."""
        super().__init__()
        self._operation = operation
        self._held = held
        self._finish = finish
        self._outputs = result
        self._status: int = IN_PROGRESS
        self._error: Optional[Error] = None
        self._settling = threading.Lock()
        self._future: Optional[Future[List[Tensor]]] = None
        self._process = _process
        self._peer: Any = None
        # No signal handler can raise between these two statements.
        self._handle = out[0]
        out[0] = NULL
        _unfinished.add(self)  # type: ignore[arg-type]

    def _settle(self, status: int) -> None:
        with self._settling:
            if self._status != IN_PROGRESS:
                return
            if status != OK:
                self._error = work_error(self._handle, status)
            elif self._finish is not None:
                self._finish()
            self._held = self._finish = None
            self._status = status
        _unfinished.discard(self)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits for the call and raises its entrain.Error. After `timeout` (0: the call's own) it raises
        entrain.TimedOut, which ends only the wait: the call continues."""
        if self._status == IN_PROGRESS:
            nanoseconds = -1 if timeout <= NO_TIMEOUT else round(timeout.total_seconds() * 1e9)
            status = wait_for(self._handle, nanoseconds)
            if status == IN_PROGRESS:
                raise TimedOut(errors.ErrorRecord(
                    code=lib.ENTRAIN_TIMED_OUT, operation=self._operation, deadline_ns=nanoseconds,
                    text=f"{self._operation}: a wait of {timeout.total_seconds()} s is over, and the call is not"))
            self._settle(status)
        if self._error is not None:
            raise self._error
        return True

    def done(self) -> bool:
        """Returns whether the call is over, with or without an error."""
        if self._status == IN_PROGRESS:
            over = ffi.new("int32_t*")
            status = lib.entrain_work_test(self._handle, over)
            if not over[0]:
                return False
            self._settle(status)
        return True

    def is_completed(self) -> bool:
        """Returns whether the call is over, with or without an error."""
        return self.done()

    def is_success(self) -> bool:
        """Returns whether the call is over without an error."""
        return self.done() and self._error is None

    def exception(self) -> Optional[Error]:
        """Returns the error of a call that is over."""
        return self._error if self.done() else None

    def synchronize(self) -> None:
        """Waits for the call."""
        self.wait()

    def result(self) -> List[Tensor]:
        """Returns the tensors that the call writes."""
        return self._outputs

    def source_rank(self) -> int:
        """Returns the sender of a message that was received from any rank."""
        return -1 if self._peer is None else int(self._peer[0])

    _source_rank = source_rank

    def fileno(self) -> int:
        """Returns a descriptor that is readable once the call is over."""
        descriptor = ffi.new("int*")
        check(lib.entrain_work_descriptor(self._handle, descriptor))
        return int(descriptor[0])

    def get_future(self) -> "Future[List[Tensor]]":
        """Returns a future with the tensors that the call writes. Functions chained to it run on the package's thread
        for callbacks, and on the device on the present stream."""
        if self._future is None:
            over: Future[None] = Future()
            stream = stream_of(self._outputs)

            def complete(_: object) -> None:
                with stream:
                    over.set_result(None)

            # C++ sees an error only if a chained function raises it: set_exception is visible to Python only.
            self._future = over.then(self._outcome)
            if self.done():
                over.set_result(None)
            else:
                _notifier.add(self, complete)  # type: ignore[arg-type]
        return self._future

    def _outcome(self, _: Any) -> List[Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def __del__(self) -> None:
        handle = getattr(self, "_handle", NULL)
        if handle == NULL or self._process != _process:
            return
        try:
            if self._status == IN_PROGRESS:
                orphan(handle, self._held)
            else:
                lib.entrain_work_free(handle)
        except Exception:  # the interpreter is ending
            pass


class Coalesced(Handle):
    """Several calls that are started together, once."""

    _what = "batch"

    def __init__(self, comm: Comm) -> None:
        out = ffi.new("entrain_batch_t**")
        comm._call(lib.entrain_batch_create, out)
        super().__init__(Life(out[0], lib.entrain_batch_destroy))
        self._buffers: List[Buffers] = []
        self._results: List[Tensor] = []

    def add(self, buffers: Buffers, reduction: Optional[Reduction], outputs: List[Tensor]) -> None:
        """Keeps the objects that an added call uses."""
        self._held.append((buffers, reduction))
        self._buffers.append(buffers)
        self._results.extend(outputs)

    def start(self, operation: str) -> Work:
        """Starts the calls. Once started, they do not need this object."""
        out = ffi.new("entrain_work_t**")
        copies = self._buffers

        def finish() -> None:
            for buffers in copies:
                buffers.finish()

        try:
            self._call(lib.entrain_batch_start, out)
            return Work(operation, out, self._held, finish, self._results)
        except BaseException:  # from a signal handler, for example: the calls continue
            if out[0] != NULL:
                orphan(out[0], self._held)
            raise


class Added(Work):
    """Stands for a call that was added to a Coalesced, or for a call that is already over. In the first case, the
    caller must wait for the work of the Coalesced instead."""

    def __init__(self, outputs: List[Tensor]) -> None:
        _Base.__init__(self)
        self._outputs = outputs
        self._status = OK
        self._error = None
        self._future = None
        self._peer = None
