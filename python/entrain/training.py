"""The common part of the training objects: blocking calls, checkpoints, and the caller's state."""
from __future__ import annotations

import dataclasses
import os
import sys
import time
from typing import Any, BinaryIO, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence

import numpy as np
import numpy.typing as npt

from ._library import IN_PROGRESS, NULL, OK, ffi, lib, nanoseconds, new_struct
from .arrays import DType, buffer_of, numpy_dtype
from .errors import Aborted, Error, invalid
from .lifetime import Handle, Life
from .reductions import Callback, constant, resolve_op
from .works import orphan, wait_for, work_error


class Trained(Handle):
    """An object of entrain/train.h. Thread safety: one thread at a time. Ctrl-C is noticed in every call that waits
    for other ranks. A wait for a layer, for gradients or for a round of ACCO may then be repeated. Any other call
    continues by itself, and the object must only be closed."""

    def __init__(self, life: Life, callbacks: Sequence[Callback] = ()) -> None:
        super().__init__(life)
        self._callbacks = list(callbacks)
        #: By field of the object's figures: the time in `_watch`, of which the library does not know.
        self._waited: Dict[str, int] = {}

    def _watch(self, make: Callable[..., int], *arguments: Any, timeout: Optional[float] = None, counts: Optional[str] = None) -> bool:
        """Waits for the work that `make` returns, at most `timeout` seconds. Returns whether it is over. Ignores the work's error,
        because the call that uses the result returns the same error. `counts`: the field to which `_told` adds the time."""
        out, begin = ffi.new("entrain_work_t**"), time.monotonic_ns()
        with self._life as handle:
            if make(handle, *arguments, out) != OK:
                return True
        try:
            return wait_for(out[0], -1 if timeout is None else int(timeout * 1e9)) != IN_PROGRESS
        finally:
            lib.entrain_work_free(out[0])
            if counts is not None:
                self._waited[counts] = self._waited.get(counts, 0) + time.monotonic_ns() - begin

    def _told(self, struct: Any) -> Any:
        """Adds the times of `_watch` to the library's."""
        for field, waited in self._waited.items():
            setattr(struct, field, getattr(struct, field) + waited)
        return struct

    def _start(self, start: Callable[..., int], *arguments: Any, held: Any = None) -> None:
        """Starts a call with `start`, and waits until the call is over. Keeps `arguments` and `held` alive until
        then."""
        out = ffi.new("entrain_work_t**")
        self._call(start, *arguments, out)
        try:
            status = wait_for(out[0])
        except BaseException:  # from a signal handler, for example: the call continues
            orphan(out[0], (arguments, held))
            raise
        error = None if status == OK else self._blame(work_error(out[0], status))
        lib.entrain_work_free(out[0])
        if error is not None:
            raise error

    def _blame(self, error: Error) -> Error:
        if isinstance(error, Aborted):
            for callback in self._callbacks:
                callback.blame(error)
        return error


@dataclasses.dataclass(frozen=True)
class StateEntry:
    """An array of the state, or this rank's piece of a layer (entrain_state_info_t)."""

    name: str
    #: -1: belongs to no layer.
    layer: int
    #: For a layer: its part of the model, if the model is cut by tensor and pipeline rank; else -1.
    part: int
    #: The ranks that hold equal values: "all", "rank", "replica" or "layer".
    holder: str
    #: The owner, for "rank" and "replica"; else -1.
    rank: int
    #: For a piece of a layer: the elements of the whole layer, the piece's first element in it, and the piece's
    #: elements. Otherwise count, 0 and count.
    whole_count: int
    first: int
    count: int
    dtype: DType
    #: Whether a checkpoint takes the array from this rank. Other ranks may hold equal values.
    saves: bool

    @property
    def key(self) -> str:
        """A text of name, layer, place and rank: "steps@0", "anchor.3[0:128]", with parts of the model
        "anchor.1.3[0:128]". On all ranks, only copies of the same array have equal keys."""
        if self.layer >= 0:
            part = f".{self.part}" if self.part > 0 else ""
            return f"{self.name}{part}.{self.layer}[{self.first}:{self.first + self.count}]"
        return self.name if self.rank < 0 else f"{self.name}@{self.rank}"

    @property
    def numpy_dtype(self) -> Any:
        """NumPy's type of the array. Without ml_dtypes, bf16 is returned as its bits, uint16."""
        bits = self.dtype is DType.BF16 and "ml_dtypes" not in sys.modules
        return np.dtype(np.uint16) if bits else numpy_dtype(self.dtype)


