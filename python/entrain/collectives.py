"""The collectives, send and receive of a communicator.

Common rules. Arrays come from NumPy or PyTorch, or are objects with the buffer protocol or DLPack. They must be
contiguous and in host memory. The library uses the arrays in place, without a copy. An array for a result must be
writable. If `out` is None, all_reduce, broadcast and the scans write their result into the input array. The other calls
make a new array.

A call blocks and returns the array with the result. Ctrl-C interrupts the wait within 100 ms, and the call then
continues without the caller. With async_=True a call returns a Work at once. Keyword arguments of all calls
(CallOptions):

    tag          a number by which the calls of all ranks are matched; None: by the order of calls
    timeout      time limit in seconds, after which the communicator ends with TimedOut. None: the communicator's
                 default
    background   True: the waiting thread sleeps at once; for threads that should not use a core
    determinism  "algorithm", "rank_order": the inputs that the bits of a reduction may depend on. None: the
                 communicator's setting
    batch        adds the call to a Batch instead of starting it; the batch then keeps the arrays
    copy         True: arrays that are not contiguous are copied. Results are copied back when the call is waited for
    dtype        "bf16", "f8_e4m3", ...: reads the bytes of all arrays as this type

Errors: after InvalidArgument and FailedPrecondition the communicator can still be used. PeerLost, TimedOut, Mismatch
and Aborted end the communicator."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Optional, Sequence, Tuple, TypedDict, TypeVar, overload

from ._library import IN_PROGRESS, NULL, OK, ffi, lib, nanoseconds, new_struct
from .arrays import NOTHING, Buffer, DTypeLike, buffer_of, dtype_of, empty, size_array
from .errors import invalid, last_error
from .lifetime import Handle, inside
from .reductions import OpLike, Reduction, constant, resolve_op
from .works import SLICE_NS, Work, _orphans, orphan, reap, work_error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .comm import Batch

_A = TypeVar("_A")
_L = TypeVar("_L", bound=Sequence[Any])


class CallOptions(TypedDict, total=False):
    """Keyword arguments of every collective; see the module's docstring."""

    tag: Optional[int]
    timeout: Optional[float]
    background: bool
    determinism: Optional[str]
    batch: "Optional[Batch]"
    copy: bool
    dtype: Optional[DTypeLike]


_KNOWN = frozenset(CallOptions.__annotations__)


def _struct(options: CallOptions) -> Any:
    """Returns an entrain_call_options_t*, without batch and reduction. Returns NULL if all options are default."""
    struct = NULL
    for name, value in options.items():
        if name not in _KNOWN:
            raise TypeError(f"unexpected keyword argument {name!r}")
        if value is None or value is False or name in ("copy", "dtype", "batch"):
            continue
        if struct == NULL:
            struct = new_struct("call_options")
        if name == "tag":
            struct.tag = value
        elif name == "timeout":
            struct.timeout_ns = nanoseconds(value)  # type: ignore[arg-type]
        elif name == "background":
            struct.wait = lib.ENTRAIN_WAIT_BACKGROUND
        else:
            struct.determinism = constant("DETERMINISM", value, "determinism")  # type: ignore[arg-type]
    return struct


