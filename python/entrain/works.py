"""Started calls as futures."""
from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import select
import threading
import time
import weakref
from typing import Any, Callable, Dict, Generator, Generic, List, Optional, Sequence, Tuple, TypeVar

from ._library import IN_PROGRESS, NULL, OK, ffi, lib, new_struct, text_of
from .errors import Error, check, error_of, last_error, record_of
from .lifetime import at_exit, keep_for_ever, keep_of_parent

_T = TypeVar("_T")

#: A wait returns to the interpreter after this time, so that signals are noticed.
SLICE_NS = 100_000_000

class _Orphan:
    """A call that continues without a Work: its handle, and the objects that it uses."""

    __slots__ = ("handle", "held", "claim")

    def __init__(self, handle: Any, held: Any) -> None:
        self.handle = handle
        self.held = held
        # The thread that holds this lock tests the handle, and may free it. The lock stays locked once the handle is
        # freed.
        self.claim = threading.Lock()


_orphans: List[_Orphan] = []
_unfinished: "weakref.WeakSet[Work[Any]]" = weakref.WeakSet()


def orphan(handle: Any, held: Any) -> None:
    """Takes over the handle of a call. Keeps `held` until the call is over."""
    _orphans.append(_Orphan(handle, held))


def reap() -> None:
    """Frees the objects of orphans that are over."""
    done = ffi.new("int32_t*")
    for one in list(_orphans):
        if not one.claim.acquire(blocking=False):
            continue
        lib.entrain_work_test(one.handle, done)
        if done[0]:
            _orphans.remove(one)
            lib.entrain_work_free(one.handle)
        else:
            one.claim.release()


def members(weak: "weakref.WeakSet[_T]") -> List[_T]:
    """Returns the members of `weak`, which other threads may change meanwhile."""
    while True:
        try:
            return list(weak)
        except RuntimeError:  # one was added
            pass


def wait_for(handle: Any, timeout_ns: int = -1) -> int:
    """Waits for a work and returns its status, as entrain_work_wait does, but notices signals."""
    if timeout_ns < 0:
        while True:
            status: int = lib.entrain_work_wait(handle, SLICE_NS)
            if status != IN_PROGRESS:
                return status
    end = time.monotonic_ns() + timeout_ns
    while True:
        left = max(0, end - time.monotonic_ns())
        status = lib.entrain_work_wait(handle, min(left, SLICE_NS))
        if status != IN_PROGRESS or left <= SLICE_NS:
            return status


def work_error(handle: Any, status: int) -> Error:
    """Returns the error of a work that ended with `status`."""
    struct = new_struct("error")
    if lib.entrain_work_error(handle, struct) == OK and struct.code != OK:
        return error_of(record_of(struct))
    return last_error(status)


@dataclasses.dataclass(frozen=True)
class WorkInfo:
    """The library's information about a started call (entrain_work_info_t)."""

    #: "all_reduce", or "batch".
    operation: str
    #: The communicator's name: "world", or "world/3" for a part of color 3.
    comm: str
    #: Number of the call, from 1; 0 for a batch, and for a receive that has not taken a message from any rank yet.
    sequence: int
    #: -1: untagged.
    tag: int
    #: Time since the call was started. It keeps growing after the call is over.
    elapsed_ns: int
    done: bool
    #: For a receive from any rank: the sender of its message; -1: not known yet, or another call.
    source: int


