"""Runtimes, communicators and batches."""
from __future__ import annotations

import dataclasses
import functools
import math
import uuid
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._launch import shown
from ._library import NULL, OK, ffi, lib, nanoseconds, new_struct, text_of
from .arrays import Buffer, DTypeLike, buffer_of, dtype_of, numpy_dtype
from .collectives import Collectives
from .errors import Error, check, error_of, invalid, last_error, record_of
from .lifetime import Handle, Life, drop, inside, interruptible
from .reductions import Callback, Reduction, constant
from .store import Store
from .works import Work, members, orphan, wait_for, work_error


class Runtime(Handle):
    """The state of a process: engine, listener, pools, identity. Most programs need no Runtime of their own, because
    communicators share that of the process. Ranks that are threads of one process need one Runtime each. If an argument
    is None, its ENTRAIN_* variable is used. If the variable is not set, the default is used."""

    _what = "runtime"

    def __init__(self, *, transports: Optional[str] = None, interface: Optional[str] = None, ports: Optional[str] = None,
                 key_file: Optional[str] = None, tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
                 tls_ca: Optional[str] = None, host_id: Optional[str] = None) -> None:
        config = new_struct("runtime_config")
        texts = [_text(value) for value in (transports, interface, ports, key_file, tls_cert, tls_key, tls_ca, host_id)]
        config.transports, config.interface_filter, config.ports, config.key_file = texts[:4]
        config.tls_cert, config.tls_key, config.tls_ca, config.host_id = texts[4:]
        out = ffi.new("entrain_runtime_t**")
        check(lib.entrain_runtime_create(config, out))
        super().__init__(Life(out[0], lib.entrain_runtime_destroy))

    @property
    def peer_id(self) -> bytes:
        """The identity of this runtime, 16 bytes, as error records show it."""
        identity = ffi.new("entrain_peer_id_t*")
        self._call(lib.entrain_runtime_peer_id, identity)
        return bytes(identity.bytes)


_PARTITIONS = ("majority", "any")  # index: ENTRAIN_PARTITION_*
_STATES = ("alive", "lost", "left")  # index: ENTRAIN_MEMBER_*


def _text(value: Optional[str]) -> Any:
    return NULL if value is None else ffi.new("char[]", value.encode())


@dataclasses.dataclass(frozen=True)
class CommStats:
    """Counts since the communicator was made. Communicators made by `split` count separately."""

    #: Calls started on this rank.
    calls: int
    #: Payload bytes, without control messages and headers.
    bytes_sent: int
    bytes_received: int


@dataclasses.dataclass(frozen=True)
class Member:
    """The state of a rank, as far as this rank knows it."""

    rank: int
    #: Its rank in the communicator from which `shrink`, `split` or `duplicate` made this one; -1: there is none.
    parent_rank: int
    #: The identity of its process, 16 bytes, as error records show it.
    peer_id: bytes
    #: "alive", "lost" or "left" (it has closed the communicator).
    state: str
    #: The reason why the path to a lost rank ended; otherwise empty.
    text: str