_HOLDERS = {lib.ENTRAIN_STATE_ALL: "all", lib.ENTRAIN_STATE_RANK: "rank", lib.ENTRAIN_STATE_REPLICA: "replica",
            lib.ENTRAIN_STATE_LAYER: "layer"}


class State(Handle):
    """The state of a training object, array by array (entrain_state_t). Read it with `get`; or set all of it with
    `set`, and let `commit` apply it."""

    _what = "state"

    def __init__(self, life: Life, owner: Trained, kind: str) -> None:
        super().__init__(life)
        self._owner = owner
        #: "portable" or "exact".
        self.kind = kind
        count = ffi.new("size_t*")
        self._call(lib.entrain_state_count, count)
        #: The entries of which this rank has a part.
        self.entries: List[StateEntry] = [self._entry(index) for index in range(count[0])]
        self._indices = {entry.key: index for index, entry in enumerate(self.entries)}

    def _entry(self, index: int) -> StateEntry:
        info = new_struct("state_info")
        self._call(lib.entrain_state_info, index, info)
        return StateEntry(ffi.string(info.name).decode(), info.layer, info.part, _HOLDERS[info.holder], info.rank,
                          info.whole_count, info.first, info.count, DType(info.dtype), bool(info.saves))

    def _index(self, entry: StateEntry) -> int:
        index = self._indices.get(entry.key)
        if index is None:
            raise invalid("state", f"there is no {entry.key!r} on this rank")
        return index

    def get(self, entry: StateEntry) -> npt.NDArray[Any]:
        """Returns a copy of the array. Local."""
        index, array = self._index(entry), np.empty(entry.count, entry.numpy_dtype)
        pointer = ffi.cast("void*", array.ctypes.data)
        self._call(lib.entrain_state_get, index, pointer, entry.count, entry.dtype)
        return array

    def set(self, entry: StateEntry, array: Any) -> None:
        """Sets the new contents of the array: entry.count elements of its type, which are copied. Local. The run does
        not change."""
        buffer = buffer_of("set", entry.key, array)
        # The bits of bf16, in the form that `get` returns.
        dtype = entry.dtype if entry.dtype is DType.BF16 and buffer.dtype is DType.U16 else buffer.dtype
        self._call(lib.entrain_state_set, self._index(entry), buffer.pointer, buffer.count, dtype)

    def commit(self, timeout: Optional[float] = None) -> None:
        """Continues the run with the values that were set, on all ranks or on none. Collective; once."""
        with self._life as handle:  # neither object is destroyed meanwhile
            self._owner._start(lambda owner, work: int(lib.entrain_state_commit(handle, nanoseconds(timeout), work)))


class _File:
    """A file object as entrain_checkpoint_functions_t, from its current position on."""

    def __init__(self, file: Optional[BinaryIO], *, reads: bool) -> None:
        self.functions = new_struct("checkpoint_functions")
        self.callbacks: List[Callback] = []
        if file is None:
            return
        here = file
        base = here.tell()

        def write_at(user: Any, offset: int, data: Any, count: int) -> None:
            here.seek(base + offset)
            left = memoryview(ffi.buffer(data, count))
            while left:
                left = left[here.write(left):]

        def finish(user: Any) -> None:
            here.seek(0, os.SEEK_END)
            here.flush()

        def read_at(user: Any, offset: int, data: Any, count: int) -> None:
            here.seek(base + offset)
            to = ffi.buffer(data, count)
            done = 0
            while done < count:
                piece = here.read(count - done)
                if not piece:
                    raise EOFError(f"the file ends at byte {base + offset + done}")
                to[done:done + len(piece)] = piece
                done += len(piece)

        if reads:
            self.functions.bytes = here.seek(0, os.SEEK_END) - base
            self._use("read_at", read_at, "entrain_checkpoint_read_fn")
        else:
            self._use("write_at", write_at, "entrain_checkpoint_write_fn")
            self._use("finish", finish, "entrain_checkpoint_finish_fn")

    def _use(self, name: str, function: Callable[..., None], kind: str) -> None:
        callback = Callback(function, kind)
        self.callbacks.append(callback)
        setattr(self.functions, name, callback.pointer)


