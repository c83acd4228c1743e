"""Who frees what, when: handles of the library, the end of the interpreter, and fork."""
from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Callable, List, Optional, Set, Type, TypeVar

from ._library import NULL
from .errors import Error, check, closed, last_error

_T = TypeVar("_T", bound="Handle")
_births = itertools.count()
_live: "weakref.WeakSet[Handle]" = weakref.WeakSet()


class Handle:
    """An object of the library's. `close` destroys it, once; so does leaving a `with` block, garbage collection, or the end
    of the interpreter. Objects made from it that need it are closed first. In a forked child closing does nothing:
    the parent owns the object."""

    _what = "handle"

    def __init__(self, handle: Any, destroy: Callable[[Any], None], *needs: "Handle") -> None:
        self._handle = handle
        self._destroy = destroy
        self._needs = needs
        self._children: "weakref.WeakSet[Handle]" = weakref.WeakSet()
        self._process = os.getpid()
        self._birth = next(_births)
        # A token of each thread that is inside a call which starts something on the handle, and returns soon.
        self._inside: Set[object] = set()
        for other in needs:
            other._children.add(self)
        _live.add(self)

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return bool(self._handle == NULL)

    def _open(self) -> Any:
        """The library's handle; FailedPrecondition once it is closed."""
        if self._handle == NULL:
            raise closed(self._what)
        return self._handle

    def close(self) -> None:
        """Destroys the object. A second call does nothing."""
        handle, self._handle = self._handle, NULL
        if handle == NULL:
            return
        for child in sorted(self._children, key=lambda child: -child._birth):
            child.close()
        if os.getpid() != self._process:
            return
        end = time.monotonic() + 1.0
        while self._inside:
            if time.monotonic() > end:
                return  # a call that does not return: its object stays
            time.sleep(0.0005)
        self._destroy(handle)

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is ending, or __init__ did not come to its end
            pass


_last_words: List[Callable[[], None]] = []


def at_exit(action: Callable[[], None]) -> None:
    """Has `action` called once all handles are closed, at the end of the interpreter."""
    _last_words.append(action)


@atexit.register
def _close_everything() -> None:
    for handle in sorted(_live, key=lambda handle: -handle._birth):
        try:
            handle.close()
        except Error:
            pass
    for action in _last_words:
        action()


def interruptible(call: Callable[[], int], undo: Optional[Callable[[], None]] = None) -> None:
    """Makes a call of the library that blocks and has no form with a work (what creates, saves and loads, and stores), so that
    signals are noticed at once: in the main thread the call is made by a thread of its own. If a signal handler raises, the call goes on there, and `undo` is
    called when it succeeds after all."""
    if threading.current_thread() is not threading.main_thread():
        check(call())
        return
    failures: List[BaseException] = []
    abandoned = threading.Event()
    done = threading.Event()

    def run() -> None:
        try:
            status = call()
            if status != 0:
                failures.append(last_error(status))
            elif abandoned.is_set() and undo is not None:
                undo()
        except BaseException as failure:  # shown where the caller waits
            failures.append(failure)
        finally:
            done.set()

    threading.Thread(target=run, name="entrain-call", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        abandoned.set()
        raise
    if failures:
        raise failures[0]