class Comm(Collectives):
    """A communicator: ranks 0 to size - 1 that call collectives together. Made by `from_env`, `create`, `join`, `grow`,
    `split`, `duplicate`. Any thread may call. Threads that make untagged calls on one communicator must agree on their
    order themselves. A child process made by fork cannot use the communicator."""

    _what = "communicator"

    def __init__(self, life: Life, *, owned: bool = True) -> None:
        super().__init__(life)
        self._owned = owned
        self._callbacks: "weakref.WeakSet[Callback]" = weakref.WeakSet()
        number = ffi.new("int32_t*")
        self._call(lib.entrain_comm_rank, number)
        #: This process's number in the communicator.
        self.rank = int(number[0])
        self._call(lib.entrain_comm_size, number)
        #: The number of ranks.
        self.size = int(number[0])

    # ---- making --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_env(cls, *, name: Optional[str] = None, timeout: Optional[float] = None, algorithms: Optional[str] = None,
                 tuning: Optional[str] = None, determinism: Optional[str] = None,
                 runtime: Optional[Runtime] = None) -> "Comm":
        """Makes a communicator of all processes that a launcher started (entrain-run, torchrun, mpirun, srun), or a
        world of one without a launcher. Blocks until all processes have come.

        In a process that entrain-run --elastic has started again (ENTRAIN_RESTARTS is not 0) it joins instead, as `join`: it blocks until
        the others call `grow` on the communicator of this name. Replicas of EDiT and ACCO do not call grow, so such a process of theirs
        does not call from_env: it gives the constructor `join=` and no communicator.

        name         distinguishes communicators that are made from one store at the same time; None: "world"
        timeout      default seconds of operations, and of creation; None: ENTRAIN_TIMEOUT, else 30 minutes
        algorithms   "all_reduce:ring@1M-inf,broadcast:tree"; None: ENTRAIN_ALGORITHMS, else by cost
        tuning       a file of entrain-perf --tune, "probe", or "" for the library's own values; None: ENTRAIN_TUNING
        determinism  "algorithm" or "rank_order": the inputs that the bits of reductions may depend on"""
        config, kept = _comm_config(name, timeout, algorithms, tuning, determinism)
        return cls._made(lib.entrain_comm_create_from_env, config, kept, None, runtime)

    @classmethod
    def create(cls, store: Store, rank: int, size: int, *, name: Optional[str] = None, timeout: Optional[float] = None,
               algorithms: Optional[str] = None, tuning: Optional[str] = None, determinism: Optional[str] = None,
               runtime: Optional[Runtime] = None) -> "Comm":
        """Makes a communicator of `size` ranks that meet in the store. The other arguments are those of `from_env`.
        Blocks until all ranks have come. At the time limit, TimedOut names the ranks that did not come."""
        config, kept = _comm_config(name, timeout, algorithms, tuning, determinism)
        config.rank, config.world_size = rank, size
        return cls._made(lib.entrain_comm_create, config, kept, store, runtime)

    @classmethod
    def _made(cls, function: Callable[[Any, Any], int], config: Any, kept: Any, store: Optional[Store],
              runtime: Optional[Runtime]) -> "Comm":
        out = ffi.new("entrain_comm_t**")

        def call(kept: Any = kept) -> Life:  # keeps the config's objects alive during the call
            with inside(store, runtime) as (config.store, config.runtime):
                check(function(config, out))
            return _owned(out[0])

        return cls(interruptible(call, drop))

    @classmethod
    def alone(cls, store: Optional[Store] = None, *, timeout: Optional[float] = None,
              runtime: Optional[Runtime] = None) -> "Comm":
        """Makes a communicator of this process alone, for a process that joins others as a replica (EDiT and ACCO with
        `join`). It uses the network interface through which `store` is reached.

        store        the store in which the others take in newcomers; None: ENTRAIN_STORE, or that of rank 0 at
                     MASTER_ADDR"""
        name = f"newcomer {uuid.uuid4().hex}"
        if store is not None:
            return cls.create(store, 0, 1, name=name, timeout=timeout, runtime=runtime)
        with Store.open("env:") as opened:
            return cls.create(opened, 0, 1, name=name, timeout=timeout, runtime=runtime)

    @classmethod
    def join(cls, store: Optional[Store] = None, *, name: Optional[str] = None, wait: Optional[float] = None,
             timeout: Optional[float] = None, algorithms: Optional[str] = None, tuning: Optional[str] = None,
             determinism: Optional[str] = None, runtime: Optional[Runtime] = None) -> "Comm":
        """Joins a running communicator. Applies in the store, and blocks until the communicator's ranks call `grow` and
        take this process in. At the time limit, the text of TimedOut has the reason.

        store        the store that the ranks give to `grow`; None: the store of `from_env` (only ENTRAIN_STORE is needed)
        name         the communicator's name; None: "world"
        wait         seconds after which the call gives up; None: `timeout`
        The other arguments are those of `from_env`; algorithms, tuning and determinism must be the same as on the
        ranks."""
        config, kept = _comm_config(name, timeout, algorithms, tuning, determinism, "join_config")
        config.wait_ns = nanoseconds(wait)
        with shown():
            return cls._made(lib.entrain_comm_join, config, kept, store, runtime)

    def grow(self, store: Optional[Store] = None, *, min_newcomers: int = 0, max_newcomers: int = 0, wait: float = 0,
             timeout: Optional[float] = None) -> "Optional[Comm]":
        """Collective: returns a communicator of these ranks and of the processes that have called `join`. The processes
        get the next rank numbers. Returns None if no newcomer could be taken in, or fewer than `min_newcomers`. In both
        cases this communicator works as before. A newcomer that dies meanwhile is left out.

        store          the store in which newcomers apply; None: the store of `from_env`
        min_newcomers  least number of newcomers; if fewer have applied, none is taken in
        max_newcomers  largest number of newcomers; further ones wait for the next call; 0: no limit
        wait           seconds to wait for `min_newcomers`
        timeout        seconds for the rest of the call; None: the communicator's"""
        config, out = new_struct("grow_config"), ffi.new("entrain_comm_t**")
        config.min_newcomers, config.max_newcomers = min_newcomers, max_newcomers
        config.wait_ns, config.timeout_ns = nanoseconds(wait), nanoseconds(timeout)

        def call() -> Optional[Life]:
            with inside(self, store) as (comm, config.store):
                status = lib.entrain_comm_grow(comm, config, out)
                if status != OK:
                    raise self._blame(last_error(status))
            return None if out[0] == NULL else _owned(out[0])

        life = interruptible(call, lambda life: None if life is None else drop(life))
        return None if life is None else Comm(life)

    def split(self, color: int, key: int = 0) -> "Optional[Comm]":
        """Collective: ranks that give the same color >= 0 form a new communicator, numbered by (key, rank). A rank with
        color -1 is in none, and gets None. If a new communicator fails, this one does not."""
        return self._split(lib.entrain_comm_split, color, key)

    def duplicate(self) -> "Comm":
        """Collective: returns a communicator of the same ranks. Calls on the two never wait for each other."""
        copy = self._split(lib.entrain_comm_duplicate)
        assert copy is not None  # a duplicate has no color
        return copy

    def _split(self, start: Callable[..., int], *arguments: int) -> "Optional[Comm]":
        work, part = ffi.new("entrain_work_t**"), ffi.new("entrain_comm_t**")
        self._call(start, *arguments, NULL, work)
        try:
            status = wait_for(work[0])
            if status != OK:
                raise self._blame(work_error(work[0], status))
            check(lib.entrain_comm_split_finish(work[0], part))
        finally:
            lib.entrain_work_free(work[0])  # if a signal handler has raised, the part ends as soon as it exists
        return None if part[0] == NULL else Comm(_owned(part[0]))

    def shrink(self, *, exclude: Sequence[int] = (), partition: str = "majority", timeout: Optional[float] = None,
               name: Optional[str] = None) -> "Comm":
        """Makes a communicator of the remaining ranks, in the order of their ranks. A collective of these ranks; it
        also works after this communicator has ended. docs/elastic.md says which ranks remain.

        exclude    ranks to leave out although they live. A rank is left out if any caller lists it
        partition  "majority": at most one side goes on if ranks do not reach each other; "any": each side
        timeout    seconds; None: the communicator's. TimedOut names the ranks that live and did not call; the call may be
                   repeated
        name       of the new communicator; None: this one's

        Raises StaleGeneration if the others go on without this rank."""
        if partition not in _PARTITIONS:
            raise invalid("shrink", f"partition {partition!r} is neither 'majority' nor 'any'")
        config, out = new_struct("shrink_config"), ffi.new("entrain_comm_t**")
        ranks, text = ffi.new("int32_t[]", list(exclude)), _text(name)
        config.timeout_ns = 0 if timeout is None else nanoseconds(timeout)
        config.exclude, config.exclude_count, config.name = ranks, len(exclude), text
        config.partition = _PARTITIONS.index(partition)

        def call(kept: Any = (ranks, text)) -> Life:  # keeps the config's objects alive during the call
            self._call(lib.entrain_comm_shrink, config, out)
            return _owned(out[0])

        return Comm(interruptible(call, drop))

    def agree(self, flag: int) -> int:
        """Returns the bitwise AND of the flags (32 bits) of all remaining ranks, equal on all of them. A collective of
        these ranks; it also works after the communicator has ended."""
        value = ffi.new("uint32_t*", flag)
        interruptible(lambda: self._call(lib.entrain_comm_agree, value))
        return int(value[0])

    # ---- asking --------------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The number of membership changes: 0 for a communicator from `create`, and one more for each `shrink` and each
        `grow`."""
        return int(self._stats().generation)

    def members(self) -> List[Member]:
        """Returns the state of each rank, in rank order, as far as this rank knows it now. Local."""
        structs, count = ffi.new("entrain_member_t[]", self.size), ffi.new("int32_t*", self.size)
        for i in range(self.size):
            lib.entrain_struct_init(lib.ENTRAIN_STRUCT_MEMBER, structs + i, ffi.sizeof("entrain_member_t"))
        self._call(lib.entrain_comm_members, structs, count)
        return [Member(s.rank, s.parent_rank, bytes(s.peer_id.bytes), _STATES[s.state], text_of(s.text)) for s in structs]

    def __repr__(self) -> str:
        return f"<entrain.Comm rank {self.rank} of {self.size}{', closed' if self.closed else ''}>"

    def transport(self, peer: int) -> str:
        """Returns the name of the transport that reaches `peer`; "self" for this rank."""
        out = ffi.new("char**")
        self._call(lib.entrain_comm_transport, peer, out)
        return text_of(out[0])

    def algorithm(self, collective: str, count: int, dtype: DTypeLike = "f32") -> str:
        """Returns the algorithm of a call of `count` elements. `collective`: "all_reduce", "broadcast", ..."""
        out = ffi.new("char**")
        self._call(lib.entrain_comm_algorithm, collective.encode(), count, dtype_of(dtype), out)
        return text_of(out[0])

    def explain(self, collective: str, count: int, dtype: DTypeLike = "f32") -> str:
        """Returns the algorithm with reasons: the choice, the setting behind it, and the estimated time of every
        algorithm."""
        text = ffi.new("char[]", 65536)
        self._call(lib.entrain_comm_explain, collective.encode(), count, dtype_of(dtype), text, 65536)
        return text_of(text)

    def stats(self) -> CommStats:
        """Returns the calls and bytes so far."""
        out = self._stats()
        return CommStats(out.calls, out.bytes_sent, out.bytes_received)

    def _stats(self) -> Any:
        out = new_struct("comm_stats")
        self._call(lib.entrain_comm_stats, out)
        return out

    @property
    def sequence(self) -> int:
        """The number of the last untagged collective that this rank has started, as error records show it; 0: none.
        Equal on ranks that have started the same calls. It is not a count of calls."""
        return int(self._stats().sequence)

    def set_timeout(self, timeout: float) -> None:
        """Sets the default seconds of calls that this rank starts from now on. Communicators that `split` and
        `duplicate` make later inherit the value. Local."""
        self._call(lib.entrain_comm_set_timeout, nanoseconds(timeout))

    def late(self) -> List[int]:
        """Returns the ranks that were late for the call whose deadline ended the communicator, in rank order, at most
        128. Empty while the communicator works, and if the communicator ended for another reason. Equal on all ranks
        that learned of the end."""
        ranks, count = ffi.new("int32_t[128]"), ffi.new("int32_t*", 128)
        self._call(lib.entrain_comm_late, ranks, count)
        return list(ranks[0:min(count[0], 128)])

    def error(self) -> Optional[Error]:
        """Returns the error that ended the communicator; None while it works."""
        out = new_struct("error")
        with self._life as handle:
            if lib.entrain_comm_error(handle, out) == OK:
                return None
        return self._blame(error_of(record_of(out)))

    # ---- ending --------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Ends the communicator on all ranks, from any thread: every call on it raises Aborted with `reason` within 250
        ms. Its parent, and communicators that were split from it, are not affected."""
        self._call(lib.entrain_comm_abort, reason.encode())

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits at most `timeout` seconds (None: for ever) until every call started here is done. Returns True if all
        these calls are done."""
        left = math.inf if timeout is None else timeout
        while True:
            with self._life as handle:
                status = lib.entrain_comm_drain(handle, round(min(left, 0.1) * 1e9))
            left -= 0.1
            if status != lib.ENTRAIN_IN_PROGRESS or left <= 0:
                break
        if status == lib.ENTRAIN_IN_PROGRESS:
            return False
        check(status)
        return True

    # ---- memory --------------------------------------------------------------------------------------------------------

    def alloc(self, shape: Union[int, Tuple[int, ...]], dtype: DTypeLike = "f32", *, huge_pages: bool = False) -> npt.NDArray[Any]:
        """Returns a zeroed NumPy array in memory that the other processes of the host can map. They read large messages
        in place from this memory, on any communicator of the process. Not a collective. The memory is freed with the
        last view of the array. bf16 and 8-bit floats need ml_dtypes. Not allowed on a mesh's communicator, because the
        memory would end with the mesh."""
        if not self._owned:
            raise invalid("alloc", "this communicator belongs to a mesh, and its memory would end with it; any other one of "
                          "the process serves as well")
        kind = numpy_dtype(dtype)
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = max(1, math.prod(lengths) * kind.itemsize)
        out = ffi.new("void**")
        with self._life as handle:
            check(lib.entrain_mem_alloc(handle, nbytes, lib.ENTRAIN_MEM_HUGE_PAGES if huge_pages else 0, out))
            # The memory would be freed with the last communicator, so a closed communicator is destroyed after its last
            # array.
            block = Life(out[0], functools.partial(_free, self._life), self._life, lasts=True)
        # The array keeps the buffer alive. The buffer keeps the pointer alive.
        whole = np.frombuffer(ffi.buffer(ffi.gc(out[0], lambda _: drop(block)), nbytes), np.uint8)
        array: npt.NDArray[Any] = whole[: math.prod(lengths) * kind.itemsize].view(kind).reshape(lengths)
        return array

    def register(self, array: Any) -> "Registration":
        """Until the result is closed, the other processes of the host can map the memory of an array (NumPy, PyTorch,
        DLPack), like memory of `alloc`. The array keeps its address. A registration is worthwhile for arrays that many
        large calls use, such as flat gradients. No thread may write to the array during this call, nor while the
        registration is being closed. The array's storage must not be resized or pinned until the registration is
        closed. FailedPrecondition while a call uses the array."""
        return Registration(self, buffer_of("register", "array", array, writable=True))

    # ---- callbacks that fail ---------------------------------------------------------------------------------------------

    def _remember(self, reduction: Reduction) -> None:
        if reduction._callback is not None:
            self._callbacks.add(reduction._callback)

    def _blame(self, error: Error) -> Error:
        if error.record.code == lib.ENTRAIN_ABORTED:
            for callback in members(self._callbacks):
                callback.blame(error)
        return error


def _owned(handle: Any) -> Life:
    return Life(handle, lib.entrain_comm_destroy, stop=end_calls)


def end_calls(handle: Any) -> None:
    """Ends the running calls of a communicator that is closed, as its destruction does."""
    if lib.entrain_comm_drain(handle, 0) != OK:
        lib.entrain_comm_abort(handle, b"the communicator was closed with calls under way")


def _free(comm: Life, pointer: Any) -> bool:
    """Frees memory of `alloc`. Returns False, and frees nothing, while a call uses the memory."""
    return bool(lib.entrain_mem_free(comm.handle, pointer) != lib.ENTRAIN_FAILED_PRECONDITION)


class Registration(Handle):
    """An array whose memory peers read in place (Comm.register). Keeps the array alive. Closed with its communicator."""

    _what = "registration"

    def __init__(self, comm: Comm, buffer: Buffer) -> None:
        nbytes = buffer.count * buffer.dtype.itemsize
        if nbytes == 0:
            raise invalid("register", "array is empty")
        mapped = ffi.new("size_t*")
        self._statuses: List[int] = []  # the last status of entrain_mem_deregister
        with comm._life as handle:
            check(lib.entrain_mem_register(handle, buffer.pointer, nbytes, mapped))
            life = Life(buffer.pointer, functools.partial(_deregister, comm._life, self._statuses), comm._life, held=[buffer])
        super().__init__(life)
        #: Bytes that peers can map; 0 if the kernel does not allow it (a file, memory that is shared already).
        self.mapped = int(mapped[0])

    def close(self) -> None:
        """Makes the array's memory ordinary again, with its contents. While a call uses the array, raises
        FailedPrecondition, and the array stays registered."""
        if self._life.over or not self._life.here:
            return
        if self._life.attempt():
            check(self._statuses[-1])
        elif not self._life.closing:
            self._life.open = True
            raise last_error(self._statuses[-1])


def _deregister(comm: Life, statuses: List[int], pointer: Any) -> bool:
    """Deregisters memory. Returns False, and does nothing, while a call uses the memory."""
    statuses[:] = [lib.entrain_mem_deregister(comm.handle, pointer)]
    return bool(statuses[-1] != lib.ENTRAIN_FAILED_PRECONDITION)


def _comm_config(name: Optional[str], timeout: Optional[float], algorithms: Optional[str], tuning: Optional[str],
                 determinism: Optional[str], struct: str = "comm_config") -> Tuple[Any, Any]:
    config = new_struct(struct)
    texts = [_text(value) for value in (name, algorithms, tuning)]
    config.name, config.algorithms, config.tuning = texts
    config.timeout_ns = nanoseconds(timeout)
    if determinism is not None:
        config.determinism = constant("DETERMINISM", determinism, "determinism")
    return config, texts


class Batch(Handle):
    """Several calls on one communicator that start together. Pass the batch as `batch=` to calls, then call `start`.
    The batch can be started again once the last start is done. It keeps the arrays, and uses the contents that they
    have at the start. Thread safety: one thread at a time."""

    _what = "batch"

    def __init__(self, comm: Comm) -> None:
        out = ffi.new("entrain_batch_t**")
        comm._call(lib.entrain_batch_create, out)
        super().__init__(Life(out[0], lib.entrain_batch_destroy))
        self._comm = comm

    def start(self) -> Work[None]:
        """Starts the calls. The result is done when all calls are. If calls fail, its error is that of the first failed
        call, in the order in which the batch got the calls."""
        out = ffi.new("entrain_work_t**")
        held = (self._held, self)
        try:
            self._call(lib.entrain_batch_start, out)
            return Work(out, held, None, (), self._comm._blame)
        except BaseException:  # from a signal handler, for example
            if out[0] != NULL:
                orphan(out[0], held)
            raise

    def _blame(self, error: Error) -> Error:
        return self._comm._blame(error)
