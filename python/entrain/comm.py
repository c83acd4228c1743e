"""Runtimes, communicators and batches."""
from __future__ import annotations

import dataclasses
import math
import os
import weakref
from typing import Any, Callable, List, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._library import NULL, OK, ffi, lib, nanoseconds, new_struct, text_of
from .arrays import Buffer, DTypeLike, buffer_of, dtype_of, numpy_dtype
from .collectives import Collectives
from .errors import Error, check, error_of, invalid, last_error, record_of
from .lifetime import Handle, interruptible
from .reductions import Callback, Reduction, constant
from .store import Store
from .works import Work, wait_for, work_error


class Runtime(Handle):
    """What a process has once: loop, listener, pools, identity. Most programs need none of their own: communicators share
    the process's. Ranks that are threads of one process need a runtime each. None: ENTRAIN_* variables, then defaults."""

    _what = "runtime"

    def __init__(self, *, transports: Optional[str] = None, interface: Optional[str] = None, ports: Optional[str] = None,
                 key_file: Optional[str] = None, host_id: Optional[str] = None) -> None:
        config = new_struct("runtime_config")
        texts = [_text(value) for value in (transports, interface, ports, key_file, host_id)]
        config.transports, config.interface_filter, config.ports, config.key_file, config.host_id = texts
        out = ffi.new("entrain_runtime_t**")
        check(lib.entrain_runtime_create(config, out))
        super().__init__(out[0], lib.entrain_runtime_destroy)

    @property
    def peer_id(self) -> bytes:
        """This runtime's identity, 16 bytes, as error records name it."""
        identity = ffi.new("entrain_peer_id_t*")
        check(lib.entrain_runtime_peer_id(self._open(), identity))
        return bytes(identity.bytes)


def _text(value: Optional[str]) -> Any:
    return NULL if value is None else ffi.new("char[]", value.encode())


@dataclasses.dataclass(frozen=True)
class CommStats:
    """Counted since the communicator was made; parts count for themselves."""

    #: Calls started on this rank.
    calls: int
    #: Payload bytes, without control messages and headers.
    bytes_sent: int
    bytes_received: int


