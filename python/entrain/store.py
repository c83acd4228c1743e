"""Rendezvous stores: a small shared map by which ranks find each other."""
from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Optional

from ._library import NULL, OK, ffi, lib, nanoseconds, new_struct, text_of
from .errors import check
from .lifetime import Handle, Life, drop, interruptible


class Store(Handle):
    """A rendezvous store (entrain/store.h). Any thread may use it. Make one with `open` or `serve`. A communicator
    needs its store only while it is made."""

    _what = "store"

    @classmethod
    def open(cls, url: str, timeout: Optional[float] = None) -> "Store":
        """Opens the store at `url`: "mem:NAME" (this process), "local:NAME" (this user's processes on this host),
        "file:DIRECTORY" (processes of one machine), "tcp://HOST:PORT[,HOST:PORT]" (a server elsewhere),
        `"etcd://HOST:PORT[,HOST:PORT][/PREFIX]"` (an etcd), "env:" (that of the job, for a process that joins it). Tries to
        connect for `timeout` seconds (None: 30), then raises PeerLost with the addresses."""
        out = ffi.new("entrain_store_t**")
        text = url.encode()

        def call() -> Life:
            check(lib.entrain_store_open(text, nanoseconds(timeout), out))
            return Life(out[0], lib.entrain_store_destroy)

        return cls(interruptible(call, drop))

    @classmethod
    def serve(cls, url: str) -> "Store":
        """Serves a store from this process until it is closed: "tcp://HOST:PORT" (port 0: the kernel chooses, and the
        result's `url` has the port) or "local:NAME". FailedPrecondition if the port or name is in use."""
        out = ffi.new("entrain_store_t**")
        check(lib.entrain_store_serve(url.encode(), out))
        return cls(Life(out[0], lib.entrain_store_destroy))

    @classmethod
    def of_functions(cls, set: Callable[[str, bytes], object], get: Callable[[str], Optional[bytes]],
                     add: Callable[[str, int], int], remove: Optional[Callable[[str], object]] = None,
                     host: Optional[str] = None) -> "Store":
        """Makes a store over any map that the ranks share and that needs no server of this library: c10d's Store,
        etcd, MPI. Every rank makes one over the same map.

        set, get   set and return a key's value; `get` does not wait, and returns None for an absent key
        add        adds to a counter, which begins at 0, atomically among all ranks; returns the sum
        remove     removes a key or counter; without it, keys stay, and each run needs a fresh map
        host       each rank chooses the network interface by which it reaches this host; None: by the default route

        The threads that use the store, or create communicators from it, call these functions, possibly several at
        once. An exception of a function ends the call that needed it with PeerLost, and sys.unraisablehook shows it."""
        functions = new_struct("store_functions")
        number = next(_numbers)
        callbacks = _callbacks(set, get, add, remove)
        functions.set, functions.get, functions.add, functions.remove = callbacks
        functions.user, functions.release = ffi.cast("void*", number), _release
        text = NULL if host is None else ffi.new("char[]", host.encode())
        functions.host = text
        _lent[number] = callbacks
        out = ffi.new("entrain_store_t**")
        try:
            check(lib.entrain_store_create(functions, out))
        except BaseException:
            del _lent[number]
            raise
        return cls(Life(out[0], lib.entrain_store_destroy))

    @property
    def url(self) -> str:
        """The URL by which other processes open this store."""
        with self._life as handle:
            return text_of(lib.entrain_store_url(handle))

    def set(self, key: str, value: bytes) -> None:
        """Sets a key (at most 512 bytes) to a value (at most 1 MiB)."""
        name = key.encode()
        interruptible(lambda: self._call(lib.entrain_store_set, name, value, len(value)))

    def get(self, key: str, timeout: Optional[float] = None) -> bytes:
        """Returns the value of a key. Waits for the key at most `timeout` seconds (None: 30 minutes), then raises
        TimedOut."""
        name, limit = key.encode(), nanoseconds(1800.0 if timeout is None else timeout)
        room = 4096
        while True:
            value, size = ffi.new("char[]", room), ffi.new("size_t*", room)
            interruptible(lambda: self._call(lib.entrain_store_get, name, limit, value, size))
            if size[0] <= room:
                return bytes(ffi.buffer(value, size[0]))
            room = size[0]

    def add(self, key: str, delta: int = 1) -> int:
        """Adds to a counter (absent: 0) atomically. Returns the sum."""
        name, total = key.encode(), ffi.new("int64_t*")
        interruptible(lambda: self._call(lib.entrain_store_add, name, delta, total))
        return int(total[0])

    def delete(self, key: str) -> None:
        """Removes a key or counter, if it exists. A store of functions needs `remove` for it."""
        name = key.encode()
        interruptible(lambda: self._call(lib.entrain_store_delete, name))


# Functions that the library may still call, by the value of `user`.
_lent: Dict[int, Any] = {}
_numbers = itertools.count(1)


def _released(user: Any) -> None:
    _lent.pop(int(ffi.cast("uintptr_t", user)), None)


_release = ffi.callback("entrain_store_release_fn", _released)
_FAILED: int = lib.ENTRAIN_PEER_LOST


def _callbacks(set: Callable[[str, bytes], object], get: Callable[[str], Optional[bytes]], add: Callable[[str, int], int],
               remove: Optional[Callable[[str], object]]) -> Any:
    def called_set(user: Any, key: Any, value: Any, size: int) -> int:
        set(text_of(key), bytes(ffi.buffer(value, size)) if size > 0 else b"")
        return OK

    def called_get(user: Any, key: Any, timeout_ns: int, value: Any, size: Any) -> int:
        found = get(text_of(key))
        if found is None:
            return int(lib.ENTRAIN_TIMED_OUT)
        ffi.memmove(value, found, min(len(found), size[0]))
        size[0] = len(found)
        return OK

    def called_add(user: Any, key: Any, delta: int, total: Any) -> int:
        total[0] = add(text_of(key), delta)
        return OK

    def called_remove(user: Any, key: Any) -> int:
        assert remove is not None
        remove(text_of(key))
        return OK

    return (ffi.callback("entrain_store_set_fn", called_set, error=_FAILED),
            ffi.callback("entrain_store_get_fn", called_get, error=_FAILED),
            ffi.callback("entrain_store_add_fn", called_add, error=_FAILED),
            NULL if remove is None else ffi.callback("entrain_store_remove_fn", called_remove, error=_FAILED))
