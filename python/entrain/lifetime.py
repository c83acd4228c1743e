"""The lifetime of the library's objects: closing, dropping, the end of the interpreter, and fork.

The garbage collector may finalise handles in any order and on any thread. This thread may be inside a function that the
library has called, or may hold a lock of the program. So `__del__` never calls the library. It appends to a queue, and a
thread of the package destroys the objects in the queue. Python memory that the library uses for an object lives until the
object is destroyed.

Invariants:
1. No object is destroyed while a call is inside it (`with life`), or while an object made from it exists.
2. No object is destroyed inside a function that the library has called.
3. Finalisers take no lock. They call put() of a SimpleQueue, which is reentrant."""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import itertools
import os
import queue
import threading
import time
import weakref
from _thread import start_new_thread
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type, TypeVar

from ._library import NULL, lib
from .errors import Error, FailedPrecondition, closed, last_error

_R = TypeVar("_R")
_T = TypeVar("_T", bound="Handle")
_births = itertools.count()
_process = os.getpid()

#: Seconds that close() waits for calls of other threads that are inside the object.
TIME_LIMIT = 1.0


def nothing(handle: Any) -> None:
    """Does nothing. It is the destroy function of a handle that another object destroys."""


class Life:
    """An object of the library, from its creation until it is destroyed. The program has a Handle of the object, and may
    drop the Handle earlier. Any thread may use a Life. Every call of the library on the object runs inside `with life as
    handle:`.

    destroy  destroys the handle. Returns False if that is not possible yet; it is then called again later
    needs    lives that are destroyed after this one. The caller of __init__ is inside these lives
    held     Python objects that the library uses until the object is destroyed. The Handle takes the list over
    stop     ends calls that are inside the object when it is closed
    lasts    True: when an object that this one needs is closed, this one stays, and delays the destruction of the
             other. False: this one is closed first
    late     True: at the end of the interpreter the object is destroyed after all others"""

    __slots__ = ("handle", "what", "held", "open", "over", "birth", "owner", "closing", "_destroy", "_needs", "_stop", "_lasts", "_process",
                 "_children", "_inside", "_lock")

    def __init__(self, handle: Any, destroy: Callable[[Any], object], *needs: "Life", held: Iterable[Any] = (),
                 stop: Callable[[Any], object] = nothing, lasts: bool = False, late: bool = False) -> None:
        self.handle = handle
        self.what = "handle"
        # The Handle takes over the list. If the list stayed here, an object whose functions refer to the object itself would
        # never become garbage, because the lives in `needs` refer to this Life.
        self.held = list(held)
        #: Whether calls are allowed.
        self.open = True
        #: Whether the object has been destroyed.
        self.over = False
        self.birth = next(_births) * (-1 if late else 1)
        #: Returns the Handle; None: it is gone.
        self.owner: Callable[[], Any] = lambda: None
        #: Whether objects that need this one are closed with it.
        self.closing = False
        self._destroy, self._needs, self._stop, self._lasts = destroy, needs, stop, lasts
        self._process = _process
        self._children: Dict[int, Life] = {}
        self._inside: List[None] = []  # its length is the number of calls that are inside
        self._lock = threading.RLock()
        _live[self.birth] = self
        for need in needs:
            need._children[self.birth] = self
        _start_thread()

    @property
    def here(self) -> bool:
        """Returns whether this process created the object. A forked child leaves it to its parent."""
        return self._process == _process

    def __enter__(self) -> Any:
        self._inside.append(None)  # before `open` is read: `attempt` clears `open` first, and then reads this list
        if self.open:
            return self.handle
        self._inside.pop()
        raise closed(self.what)

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._inside.pop()

    def end(self, seconds: float = TIME_LIMIT) -> bool:
        """Closes the object, after those that need it. Returns False if a call is still inside after `seconds`, or if an object that
        lasts still exists."""
        self.open, self.closing = False, True
        limit, stopped = time.monotonic() + seconds, False
        while not self.attempt():
            if not stopped:
                self.stop()
                stopped = True
            if time.monotonic() > limit or not self.stirs():
                return False
            time.sleep(0.0005)
        return True

    def attempt(self) -> bool:
        """Destroys the object if nothing prevents this now. If the object is being closed, first destroys the objects that
        need it. Returns True if the object is destroyed."""
        self.open = False
        if self.closing:
            for child in _youngest_first(self._children.values()):
                if not child._lasts:
                    child.closing = True
                    child.attempt()
        with self._lock:
            # Checks calls before children: a call that makes a child is inside until the child is registered.
            if self.over or self._inside or self._children:
                return self.over
            handle, self.handle = self.handle, NULL
            if handle != NULL and self._destroy(handle) is False:
                self.handle = handle
                return False
            self.over = True
        _live.pop(self.birth, None)
        for need in self._needs:
            need._children.pop(self.birth, None)
        if self._needs:
            _dropped.put(None)  # wakes the thread: it may wait for this object's end before it destroys another object
        return True

    def stop(self) -> None:
        """Ends the calls that are inside this object, and inside objects that need it."""
        with self._lock:
            if not self.over and self.handle != NULL:
                self._stop(self.handle)
        for child in _youngest_first(self._children.values()):
            if not child._lasts:
                child.stop()

    def stirs(self) -> bool:
        """Returns True if `attempt` may succeed soon. Otherwise this object waits for another object that needs it. The end
        of that object wakes the thread."""
        if self.closing:
            return not any(child._lasts for child in list(self._children.values()))
        return not self._children