class Work(Generic[_T]):
    """A started call. Any thread may use it. It keeps the arrays of the call alive until the call is over, even if
    the Work is dropped earlier. Until then the arrays must not be changed, and the results must not be read.

    `wait`, `result` and `await` raise the error of the call, each time. `exception` returns it."""

    def __init__(self, out: Any, held: Any, result: _T, finish: Sequence[Callable[[], None]] = (),
                 blame: Optional[Callable[[Error], Error]] = None) -> None:
        """`out`: the address to which the library has written the handle. The Work takes the handle from there."""
        self._held = held
        self._result: Any = result
        self._finish = finish
        self._blame = blame
        self._status: int = IN_PROGRESS
        self._error: Optional[Error] = None
        self._settling = threading.Lock()
        self._process = os.getpid()
        # No signal handler can raise between these two statements.
        self._handle = out[0]
        out[0] = NULL
        _unfinished.add(self)

    def _settle(self, status: int) -> None:
        with self._settling:
            if self._status != IN_PROGRESS:
                return
            if status == OK:
                for copy in self._finish:
                    copy()
            else:
                error = work_error(self._handle, status)
                self._error = self._blame(error) if self._blame is not None else error
            self._held, self._finish, self._blame = None, (), None
            self._status = status
        _unfinished.discard(self)

    def _wait(self, timeout: Optional[float]) -> bool:
        if self._status == IN_PROGRESS:
            status = wait_for(self._handle, -1 if timeout is None else max(0, round(timeout * 1e9)))
            if status == IN_PROGRESS:
                return False
            self._settle(status)
        return True

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits at most `timeout` seconds (None: as long as the call's own deadline allows). Returns False if the call
        is not over then; this changes nothing. Otherwise returns True, or raises the call's error."""
        if not self._wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def result(self, timeout: Optional[float] = None) -> _T:
        """Returns the result of the blocking call. TimeoutError if the call is not over after `timeout` seconds."""
        if not self.wait(timeout):
            raise TimeoutError(f"the call is not over after {timeout} s")
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: Optional[float] = None) -> Optional[Error]:
        """Returns the call's error, or None. TimeoutError if the call is not over after `timeout` seconds."""
        if not self._wait(timeout):
            raise TimeoutError(f"the call is not over after {timeout} s")
        return self._error

    def done(self) -> bool:
        """Returns whether the call is over, with or without an error. Makes progress; never blocks."""
        if self._status == IN_PROGRESS:
            over = ffi.new("int32_t*")
            status = lib.entrain_work_test(self._handle, over)
            if not over[0]:
                check(status)
                return False
            self._settle(status)
        return True

    def info(self) -> WorkInfo:
        """Returns the call's operation, its state and the time since its start. Never blocks, and makes no progress."""
        out = new_struct("work_info")
        check(lib.entrain_work_info(self._handle, out))
        return WorkInfo(text_of(out.operation), text_of(out.comm), out.sequence, out.tag, out.elapsed_ns, bool(out.done), out.source)

    def fileno(self) -> int:
        """Returns a descriptor that is readable once the call is over, for select, poll and event loops. It belongs
        to the Work: neither read nor close it."""
        descriptor = ffi.new("int*")
        check(lib.entrain_work_descriptor(self._handle, descriptor))
        return int(descriptor[0])

    def add_done_callback(self, callback: Callable[["Work[_T]"], object]) -> None:
        """Calls callback(work) once the call is over: at once if it is over already, else on a thread of this
        package, which all communicators and runtimes of the process share. A callback may call the library, and wait.
        The callbacks of one work run one after the other, so a callback that blocks delays the others. Callbacks of
        several works may run at the same time, and each one that blocks occupies a thread. An exception of a callback
        is logged (threading.excepthook)."""
        if self.done():
            callback(self)
        else:
            _notifier.add(self, callback)

    def as_future(self) -> "concurrent.futures.Future[_T]":
        """Returns a future with the call's result or error. It cannot be cancelled."""
        future: "concurrent.futures.Future[_T]" = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def over(work: "Work[_T]") -> None:
            error = work.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(work._result)

        self.add_done_callback(over)
        return future

    def __await__(self) -> Generator[Any, None, _T]:
        if not self.done():
            import asyncio  # takes 30 ms

            loop = asyncio.get_running_loop()
            ready = loop.create_future()
            # Uses a descriptor of its own, because an event loop has one reader for each descriptor, and several tasks
            # may wait for one Work.
            descriptor = os.dup(self.fileno())

            def over() -> None:
                if not ready.done():
                    ready.set_result(None)

            loop.add_reader(descriptor, over)
            try:
                yield from ready
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return self.result()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", NULL)
        if handle == NULL or os.getpid() != self._process:
            return
        try:
            if self._status == IN_PROGRESS:
                orphan(handle, self._held)
            else:
                lib.entrain_work_free(handle)
        except Exception:  # the interpreter is ending
            pass


class _Notifier:
    """The threads on which callbacks run. They wait for descriptors, so that none of the library's own threads ever needs the
    interpreter's lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._idle = 0  # threads that wait in poll
        self._busy = 0  # threads that run callbacks
        self._ended = False
        self._poll: Any = None
        self._waiting: Dict[int, Tuple[Any, List[Callable[[Any], object]]]] = {}

    def forget(self) -> None:
        """In a forked child: forgets all waits and the threads, which belong to the parent."""
        self._lock = threading.Lock()
        self._reset()

    def add(self, work: "Work[Any]", callback: Callable[[Any], object]) -> None:
        descriptor = work.fileno()
        with self._lock:
            if self._poll is None:
                self._poll = select.epoll()
            if descriptor in self._waiting:
                self._waiting[descriptor][1].append(callback)
            else:
                self._waiting[descriptor] = (work, [callback])
                self._poll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
            if self._idle == 0:
                self._start()

    def _start(self) -> None:
        """Starts one more thread. The caller holds the lock."""
        self._idle += 1
        threading.Thread(target=self._run, name="entrain-callbacks", daemon=True).start()

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll(maxevents=1):
                with self._lock:
                    if self._ended:
                        return
                    work, callbacks = self._waiting.pop(descriptor)
                    self._poll.unregister(descriptor)
                    self._idle -= 1
                    self._busy += 1
                    # A callback may wait for the callbacks of another call, so one thread must always be free to run
                    # them.
                    if self._idle == 0:
                        self._start()
                work.done()
                for callback in callbacks:
                    try:
                        callback(work)
                    except Exception as failure:
                        threading.excepthook(threading.ExceptHookArgs(
                            (type(failure), failure, failure.__traceback__, threading.current_thread())))
                del work, callbacks
                with self._lock:
                    self._busy -= 1
                    self._idle += 1
                    if self._idle > 2:
                        self._idle -= 1
                        return


    def end(self) -> None:
        """At the end of the interpreter: lets no further callback begin, and waits for those that run, 2 s at most. The interpreter
        ends a thread that asks for its lock after its end. In C++ code, such as torch's futures, that ends the process by SIGABRT."""
        with self._lock:
            self._ended = True
        limit = time.monotonic() + 2
        while self._busy > 0 and time.monotonic() < limit:
            time.sleep(0.001)


_notifier = _Notifier()


def _after_fork() -> None:
    keep_of_parent(list(_orphans))
    _orphans.clear()
    _notifier.forget()


os.register_at_fork(after_in_child=_after_fork)


def _wait_at_exit() -> None:
    """Waits for calls at the end of the interpreter, and keeps those that do not end. All communicators are closed at
    this time, so every call ends at once. If a call does not, its memory must outlive the interpreter."""
    _notifier.end()
    end = time.monotonic() + 1.0
    # Includes the works, because dropping one would free its handle.
    rest: List[Tuple[Any, Any]] = [(work._handle, work) for work in members(_unfinished) if work._process == os.getpid()]
    rest += [(one.handle, one) for one in list(_orphans) if one.claim.acquire(blocking=False)]
    for handle, owner in rest:
        if wait_for(handle, max(0, round((end - time.monotonic()) * 1e9))) == IN_PROGRESS:
            keep_for_ever(owner)


at_exit(_wait_at_exit)
