"""Rendezvous stores: a small shared map by which ranks find each other."""
from __future__ import annotations

from typing import Any, Optional

from ._library import ffi, lib, nanoseconds, text_of
from .errors import check
from .lifetime import Handle, interruptible


class Store(Handle):
    """A rendezvous store (entrain/store.h). Any thread. Make one with `open` or `serve`; communicators made from a store
    do not need it once they stand."""

    _what = "store"

    def __init__(self, handle: Any) -> None:
        super().__init__(handle, lib.entrain_store_destroy)

    @classmethod
    def open(cls, url: str, timeout: Optional[float] = None) -> "Store":
        """Opens the store at `url`: "mem:NAME" (this process), "local:NAME" (this user's processes on this host),
        "file:DIRECTORY" (processes of one machine), "tcp://HOST:PORT[,HOST:PORT]" (a server elsewhere). Connecting is
        retried for `timeout` seconds (None: 30), then PeerLost names the addresses."""
        out = ffi.new("entrain_store_t**")
        text = url.encode()
        interruptible(lambda: lib.entrain_store_open(text, nanoseconds(timeout), out),
                      lambda: lib.entrain_store_destroy(out[0]))
        return cls(out[0])

    @classmethod
    def serve(cls, url: str) -> "Store":
        """Serves a store from this process until it is closed: "tcp://HOST:PORT" (port 0: the kernel chooses; `url` of the
        result has it) or "local:NAME". A port or name in use is FailedPrecondition."""
        out = ffi.new("entrain_store_t**")
        check(lib.entrain_store_serve(url.encode(), out))
        return cls(out[0])

    @property
    def url(self) -> str:
        """The URL by which others open this store."""
        return text_of(lib.entrain_store_url(self._open()))

    def set(self, key: str, value: bytes) -> None:
        """Sets a key (at most 512 bytes) to a value (at most 1 MiB)."""
        handle, name = self._open(), key.encode()
        interruptible(lambda: lib.entrain_store_set(handle, name, value, len(value)))

    def get(self, key: str, timeout: Optional[float] = None) -> bytes:
        """The value of a key, for which it waits at most `timeout` seconds (None: 30 minutes); then TimedOut."""
        handle, name = self._open(), key.encode()
        limit = nanoseconds(1800.0 if timeout is None else timeout)
        room = 4096
        while True:
            value, size = ffi.new("char[]", room), ffi.new("size_t*", room)
            interruptible(lambda: lib.entrain_store_get(handle, name, limit, value, size))
            if size[0] <= room:
                return bytes(ffi.buffer(value, size[0]))
            room = size[0]

    def add(self, key: str, delta: int = 1) -> int:
        """Adds to a counter (absent: 0), atomically; the sum."""
        handle, name, total = self._open(), key.encode(), ffi.new("int64_t*")
        interruptible(lambda: lib.entrain_store_add(handle, name, delta, total))
        return int(total[0])