def _youngest_first(lives: Iterable[Life]) -> List[Life]:
    return sorted(list(lives), key=lambda life: -life.birth)


# Live objects by birth, including dropped objects that are not destroyed yet.
_live: Dict[int, Life] = {}


def drop(life: Life, held: Any = None) -> None:
    """Queues `life` to be destroyed, and keeps `held` until then. Returns at once. Finalisers may call it on any thread."""
    try:
        if not life.over and life.here:
            _dropped.put((life, held))
    except Exception:  # the interpreter is ending
        pass


# ---- Destroying dropped objects --------------------------------------------------------------------------------------

# (life, the objects that it holds); None wakes the thread. put() of a SimpleQueue is reentrant, so finalisers may
# call it anywhere.
_dropped: "queue.SimpleQueue[Optional[Tuple[Life, Any]]]" = queue.SimpleQueue()
_starting = threading.Lock()
_thread: Optional[threading.Thread] = None


def _start_thread() -> None:
    global _thread
    if _thread is not None or not _starting.acquire(blocking=False):
        return
    try:
        thread = threading.Thread(target=_destroy_dropped, args=(_dropped,), name="entrain-dropped", daemon=True)
        thread.start()
        _thread = thread
    except RuntimeError:  # no thread can start. The next object tries again; the end of the interpreter destroys all
        pass
    finally:
        _starting.release()


def _destroy_dropped(dropped: "queue.SimpleQueue[Optional[Tuple[Life, Any]]]") -> None:
    waiting: List[Tuple[Life, Any]] = []
    while True:
        waiting += _taken(dropped, 0.05 if any(life.stirs() for life, _ in waiting) else None)
        waiting.sort(key=lambda entry: -entry[0].birth)
        waiting = [entry for entry in waiting if not entry[0].attempt()]


def _taken(dropped: "queue.SimpleQueue[Optional[Tuple[Life, Any]]]", timeout: Optional[float]) -> List[Tuple[Life, Any]]:
    """Returns the entries of the queue. Waits at most `timeout` seconds for the first; None: without a limit."""
    found = []
    try:
        found.append(dropped.get(timeout=timeout))
        while True:
            found.append(dropped.get_nowait())
    except queue.Empty:
        return [entry for entry in found if entry is not None]


# ---- Handles ------------------------------------------------------------------------------------------------------------