class Comm(Collectives):
    """A communicator: ranks 0 to size - 1 that call collectives together. Made by `from_env`, `create`, `split`,
    `duplicate`. Any thread may call; threads that make calls without a tag on one communicator agree on the order themselves.
    After fork the child cannot use it."""

    _what = "communicator"

    def __init__(self, handle: Any, *needs: Handle, owned: bool = True) -> None:
        super().__init__(handle, self._release if owned else _leave, *needs)
        self._owned = owned
        self._memory: List[Any] = []
        self._callbacks: "weakref.WeakSet[Callback]" = weakref.WeakSet()
        number = ffi.new("int32_t*")
        check(lib.entrain_comm_rank(handle, number))
        #: This process's number in the communicator.
        self.rank = int(number[0])
        check(lib.entrain_comm_size(handle, number))
        #: How many ranks there are.
        self.size = int(number[0])

    # ---- making --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_env(cls, *, name: Optional[str] = None, timeout: Optional[float] = None, algorithms: Optional[str] = None,
                 tuning: Optional[str] = None, determinism: Optional[str] = None,
                 runtime: Optional[Runtime] = None) -> "Comm":
        """A communicator of all processes that a launcher started (entrain-run, torchrun, mpirun, srun); a world of one
        without any. Blocks until all have come.

        name         of several made from one store at the same time; None: "world"
        timeout      default seconds of operations, and of creation; None: ENTRAIN_TIMEOUT, else 30 minutes
        algorithms   "all_reduce:ring@1M-inf,broadcast:tree"; None: ENTRAIN_ALGORITHMS, else by cost
        tuning       a file of entrain-perf --tune, "probe", or "" for the library's own values; None: ENTRAIN_TUNING
        determinism  "algorithm" or "rank_order": what the bits of reductions may depend on
        """
        config, kept = _comm_config(name, timeout, algorithms, tuning, determinism, runtime)
        return cls._made(lib.entrain_comm_create_from_env, config, kept)

    @classmethod
    def create(cls, store: Store, rank: int, size: int, *, name: Optional[str] = None, timeout: Optional[float] = None,
               algorithms: Optional[str] = None, tuning: Optional[str] = None, determinism: Optional[str] = None,
               runtime: Optional[Runtime] = None) -> "Comm":
        """A communicator of `size` ranks that meet in the store; the other arguments as in `from_env`. Blocks until all have
        come; then TimedOut names those that did not."""
        config, kept = _comm_config(name, timeout, algorithms, tuning, determinism, runtime)
        config.store, config.rank, config.world_size = store._open(), rank, size
        return cls._made(lib.entrain_comm_create, config, (kept, store))

    @classmethod
    def _made(cls, function: Callable[[Any, Any], int], config: Any, kept: Any) -> "Comm":
        out = ffi.new("entrain_comm_t**")

        def call(kept: Any = kept) -> int:  # what the config points to lives as long as the call
            return function(config, out)

        interruptible(call, lambda: lib.entrain_comm_destroy(out[0]))
        return cls(out[0])

    def split(self, color: int, key: int = 0) -> "Optional[Comm]":
        """Collective: ranks that give the same color >= 0 form a part, numbered by (key, rank); color -1: in no part, None.
        A part fails alone."""
        return self._split(lib.entrain_comm_split_start, color, key)

    def duplicate(self) -> "Comm":
        """Collective: a communicator of the same ranks. Calls on the two never wait for each other."""
        copy = self._split(lib.entrain_comm_duplicate_start)
        assert copy is not None  # it has no color
        return copy

    def _split(self, start: Callable[..., int], *arguments: int) -> "Optional[Comm]":
        work, part = ffi.new("entrain_work_t**"), ffi.new("entrain_comm_t**")
        token = object()
        self._inside.add(token)
        try:
            check(start(self._open(), *arguments, work))
        finally:
            self._inside.discard(token)
        try:
            status = wait_for(work[0])
            if status != OK:
                raise self._blame(work_error(work[0], status))
            check(lib.entrain_comm_split_finish(work[0], part))
        finally:
            lib.entrain_work_free(work[0])  # where a signal handler raised, the part ends as soon as there is one
        return None if part[0] == NULL else Comm(part[0])

    # ---- asking --------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<entrain.Comm rank {self.rank} of {self.size}{', closed' if self.closed else ''}>"

    def transport(self, peer: int) -> str:
        """The name of the transport that reaches `peer`; "self" for this rank."""
        out = ffi.new("char**")
        check(lib.entrain_comm_transport(self._open(), peer, out))
        return text_of(out[0])

    def algorithm(self, collective: str, count: int, dtype: DTypeLike = "f32") -> str:
        """The algorithm that a call of `count` elements takes; collective: "all_reduce", "broadcast", ..."""
        out = ffi.new("char**")
        check(lib.entrain_comm_algorithm(self._open(), collective.encode(), count, dtype_of(dtype), out))
        return text_of(out[0])

    def explain(self, collective: str, count: int, dtype: DTypeLike = "f32") -> str:
        """The same with reasons: what was chosen, by what, and the estimated time of every algorithm."""
        text = ffi.new("char[]", 65536)
        check(lib.entrain_comm_explain(self._open(), collective.encode(), count, dtype_of(dtype), text, 65536))
        return text_of(text)

    def stats(self) -> CommStats:
        """Calls and bytes so far."""
        out = new_struct("comm_stats")
        check(lib.entrain_comm_stats(self._open(), out))
        return CommStats(out.calls, out.bytes_sent, out.bytes_received)

    def error(self) -> Optional[Error]:
        """What ended the communicator; None while it works."""
        out = new_struct("error")
        if lib.entrain_comm_error(self._open(), out) == OK:
            return None
        return self._blame(error_of(record_of(out)))

    # ---- ending --------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Ends the communicator on all ranks, from any thread: every call on it raises Aborted with `reason` within 250 ms.
        Parts and parents go on."""
        check(lib.entrain_comm_abort(self._open(), reason.encode()))

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits at most `timeout` seconds (None: for ever) until every call started here is done; whether it is so."""
        left = math.inf if timeout is None else timeout
        while True:
            status = lib.entrain_comm_drain(self._open(), round(min(left, 0.1) * 1e9))
            left -= 0.1
            if status != lib.ENTRAIN_IN_PROGRESS or left <= 0:
                break
        if status == lib.ENTRAIN_IN_PROGRESS:
            return False
        check(status)
        return True

    def _release(self, handle: Any) -> None:
        self._memory = [block for block in self._memory if block() is not None]
        if not self._memory:
            lib.entrain_comm_destroy(handle)
            return
        # Arrays of `alloc` are in use, and their memory goes with the last communicator: the last array destroys it.
        if lib.entrain_comm_drain(handle, 0) != OK:
            lib.entrain_comm_abort(handle, b"the communicator was closed with calls under way")
        rest = [block() for block in self._memory]
        shared = ffi.gc(ffi.cast("entrain_comm_t*", handle), lib.entrain_comm_destroy)
        for block in rest:
            if block is not None:
                block.comm, block.kept = shared, shared

    # ---- memory --------------------------------------------------------------------------------------------------------

    def alloc(self, shape: Union[int, Tuple[int, ...]], dtype: DTypeLike = "f32", *, huge_pages: bool = False) -> npt.NDArray[Any]:
        """A zeroed NumPy array in memory that the other processes of the host read where it lies: large messages out of it,
        on any communicator of the process, need no copy. Not a collective. Freed when the last view of it goes. bf16 and
        8-bit floats need ml_dtypes. Not of a mesh's communicator, which ends with the mesh."""
        if not self._owned:
            raise invalid("alloc", "this communicator belongs to a mesh, and its memory would end with it; any other one of "
                          "the process serves as well")
        kind = numpy_dtype(dtype)
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = max(1, math.prod(lengths) * kind.itemsize)
        out = ffi.new("void**")
        check(lib.entrain_mem_alloc(self._open(), nbytes, lib.ENTRAIN_MEM_HUGE_PAGES if huge_pages else 0, out))
        block = _Block(self._handle, out[0], nbytes)
        self._memory.append(weakref.ref(block))
        whole = np.frombuffer(block.buffer(), np.uint8)
        array: npt.NDArray[Any] = whole[: math.prod(lengths) * kind.itemsize].view(kind).reshape(lengths)
        return array

    def register(self, array: Any) -> "Registration":
        """Makes the memory of an array (NumPy, PyTorch, DLPack) such memory as `alloc` gives, at its place, for as long as the
        result is open: worth it for arrays that many large calls use, such as flat gradients. Nobody may write to the array
        meanwhile, nor while the registration is closed; its storage must not be resized or pinned until then.
        FailedPrecondition while a call uses the array."""
        return Registration(self, buffer_of("register", "array", array, writable=True))

    # ---- callbacks that fail ---------------------------------------------------------------------------------------------

    def _remember(self, reduction: Reduction) -> None:
        if reduction._callback is not None:
            self._callbacks.add(reduction._callback)

    def _blame(self, error: Error) -> Error:
        if error.record.code == lib.ENTRAIN_ABORTED:
            for callback in self._callbacks:
                callback.blame(error)
        return error