def identity_text(identity: Mapping[str, Any]) -> bytes:
    """Returns the lines KEY=VALUE of entrain_edit_config_t.identity."""
    for key, value in identity.items():
        if "\n" in f"{key}{value}" or "=" in str(key):
            raise invalid("identity", f"{key!r}: {value!r} has a line break, or the key has \"=\"")
    return "\n".join(f"{key}={value}" for key, value in identity.items()).encode()


@dataclasses.dataclass(frozen=True)
class Reduced:
    """The result of `reduce`: the same values on all ranks, this rank's number among the ranks whose values are in them,
    and the number of these ranks."""
    values: List[float]
    rank: int
    ranks: int


class Checkpointed(Trained):
    """Checkpoints (entrain_edit_save and so on in entrain/train.h state the whole contract)."""

    _kind: ClassVar[str]

    def add_state(self, name: str, array: Any, *, per_rank: bool = True) -> None:
        """Makes `array` part of the state: saves read it, loads write it, and it is kept alive until this object is
        closed. All ranks must name the same arrays. per_rank: each rank has its own values, saved in exact
        checkpoints only. Otherwise the values are equal on all ranks and saved once, in both kinds."""
        buffer = buffer_of("add_state", "array", array, writable=True)
        self._held.append(buffer)
        self._call(getattr(lib, f"entrain_{self._kind}_add_state"), name.encode(), buffer.pointer, buffer.count, buffer.dtype,
                   lib.ENTRAIN_STATE_RANK if per_rank else lib.ENTRAIN_STATE_ALL)

    def save(self, directory: Optional[str] = None, name: Optional[str] = None, *, kind: str = "portable",
             one_file: bool = True, overwrite: bool = False, timeout: Optional[float] = None) -> None:
        """Saves to directory/name.ckpt (both default to "local_sgd_ckpt"). kind: "portable" (any number of replicas
        and ranks can continue from it) or "exact" (the same mesh continues with equal bits). one_file: rank 0 writes
        everything. Otherwise each rank writes a file of its own. overwrite: a run that has begun anew may replace a
        checkpoint of a later step; otherwise that is FailedPrecondition. Collective. The checkpoint is complete or
        absent."""
        self._checkpoint("save", directory, name, kind, timeout, full_state_dict=one_file, overwrite=overwrite)

    def load(self, directory: Optional[str] = None, name: Optional[str] = None, *, kind: str = "portable",
             rank0_only: bool = True, timeout: Optional[float] = None) -> None:
        """Continues from a checkpoint. rank0_only: rank 0 reads and sends. Otherwise each rank reads the parts that
        it needs. Collective. Everything is checked before anything changes."""
        self._checkpoint("load", directory, name, kind, timeout, rank0_only=rank0_only)

    def _checkpoint(self, verb: str, directory: Optional[str], name: Optional[str], kind: str, timeout: Optional[float],
                    **options: bool) -> None:
        config = new_struct("checkpoint_config")
        texts = [NULL if text is None else ffi.new("char[]", text.encode()) for text in (directory, name)]
        config.save_dir, config.ckpt_name = texts
        config.kind, config.timeout_ns = constant("CHECKPOINT", kind, "kind"), nanoseconds(timeout)
        for option, value in options.items():
            setattr(config, option, value)
        self._start(getattr(lib, f"entrain_{self._kind}_{verb}"), config, NULL, held=texts)

    def reduce(self, values: Sequence[float], op: str = "sum", *, timeout: Optional[float] = None) -> Reduced:
        """Reduces a few numbers over all ranks that are not lost: for evaluations, reports and decisions. An empty list
        finds out who is there. With on_loss="finish", a loss does not make the call fail: those that are left finish or
        repeat it. Collective, at the times at which an exact checkpoint may be saved, in warm-up, and after leave."""
        code, reduction = resolve_op("reduce", op, False)
        if reduction is not None:
            raise invalid("reduce", "op is a reduction; take a built-in operator")
        count = len(values)
        numbers = ffi.new("double[]", [float(value) for value in values] or [0.0])
        rank, ranks = ffi.new("int32_t*"), ffi.new("int32_t*")
        self._start(getattr(lib, f"entrain_{self._kind}_reduce"), numbers, numbers, count, lib.ENTRAIN_F64, code,
                    nanoseconds(timeout), rank, ranks)
        return Reduced([numbers[i] for i in range(count)], rank[0], ranks[0])

    def save_to(self, file: Optional[BinaryIO], *, kind: str = "portable", timeout: Optional[float] = None) -> None:
        """Writes the bytes of `save` into a file object that can seek (a BytesIO, an open file), from its current
        position on. Only rank 0's file is written; other ranks may pass None. The bytes are valid when this call
        returns. Collective."""
        self._through("save", _File(file, reads=False), kind, timeout)

    def load_from(self, file: Optional[BinaryIO], *, kind: str = "portable", rank0_only: bool = True,
                  timeout: Optional[float] = None) -> None:
        """Continues from a checkpoint in a file object that can seek, from its current position to its end.
        rank0_only: rank 0 reads, and other ranks may pass None. Otherwise each rank reads its own file. Collective."""
        self._through("load", _File(file, reads=True), kind, timeout, rank0_only=rank0_only)

    def _through(self, verb: str, file: _File, kind: str, timeout: Optional[float], **options: bool) -> None:
        config = new_struct("checkpoint_config")
        config.kind, config.timeout_ns = constant("CHECKPOINT", kind, "kind"), nanoseconds(timeout)
        for option, value in options.items():
            setattr(config, option, value)
        function = getattr(lib, f"entrain_{self._kind}_{verb}")
        try:
            self._start(function, config, file.functions, held=file)
        except Error as error:
            for callback in file.callbacks:
                callback.blame(error)
            raise

    def open_state(self, kind: str = "portable") -> State:
        """Opens the state, array by array. Allowed where `save` is allowed. To set the state, it may also be opened
        before the first exchange or commit. Local."""
        out = ffi.new("entrain_state_t**")
        with self._life:
            self._start(getattr(lib, f"entrain_{self._kind}_open_state"), constant("CHECKPOINT", kind, "kind"), out)
            return State(Life(out[0], lib.entrain_state_destroy, self._life), self, kind)

    def state(self, kind: str = "portable") -> Dict[str, npt.NDArray[Any]]:
        """Returns copies of this rank's parts of the state, by StateEntry.key. In the portable kind, rank 0's values
        count where ranks differ; see `open_state`. Local."""
        with self.open_state(kind) as opened:
            return {entry.key: opened.get(entry) for entry in opened.entries}

    def load_state(self, arrays: Mapping[str, Any], kind: str = "portable", timeout: Optional[float] = None) -> None:
        """Continues from the result of `state`, on the same number of ranks. For another number of ranks, put the
        pieces together with open_state. Collective. All ranks load it, or none."""
        with self.open_state(kind) as opened:
            for entry in opened.entries:
                if entry.key in arrays and entry.count:
                    opened.set(entry, arrays[entry.key])
            opened.commit(timeout)


def fill(struct: Any, options: Any, families: Mapping[str, str]) -> None:
    """Writes the fields of a dataclass that are not None into a struct. `families`: the fields that name constants."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None or not hasattr(struct, field.name):
            continue
        setattr(struct, field.name, constant(families[field.name], value, field.name) if field.name in families else value)