class Handle:
    """An object of the library. `close` destroys it, and so does the end of a `with` block or of the interpreter. Objects
    that need it are closed first. If the handle is dropped, a thread of the package destroys the object later, after the
    objects that need it. In a forked child closing does nothing, because the parent owns the object."""

    _what = "handle"

    def __init__(self, life: Life) -> None:
        #: The objects that the library uses until the object is destroyed.
        self._held = life.held
        self._life = life
        life.what, life.held, life.owner = self._what, [], weakref.ref(self)

    @property
    def closed(self) -> bool:
        """Whether close() was called here, or on an object that this one needs."""
        return not self._life.open

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Makes a call of the library on the handle, and raises its error."""
        with self._life as handle:
            status = function(handle, *arguments)
        if status != 0:
            raise self._blame(last_error(status))

    def _blame(self, error: Error) -> Error:
        """Returns `error`, with the exception of the caller's function as its cause."""
        return error

    def close(self) -> None:
        """Destroys the object. A second call does nothing. In a function that the library calls it raises
        FailedPrecondition, and the object stays open."""
        life = self._life
        if not life.here:
            life.open = False
        elif not life.over:
            _refuse_in_callback(self._what)
            if not life.end():
                drop(life, self._held)

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            drop(self._life, self._held)
        except AttributeError:  # __init__ did not complete
            pass


def _refuse_in_callback(what: str) -> None:
    # This call has no effect. It fails exactly where destruction is not allowed.
    if lib.entrain_mem_free(NULL, NULL) == lib.ENTRAIN_FAILED_PRECONDITION:
        record = last_error(lib.ENTRAIN_FAILED_PRECONDITION).record
        raise FailedPrecondition(dataclasses.replace(record, text=f"close of the {what}: {record.text.partition(': ')[2]}"))


@contextlib.contextmanager
def inside(*handles: Optional[Handle]) -> Iterator[List[Any]]:
    """Returns the library's handles of several objects, NULL for None. The objects are not destroyed within the
    block."""
    with contextlib.ExitStack() as stack:
        yield [NULL if handle is None else stack.enter_context(handle._life) for handle in handles]


# ---- The end of the interpreter, and fork ---------------------------------------------------------------------------------

_last_words: List[Callable[[], None]] = []


def at_exit(action: Callable[[], None]) -> None:
    """Arranges that `action` is called once all handles are closed, at the end of the interpreter."""
    _last_words.append(action)


def keep_for_ever(something: Any) -> None:
    """Keeps objects that the library may use beyond the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(something))


@atexit.register
def _end_everything() -> None:
    dropped, limit = _taken(_dropped, 0), time.monotonic() + TIME_LIMIT
    for life in _youngest_first(_live.values()):
        try:
            life.end(limit - time.monotonic())
        except Exception:  # the other objects are still ended
            pass
    for action in _last_words:
        action()
    for life in _youngest_first(_live.values()):  # a call is still inside
        keep_for_ever((life, life.owner()))
    keep_for_ever(dropped)


# In a forked child: objects of the parent. They are kept because freeing them would run finalisers.
_of_parent: List[Any] = []


def keep_of_parent(something: Any) -> None:
    """In a forked child: keeps an object that belongs to the parent."""
    _of_parent.append(something)


def _after_fork() -> None:
    global _process, _live, _dropped, _starting, _thread
    keep_of_parent((_live, _dropped))
    _process, _live, _dropped = os.getpid(), {}, queue.SimpleQueue()
    _starting, _thread = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


# ---- Calls that can be interrupted ----------------------------------------------------------------------------------------


def _forget(result: Any) -> None:
    pass


def interruptible(call: Callable[[], _R], undo: Callable[[_R], object] = _forget) -> _R:
    """Runs `call` and returns its result. It is for blocking calls of the library that cannot return a work (creating,
    saving, loading, and stores). On the main thread, `call` runs on another thread, so that signals are noticed at once. If
    a signal handler raises, the call continues on that thread. If the call then has a result, `undo` gets it."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: List[_R] = []
    failures: List[BaseException] = []
    lock, left = threading.Lock(), threading.Event()
    # Uses a lock and start_new_thread. threading.Thread.start calls Event.wait, which is Python code: a handler's exception
    # can become a RuntimeError in it.
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            result = call()
            with lock:
                if not left.is_set():
                    results.append(result)
                    return
            undo(result)
        except BaseException as failure:  # raised where the caller waits
            failures.append(failure)
        finally:
            done.release()

    try:
        start_new_thread(run, ())
        done.acquire()
    except BaseException:
        with lock:
            left.set()
        for result in results:
            undo(result)
        raise
    if failures:
        raise failures[0]
    return results[0]