class Collectives(Handle):
    """The calls of a Comm."""

    rank: int
    size: int

    # ---- the path of every call ----------------------------------------------------------------------------------------

    def _buffer(self, operation: str, name: str, array: Any, options: CallOptions, writable: bool) -> Buffer:
        if not options:
            return buffer_of(operation, name, array, writable=writable)
        dtype = options.get("dtype")
        return buffer_of(operation, name, array, writable=writable, copy=options.get("copy", False),
                         dtype=None if dtype is None else dtype_of(dtype))

    def _pair(self, operation: str, array: Any, out: Any, options: CallOptions) -> Tuple[Buffer, Buffer]:
        """Returns buffers of `array` and `out`; they are the same buffer if `out` is None or is `array`."""
        if out is None or out is array:
            buffer = self._buffer(operation, "array", array, options, True)
            return buffer, buffer
        source = self._buffer(operation, "array", array, options, False)
        target = self._buffer(operation, "out", out, options, True)
        self._same_type(operation, source, target)
        return source, target

    def _same_type(self, operation: str, source: Buffer, target: Buffer) -> None:
        if source.dtype is not target.dtype:
            raise invalid(operation, f"array is {source.dtype.name.lower()}, out is {target.dtype.name.lower()}")

    def _expect(self, operation: str, name: str, buffer: Buffer, count: int, why: str) -> None:
        if buffer.count != count:
            raise invalid(operation, f"{name} has {buffer.count} elements; expected {count} ({why})")

    def _run(self, function: Any, arguments: Tuple[Any, ...], buffers: Tuple[Buffer, ...], result: Any, async_: bool,
             options: CallOptions, reduction: Optional[Reduction] = None) -> Any:
        if _orphans:
            reap()
        if reduction is not None:
            self._remember(reduction)
        struct, finish, batch = NULL, [], None
        if options:
            struct, batch = _struct(options), options.get("batch")
            finish = [buffer.finish for buffer in buffers if buffer.finish is not None]
        held = (buffers, result, reduction, self)
        if batch is not None:
            if async_:
                raise invalid("batch", "async_ goes with Batch.start, not with the calls of a batch")
            if finish:
                raise invalid("batch", "copy=True does not go with a batch, which may start again")
            # The batch holds the arrays before the library uses them, because a signal handler may raise in between.
            batch._held.append(held)
            status = self._with(batch, reduction, struct, function, arguments, NULL)
            if status != OK:
                raise self._blame(last_error(status))
            return result
        out = ffi.new("entrain_work_t**")
        try:
            if reduction is None:
                with self._life as handle:
                    status = function(handle, *arguments, struct, out)
            else:
                status = self._with(None, reduction, struct, function, arguments, out)
            if status != OK:
                raise self._blame(last_error(status))
            if async_:
                return Work(out, held, result, finish, self._blame)
            work = out[0]
            status = lib.entrain_work_wait(work, SLICE_NS)
            while status == IN_PROGRESS:
                status = lib.entrain_work_wait(work, SLICE_NS)
        except BaseException:  # from a signal handler, for example: the call continues without this thread
            if out[0] != NULL:
                orphan(out[0], held)
            raise
        error = None if status == OK else self._blame(work_error(work, status))
        lib.entrain_work_free(work)
        if error is not None:
            raise error
        for copy in finish:
            copy()
        return result

    def _with(self, batch: "Optional[Batch]", reduction: Optional[Reduction], struct: Any, function: Any,
              arguments: Tuple[Any, ...], out: Any) -> int:
        """Makes a call whose options contain other objects. Returns its status."""
        struct = new_struct("call_options") if struct == NULL else struct
        with inside(self, batch, reduction) as (handle, struct.batch, struct.reduction):
            return int(function(handle, *arguments, struct, out))

    def _remember(self, reduction: Reduction) -> None:
        """Notes a reduction whose callback may end this communicator."""

    def _root(self, operation: str, root: int) -> int:
        if not 0 <= root < self.size:
            raise invalid(operation, f"root is {root}; the communicator has {self.size} ranks")
        return root

    # ---- reductions ----------------------------------------------------------------------------------------------------

    @overload
    def all_reduce(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", *, async_: Literal[False] = False,
                   **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def all_reduce(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", *, async_: Literal[True],
                   **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def all_reduce(self, array: Any, out: Any = None, op: OpLike = "sum", *, async_: bool = False,
                   **options: "Unpack[CallOptions]") -> Any:
        """out[i] = array of rank 0 [i] (+) array of rank 1 [i] (+) ...: equal bits on every rank. `out` has as many
        elements as `array`; None: in place."""
        source, target = self._pair("all_reduce", array, out, options)
        if target is not source:
            self._expect("all_reduce", "out", target, source.count, "as many as array")
        code, reduction = resolve_op("all_reduce", op, source.is_bool)
        return self._run(lib.entrain_all_reduce, (source.pointer, target.pointer, source.count, source.dtype, code),
                         (source, target), target.array, async_, options, reduction)

    @overload
    def reduce(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", root: int = 0, *,
               async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> Optional[_A]: ...

    @overload
    def reduce(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", root: int = 0, *, async_: Literal[True],
               **options: "Unpack[CallOptions]") -> Work[Optional[_A]]: ...

    def reduce(self, array: Any, out: Any = None, op: OpLike = "sum", root: int = 0, *, async_: bool = False,
               **options: "Unpack[CallOptions]") -> Any:
        """As all_reduce, with the result on `root` only. If `out` is None, the root's result replaces its `array`. On
        other ranks `out` is not used, and the result is None."""
        self._root("reduce", root)
        if self.rank == root:
            source, target = self._pair("reduce", array, out, options)
            if target is not source:
                self._expect("reduce", "out", target, source.count, "as many as array")
        else:
            source, target = self._buffer("reduce", "array", array, options, False), NOTHING
        code, reduction = resolve_op("reduce", op, source.is_bool)
        return self._run(lib.entrain_reduce, (source.pointer, target.pointer, source.count, source.dtype, code, root),
                         (source, target), target.array, async_, options, reduction)

    @overload
    def reduce_scatter(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", *,
                       counts: Optional[Sequence[int]] = None, async_: Literal[False] = False,
                       **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def reduce_scatter(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", *,
                       counts: Optional[Sequence[int]] = None, async_: Literal[True],
                       **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def reduce_scatter(self, array: Any, out: Any = None, op: OpLike = "sum", *, counts: Optional[Sequence[int]] = None,
                       async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Reduces, and gives part r of the result to rank r. `array`: size * count elements, or sum(counts) with equal
        counts on all ranks. `out`: this rank's part; it may be the memory of the same part of `array`. If `out` is
        None, the result is a new array. The first dimension of the new array is that of `array` divided by size. If
        this is 1 and `array` has other dimensions, the first dimension is dropped."""
        name = "reduce_scatter"
        source = self._buffer(name, "array", array, options, False)
        count = self._part(name, "array", source, counts)
        if out is None:
            out = empty(source, (count,) if counts is not None else self._cut(source))
        target = self._buffer(name, "out", out, options, True)
        self._same_type(name, source, target)
        self._expect(name, "out", target, count, "this rank's part")
        code, reduction = resolve_op(name, op, source.is_bool)
        if counts is None:
            return self._run(lib.entrain_reduce_scatter, (source.pointer, target.pointer, count, source.dtype, code),
                             (source, target), target.array, async_, options, reduction)
        return self._run(lib.entrain_reduce_scatter_v,
                         (source.pointer, target.pointer, size_array(name, "counts", counts, self.size), source.dtype, code),
                         (source, target), target.array, async_, options, reduction)

    def _part(self, operation: str, name: str, whole: Buffer, counts: Optional[Sequence[int]]) -> int:
        """Returns the number of elements of this rank's part of `whole`."""
        if counts is not None:
            size_array(operation, "counts", counts, self.size)
            self._expect(operation, name, whole, sum(counts), "the sum of counts")
            return counts[self.rank]
        if whole.count % self.size != 0:
            raise invalid(operation, f"{name} has {whole.count} elements, which {self.size} ranks do not divide; give counts")
        return whole.count // self.size

    def _cut(self, whole: Buffer) -> Tuple[int, ...]:
        """Returns the shape of one rank's part of `whole`."""
        if not whole.shape or whole.shape[0] % self.size != 0:
            return (whole.count // self.size,)
        first = whole.shape[0] // self.size
        return whole.shape[1:] if first == 1 and len(whole.shape) > 1 else (first, *whole.shape[1:])

    @overload
    def scan(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", *, exclusive: bool = False,
             async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def scan(self, array: _A, out: Optional[_A] = None, op: OpLike = "sum", *, exclusive: bool = False,
             async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def scan(self, array: Any, out: Any = None, op: OpLike = "sum", *, exclusive: bool = False, async_: bool = False,
             **options: "Unpack[CallOptions]") -> Any:
        """Gives rank r the reduction of the arrays of ranks 0 to r. `exclusive`: of ranks 0 to r - 1, and `out` of
        rank 0 does not change. In place if `out` is None. Not for avg."""
        source, target = self._pair("scan", array, out, options)
        if target is not source:
            self._expect("scan", "out", target, source.count, "as many as array")
        code, reduction = resolve_op("scan", op, source.is_bool)
        return self._run(lib.entrain_exclusive_scan if exclusive else lib.entrain_scan,
                         (source.pointer, target.pointer, source.count, source.dtype, code), (source, target), target.array,
                         async_, options, reduction)

    # ---- data that moves -----------------------------------------------------------------------------------------------

    @overload
    def broadcast(self, array: _A, root: int = 0, *, async_: Literal[False] = False,
                  **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def broadcast(self, array: _A, root: int = 0, *, async_: Literal[True],
                  **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def broadcast(self, array: Any, root: int = 0, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Copies the root's elements into `array` on all other ranks. All arrays have the same number of elements."""
        self._root("broadcast", root)
        buffer = self._buffer("broadcast", "array", array, options, self.rank != root)
        return self._run(lib.entrain_broadcast, (buffer.pointer, buffer.count, buffer.dtype, root), (buffer,), buffer.array,
                         async_, options)

    @overload
    def all_gather(self, array: _A, out: Optional[_A] = None, *, counts: Optional[Sequence[int]] = None,
                   async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def all_gather(self, array: _A, out: Optional[_A] = None, *, counts: Optional[Sequence[int]] = None,
                   async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def all_gather(self, array: Any, out: Any = None, *, counts: Optional[Sequence[int]] = None, async_: bool = False,
                   **options: "Unpack[CallOptions]") -> Any:
        """Gathers all ranks' arrays in rank order. `out`: size * count elements, or sum(counts) with equal counts on
        all ranks. None: a new array of the shape (size, *array.shape), or of the shape (sum(counts),) if counts are
        given. In place: `array` is this rank's part of `out`."""
        name = "all_gather"
        source = self._buffer(name, "array", array, options, False)
        target = self._whole(name, source, out, counts, options)
        if counts is None:
            return self._run(lib.entrain_all_gather, (source.pointer, target.pointer, source.count, source.dtype),
                             (source, target), target.array, async_, options)
        return self._run(lib.entrain_all_gather_v,
                         (source.pointer, target.pointer, size_array(name, "counts", counts, self.size), source.dtype),
                         (source, target), target.array, async_, options)

    def _whole(self, operation: str, part: Buffer, out: Any, counts: Optional[Sequence[int]],
               options: CallOptions) -> Buffer:
        """Returns the buffer of `out`, or of a new array, for all ranks' parts."""
        if counts is not None:
            size_array(operation, "counts", counts, self.size)
            self._expect(operation, "array", part, counts[self.rank], f"counts[{self.rank}]")
        total = self.size * part.count if counts is None else sum(counts)
        if out is None:
            out = empty(part, (self.size, *part.shape) if counts is None else (total,))
        target = self._buffer(operation, "out", out, options, True)
        self._same_type(operation, part, target)
        self._expect(operation, "out", target, total, "size * the elements of array" if counts is None else "the sum of counts")
        return target

    @overload
    def gather(self, array: _A, out: Optional[_A] = None, root: int = 0, *, counts: Optional[Sequence[int]] = None,
               async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> Optional[_A]: ...

    @overload
    def gather(self, array: _A, out: Optional[_A] = None, root: int = 0, *, counts: Optional[Sequence[int]] = None,
               async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[Optional[_A]]: ...

    def gather(self, array: Any, out: Any = None, root: int = 0, *, counts: Optional[Sequence[int]] = None,
               async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """As all_gather, with the result on `root` only. On other ranks `out` is not used, and the result is None. For
        uneven parts, the root passes `counts`, and the other ranks pass counts=() (any sequence) to say so."""
        name = "gather"
        self._root(name, root)
        source = self._buffer(name, "array", array, options, False)
        if self.rank == root:
            target = self._whole(name, source, out, counts, options)
        else:
            target = NOTHING
        if counts is None:
            return self._run(lib.entrain_gather, (source.pointer, target.pointer, source.count, source.dtype, root),
                             (source, target), target.array, async_, options)
        sizes = size_array(name, "counts", counts, self.size) if self.rank == root else NULL
        return self._run(lib.entrain_gather_v, (source.pointer, source.count, target.pointer, sizes, source.dtype, root),
                         (source, target), target.array, async_, options)

    @overload
    def scatter(self, array: Optional[_A], out: Optional[_A] = None, root: int = 0, *,
                counts: Optional[Sequence[int]] = None, async_: Literal[False] = False,
                **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def scatter(self, array: Optional[_A], out: Optional[_A] = None, root: int = 0, *,
                counts: Optional[Sequence[int]] = None, async_: Literal[True],
                **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def scatter(self, array: Any, out: Any = None, root: int = 0, *, counts: Optional[Sequence[int]] = None,
                async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Gives part r of the root's `array` to rank r. `array`: on the root size * count elements, or sum(counts). On
        other ranks `array` is not used and may be None. `out`: this rank's part. Only the root may leave it out, and
        gets a new array. For uneven parts, pass counts as in gather."""
        name = "scatter"
        self._root(name, root)
        source, sizes = NOTHING, NULL
        if self.rank == root:
            source = self._buffer(name, "array", array, options, False)
            part = self._part(name, "array", source, counts)
            if counts is not None:
                sizes = size_array(name, "counts", counts, self.size)
            if out is None:
                out = empty(source, (part,) if counts is not None else self._cut(source))
        elif out is None:
            raise invalid(name, f"out is None; only the root ({root}) knows how long a part is")
        target = self._buffer(name, "out", out, options, True)
        if self.rank == root:
            self._same_type(name, source, target)
            self._expect(name, "out", target, part, "this rank's part")
        if counts is None:
            return self._run(lib.entrain_scatter, (source.pointer, target.pointer, target.count, target.dtype, root),
                             (source, target), target.array, async_, options)
        return self._run(lib.entrain_scatter_v, (source.pointer, sizes, target.pointer, target.count, target.dtype, root),
                         (source, target), target.array, async_, options)

    @overload
    def all_to_all(self, array: _A, out: Optional[_A] = None, *, in_counts: Optional[Sequence[int]] = None,
                   out_counts: Optional[Sequence[int]] = None, async_: Literal[False] = False,
                   **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def all_to_all(self, array: _A, out: Optional[_A] = None, *, in_counts: Optional[Sequence[int]] = None,
                   out_counts: Optional[Sequence[int]] = None, async_: Literal[True],
                   **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def all_to_all(self, array: Any, out: Any = None, *, in_counts: Optional[Sequence[int]] = None,
                   out_counts: Optional[Sequence[int]] = None, async_: bool = False,
                   **options: "Unpack[CallOptions]") -> Any:
        """Sends part r of `array` to rank r, and receives part r of `out` from rank r. Even parts: both arrays have
        size * count elements. If `out` is None, the result is a new array like `array`. Uneven parts: pass both
        in_counts and out_counts. in_counts[r] on this rank must equal out_counts[this rank] on rank r."""
        name = "all_to_all"
        source = self._buffer(name, "array", array, options, False)
        if (in_counts is None) != (out_counts is None):
            raise invalid(name, "in_counts and out_counts go together")
        if out is None:
            out = empty(source, source.shape if out_counts is None else (sum(out_counts),))
        target = self._buffer(name, "out", out, options, True)
        self._same_type(name, source, target)
        if in_counts is None or out_counts is None:
            count = self._part(name, "array", source, None)
            self._expect(name, "out", target, source.count, "as many as array")
            return self._run(lib.entrain_all_to_all, (source.pointer, target.pointer, count, source.dtype), (source, target),
                             target.array, async_, options)
        self._expect(name, "array", source, sum(in_counts), "the sum of in_counts")
        self._expect(name, "out", target, sum(out_counts), "the sum of out_counts")
        return self._run(lib.entrain_all_to_all_v,
                         (source.pointer, size_array(name, "in_counts", in_counts, self.size), target.pointer,
                          size_array(name, "out_counts", out_counts, self.size), source.dtype), (source, target),
                         target.array, async_, options)

    # ---- a list of arrays, one per rank --------------------------------------------------------------------------------

    def _list(self, operation: str, name: str, arrays: Sequence[Any], options: CallOptions,
              writable: bool) -> Tuple[Tuple[Buffer, ...], Any, Any]:
        """Returns buffers of the arrays, void*[] and size_t[]."""
        if len(arrays) != self.size:
            raise invalid(operation, f"{name} has {len(arrays)} arrays; expected {self.size}, one a rank")
        buffers = tuple(self._buffer(operation, f"{name}[{r}]", array, options, writable) for r, array in enumerate(arrays))
        for r, buffer in enumerate(buffers):
            if buffer.dtype is not buffers[0].dtype:
                raise invalid(operation, f"{name}[{r}] is {buffer.dtype.name.lower()}, "
                                         f"{name}[0] {buffers[0].dtype.name.lower()}")
        return (buffers, ffi.new("void*[]", [buffer.pointer for buffer in buffers]),
                ffi.new("size_t[]", [buffer.count for buffer in buffers]))

    def _beside(self, operation: str, name: str, own: Buffer, parts: Tuple[Buffer, ...], uneven: Optional[bool]) -> bool:
        """Returns True if parts are uneven. If `uneven` is None, the lengths of `parts` decide. Checks that the array
        beside a list is as long as this rank's array of the list."""
        if own.dtype is not parts[0].dtype:
            raise invalid(operation, f"{name} is {own.dtype.name.lower()}, the list {parts[0].dtype.name.lower()}")
        self._expect(operation, name, own, parts[self.rank].count, f"as many as the list's [{self.rank}]")
        lengths = {part.count for part in parts}
        if uneven is False and len(lengths) > 1:
            raise invalid(operation, f"the arrays of the list have {sorted(lengths)} elements; give uneven=True on all ranks")
        return len(lengths) > 1 if uneven is None else uneven

    @overload
    def all_gather_list(self, array: Any, outs: _L, *, async_: Literal[False] = False,
                        **options: "Unpack[CallOptions]") -> _L: ...

    @overload
    def all_gather_list(self, array: Any, outs: _L, *, async_: Literal[True],
                        **options: "Unpack[CallOptions]") -> Work[_L]: ...

    def all_gather_list(self, array: Any, outs: Any, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """As all_gather, into one array per rank. All ranks must give `outs` of the same lengths. The library copies
        parts that are not contiguous, as in all calls on lists."""
        name = "all_gather_list"
        source = self._buffer(name, "array", array, options, False)
        parts, pointers, counts = self._list(name, "outs", outs, options, True)
        counts = counts if self._beside(name, "array", source, parts, None) else NULL
        return self._run(lib.entrain_all_gather_list, (source.pointer, source.count, pointers, counts, source.dtype),
                         (source, *parts), outs, async_, options)

    @overload
    def reduce_scatter_list(self, arrays: Sequence[Any], out: _A, op: OpLike = "sum", *, async_: Literal[False] = False,
                            **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def reduce_scatter_list(self, arrays: Sequence[Any], out: _A, op: OpLike = "sum", *, async_: Literal[True],
                            **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def reduce_scatter_list(self, arrays: Any, out: Any, op: OpLike = "sum", *, async_: bool = False,
                            **options: "Unpack[CallOptions]") -> Any:
        """As reduce_scatter, with one array per rank: arrays[r] is this rank's contribution to `out` of rank r."""
        name = "reduce_scatter_list"
        target = self._buffer(name, "out", out, options, True)
        parts, pointers, counts = self._list(name, "arrays", arrays, options, False)
        counts = counts if self._beside(name, "out", target, parts, None) else NULL
        code, reduction = resolve_op(name, op, target.is_bool)
        return self._run(lib.entrain_reduce_scatter_list, (pointers, counts, target.pointer, target.count, target.dtype, code),
                         (target, *parts), target.array, async_, options, reduction)

    @overload
    def gather_list(self, array: Any, outs: Optional[_L], root: int = 0, *, uneven: bool = False,
                    async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> Optional[_L]: ...

    @overload
    def gather_list(self, array: Any, outs: Optional[_L], root: int = 0, *, uneven: bool = False, async_: Literal[True],
                    **options: "Unpack[CallOptions]") -> Work[Optional[_L]]: ...

    def gather_list(self, array: Any, outs: Any, root: int = 0, *, uneven: bool = False, async_: bool = False,
                    **options: "Unpack[CallOptions]") -> Any:
        """As all_gather_list, with `outs` on `root` only. On other ranks `outs` is not used, and the result is None.
        If arrays differ in length, all ranks must pass `uneven`."""
        return self._with_root(lib.entrain_gather_list, "gather_list", array, outs, root, uneven, async_, options)

    @overload
    def scatter_list(self, arrays: Optional[Sequence[Any]], out: _A, root: int = 0, *, uneven: bool = False,
                     async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def scatter_list(self, arrays: Optional[Sequence[Any]], out: _A, root: int = 0, *, uneven: bool = False,
                     async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def scatter_list(self, arrays: Any, out: Any, root: int = 0, *, uneven: bool = False, async_: bool = False,
                     **options: "Unpack[CallOptions]") -> Any:
        """Sends the root's arrays[r] to rank r's `out`. On other ranks `arrays` is not used. `uneven` as in
        gather_list."""
        return self._with_root(lib.entrain_scatter_list, "scatter_list", out, arrays, root, uneven, async_, options)

    def _with_root(self, function: Any, name: str, array: Any, arrays: Any, root: int, uneven: bool, async_: bool,
                   options: CallOptions) -> Any:
        """Makes a gather or a scatter: every rank gives `array`, and the root also gives `arrays`."""
        self._root(name, root)
        gathers = function is lib.entrain_gather_list
        own = self._buffer(name, "array" if gathers else "out", array, options, not gathers)
        parts: Tuple[Buffer, ...] = ()
        pointers, counts = NULL, ffi.new("size_t[]", self.size)
        if self.rank == root:
            parts, pointers, counts = self._list(name, "outs" if gathers else "arrays", arrays, options, gathers)
            self._beside(name, "array" if gathers else "out", own, parts, uneven)
        counts = counts if uneven else NULL
        arguments = ((own.pointer, own.count, pointers, counts, own.dtype, root) if gathers else
                     (pointers, counts, own.pointer, own.count, own.dtype, root))
        result = own.array if not gathers else arrays if self.rank == root else None
        return self._run(function, arguments, (own, *parts), result, async_, options)

    @overload
    def all_to_all_list(self, arrays: Sequence[Any], outs: _L, *, async_: Literal[False] = False,
                        **options: "Unpack[CallOptions]") -> _L: ...

    @overload
    def all_to_all_list(self, arrays: Sequence[Any], outs: _L, *, async_: Literal[True],
                        **options: "Unpack[CallOptions]") -> Work[_L]: ...

    def all_to_all_list(self, arrays: Any, outs: Any, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Sends arrays[r] to rank r, and receives outs[r] from rank r. On other ranks, the call may be all_to_all with
        counts."""
        name = "all_to_all_list"
        ins, in_pointers, in_counts = self._list(name, "arrays", arrays, options, False)
        parts, pointers, counts = self._list(name, "outs", outs, options, True)
        if ins[0].dtype is not parts[0].dtype:
            raise invalid(name, f"arrays are {ins[0].dtype.name.lower()}, outs {parts[0].dtype.name.lower()}")
        return self._run(lib.entrain_all_to_all_list, (in_pointers, in_counts, pointers, counts, ins[0].dtype),
                         (*ins, *parts), outs, async_, options)

    # ---- others --------------------------------------------------------------------------------------------------------

    @overload
    def barrier(self, *, async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> None: ...

    @overload
    def barrier(self, *, async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[None]: ...

    def barrier(self, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Returns when every rank has called it."""
        return self._run(lib.entrain_barrier, (), (), None, async_, options)

    @overload
    def send(self, array: Any, peer: int, *, async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> None: ...

    @overload
    def send(self, array: Any, peer: int, *, async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[None]: ...

    def send(self, array: Any, peer: int, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Sends to one peer, which must call recv with the same number of elements of the same type. Ranks that send to
        each other at the same time must use async_ or a batch."""
        buffer = self._buffer("send", "array", array, options, False)
        return self._run(lib.entrain_send, (buffer.pointer, buffer.count, buffer.dtype, peer), (buffer,), None, async_,
                         options)

    @overload
    def recv(self, out: _A, peer: int, *, async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> _A: ...

    @overload
    def recv(self, out: _A, peer: int, *, async_: Literal[True], **options: "Unpack[CallOptions]") -> Work[_A]: ...

    def recv(self, out: Any, peer: int, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Receives a message of `peer` into `out`."""
        buffer = self._buffer("recv", "out", out, options, True)
        return self._run(lib.entrain_recv, (buffer.pointer, buffer.count, buffer.dtype, peer), (buffer,), buffer.array,
                         async_, options)

    @overload
    def recv_any(self, out: _A, *, async_: Literal[False] = False, **options: "Unpack[CallOptions]") -> "Received[_A]": ...

    @overload
    def recv_any(self, out: _A, *, async_: Literal[True], **options: "Unpack[CallOptions]") -> "Work[Received[_A]]": ...

    def recv_any(self, out: Any, *, async_: bool = False, **options: "Unpack[CallOptions]") -> Any:
        """Receives a message into `out`, from any rank that sends with this tag. Returns the array and the rank.
        Receives of one tag take messages in program order, whether they are from any rank or from a given rank."""
        buffer = self._buffer("recv_any", "out", out, options, True)
        received = Received(buffer.array)
        return self._run(lib.entrain_recv_any, (buffer.pointer, buffer.count, buffer.dtype, received._source), (buffer,),
                         received, async_, options)


class Received(Generic[_A]):
    """A message that was received from any rank."""

    def __init__(self, array: _A) -> None:
        self.array = array
        self._source = ffi.new("int32_t*", -1)

    @property
    def source(self) -> int:
        """The sender's rank; -1 before the call is over (with a batch or async_), and if it has failed."""
        return int(self._source[0])