def _leave(handle: Any) -> None:
    """For a handle that another object owns."""


class _Block:
    """Memory of entrain_mem_alloc."""

    def __init__(self, comm: Any, pointer: Any, nbytes: int) -> None:
        self.comm = comm
        self.kept: Any = None
        self.pointer = pointer
        self.nbytes = nbytes

    def buffer(self) -> Any:
        # The array keeps the buffer, the buffer the pointer, and the pointer this object.
        return ffi.buffer(ffi.gc(self.pointer, self._free), self.nbytes)

    def _free(self, pointer: Any) -> None:
        lib.entrain_mem_free(self.comm, pointer)


class Registration(Handle):
    """An array whose memory peers read where it lies (Comm.register). Keeps the array. Closed with its communicator."""

    _what = "registration"

    def __init__(self, comm: Comm, buffer: Buffer) -> None:
        nbytes = buffer.count * buffer.dtype.itemsize
        if nbytes == 0:
            raise invalid("register", "array is empty")
        mapped = ffi.new("size_t*")
        handle = comm._open()
        check(lib.entrain_mem_register(handle, buffer.pointer, nbytes, mapped))
        #: Bytes that peers can map; 0 where the kernel does not let them (a file, memory that is shared already).
        self.mapped = int(mapped[0])
        self._comm = handle
        self._buffer = buffer
        super().__init__(buffer.pointer, _leave, comm)

    def close(self) -> None:
        """Gives the array ordinary memory again, with its contents. FailedPrecondition while a call uses it: it stays
        registered then."""
        if self._handle == NULL or os.getpid() != self._process:
            return
        status = lib.entrain_mem_deregister(self._comm, self._handle)
        used = status == lib.ENTRAIN_FAILED_PRECONDITION
        if used and not self._needs[0].closed:
            raise last_error(status)
        self._handle = NULL
        if used:  # the communicator ends under a call
            _kept.append(self._buffer)
        else:
            check(status)

    def __del__(self) -> None:
        try:
            self.close()
        except Error:
            _kept.append(self._buffer)
        except Exception:  # the interpreter is ending, or __init__ did not come to its end
            pass


# Of arrays that could not be deregistered: such memory must not be freed.
_kept: List[Buffer] = []


def _comm_config(name: Optional[str], timeout: Optional[float], algorithms: Optional[str], tuning: Optional[str],
                 determinism: Optional[str], runtime: Optional[Runtime]) -> Tuple[Any, Any]:
    config = new_struct("comm_config")
    texts = [_text(value) for value in (name, algorithms, tuning)]
    config.name, config.algorithms, config.tuning = texts
    config.timeout_ns = nanoseconds(timeout)
    if determinism is not None:
        config.determinism = constant("DETERMINISM", determinism, "determinism")
    if runtime is not None:
        config.runtime = runtime._open()
    return config, (texts, runtime)


class Batch(Handle):
    """Several calls on one communicator, started together: give the batch as `batch=` of calls, then `start` it. It can be
    started again once the last start is done, with whatever is in the arrays then, which it keeps. One thread at a time."""

    _what = "batch"

    def __init__(self, comm: Comm) -> None:
        out = ffi.new("entrain_batch_t**")
        check(lib.entrain_batch_create(comm._open(), out))
        super().__init__(out[0], lib.entrain_batch_destroy)
        self._comm = comm
        self._held: List[Any] = []

    def _hold(self, held: Any) -> None:
        self._held.append(held)

    def start(self) -> Work[None]:
        """Starts the calls; done when all are. The error is that of the first call, in their order, that failed."""
        out = ffi.new("entrain_work_t**")
        check(lib.entrain_batch_start(self._open(), out))
        return Work(out[0], (self._held, self), None, (), self._comm._blame)
