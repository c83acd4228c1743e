"""Uses tensors of torch as buffers of the library: types, operators, and copies of tensors that do not have their
elements in order in the host's memory."""
from __future__ import annotations

import collections
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from .._library import ffi, lib
from ..errors import invalid
from ..reductions import Reduction
from ._layers import Stream

_ReduceOp: Any = dist.ReduceOp
_RedOp: Any = _ReduceOp.RedOpType

# ---- Types and operators ----------------------------------------------------------------------------------------------

# For each type of torch: the type of the library, and the number of its elements that make one element of torch's type.
# A type that the library does not have is moved as bytes.
_REAL: Dict[torch.dtype, Tuple[int, int]] = {
    torch.float32: (lib.ENTRAIN_F32, 1), torch.float64: (lib.ENTRAIN_F64, 1), torch.bfloat16: (lib.ENTRAIN_BF16, 1),
    torch.float16: (lib.ENTRAIN_F16, 1), torch.float8_e4m3fn: (lib.ENTRAIN_F8_E4M3, 1),
    torch.float8_e5m2: (lib.ENTRAIN_F8_E5M2, 1), torch.int8: (lib.ENTRAIN_I8, 1), torch.uint8: (lib.ENTRAIN_U8, 1),
    torch.int16: (lib.ENTRAIN_I16, 1), torch.uint16: (lib.ENTRAIN_U16, 1), torch.int32: (lib.ENTRAIN_I32, 1),
    torch.uint32: (lib.ENTRAIN_U32, 1), torch.int64: (lib.ENTRAIN_I64, 1), torch.uint64: (lib.ENTRAIN_U64, 1),
}
_COMPLEX: Dict[torch.dtype, Tuple[int, int]] = {
    torch.complex32: (lib.ENTRAIN_F16, 2), torch.complex64: (lib.ENTRAIN_F32, 2), torch.complex128: (lib.ENTRAIN_F64, 2),
}
_MOVED: Dict[torch.dtype, Tuple[int, int]] = {**_REAL, **_COMPLEX, torch.bool: (lib.ENTRAIN_U8, 1)}

_OPS: Dict[Any, int] = {
    _RedOp.SUM: lib.ENTRAIN_SUM, _RedOp.AVG: lib.ENTRAIN_AVG, _RedOp.PRODUCT: lib.ENTRAIN_PROD, _RedOp.MIN: lib.ENTRAIN_MIN,
    _RedOp.MAX: lib.ENTRAIN_MAX, _RedOp.BAND: lib.ENTRAIN_BAND, _RedOp.BOR: lib.ENTRAIN_BOR, _RedOp.BXOR: lib.ENTRAIN_BXOR,
    _RedOp.PREMUL_SUM: lib.ENTRAIN_REDUCTION,
}
# For truth values a sum is "any" and a product is "all", as with NCCL; the result is 0 or 1.
_BOOL_OPS: Dict[Any, int] = {
    _RedOp.SUM: lib.ENTRAIN_LOR, _RedOp.MAX: lib.ENTRAIN_LOR, _RedOp.BOR: lib.ENTRAIN_LOR, _RedOp.PRODUCT: lib.ENTRAIN_LAND,
    _RedOp.MIN: lib.ENTRAIN_LAND, _RedOp.BAND: lib.ENTRAIN_LAND, _RedOp.BXOR: lib.ENTRAIN_LXOR,
}
_COMPLEX_OPS = (_RedOp.SUM, _RedOp.AVG, _RedOp.PREMUL_SUM)

# (dtype, operator) -> the library's type, the number of its elements for one element of torch's type, the library's
# operator.
_REDUCED: Dict[Tuple[torch.dtype, Any], Tuple[int, int, int]] = {
    **{(dtype, op): (code, 1, _OPS[op]) for dtype, (code, _) in _REAL.items() for op in _OPS},
    **{(dtype, op): (code, 2, _OPS[op]) for dtype, (code, _) in _COMPLEX.items() for op in _COMPLEX_OPS},
    **{(torch.bool, op): (lib.ENTRAIN_U8, 1, code) for op, code in _BOOL_OPS.items()},
}


def moved(tensor: Tensor) -> Tuple[int, int]:
    """Returns the library's type for a tensor that is only moved, and the number of its elements that make one element
    of the tensor."""
    return _MOVED.get(tensor.dtype) or (lib.ENTRAIN_U8, tensor.element_size())


def reduced(operation: str, tensor: Tensor, op: Any) -> Tuple[int, int, int, Optional[Reduction]]:
    """Returns the library's type, the number of its elements for one element of the tensor, the operator, and the
    reduction if the operator is an object."""
    kind = op.op if isinstance(op, _ReduceOp) else op
    found = _REDUCED.get((tensor.dtype, kind))
    if found is None:
        raise invalid(operation, f"{kind} does not go with {tensor.dtype}")
    if found[2] != lib.ENTRAIN_REDUCTION:
        return (*found, None)
    return (*found, Reduction.premultiplied_sum(float(op.factor)))


# ---- Buffers ----------------------------------------------------------------------------------------------------------

def _plain(tensor: Tensor) -> bool:
    """Returns whether a dense tensor has its elements in order in the host's memory."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


class _Scratch:
    """Memory for lists of tensors that are not contiguous. It is kept for the next call, because fresh pages cost more
    than the copy. Finalisers may return memory at any time and on any thread. So this class has no lock, and each step
    is one operation of a deque."""

    KEPT_BYTES = 128 << 20
    SMALLEST = 64 << 10

    def __init__(self) -> None:
        self._idle: Deque[Tensor] = collections.deque()

    def take(self, nbytes: int) -> Tensor:
        """Returns at least `nbytes` bytes, as uint8."""
        if nbytes >= self.SMALLEST:
            for _ in range(len(self._idle)):
                try:
                    tensor = self._idle.popleft()
                except IndexError:  # other threads have taken the rest
                    break
                if nbytes <= tensor.numel() <= 2 * nbytes:
                    return tensor
                self._idle.append(tensor)
        return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, tensor: Tensor) -> None:
        """Takes back memory that is no longer used."""
        if self.SMALLEST <= tensor.numel() <= self.KEPT_BYTES:
            self._idle.append(tensor)
            try:
                while sum(map(len, list(self._idle))) > self.KEPT_BYTES:
                    self._idle.popleft()
            except IndexError:  # other threads have taken the rest
                pass


_scratch = _Scratch()


_HERE = Stream(torch.device("cpu"))


def stream_of(tensors: Sequence[Tensor]) -> Stream:
    """Returns the stream on which the caller uses the first of the tensors, for other threads."""
    return _HERE if not tensors or tensors[0].is_cpu else Stream(tensors[0].device)


class Buffers:
    """The memory that a call uses, and the copies that must follow it. Keeps the tensors alive. Copies of tensors on a device are over
    when they return."""

    __slots__ = ("operation", "device", "held", "copies", "_taken")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        #: The type of the device of some tensor that is not on the CPU.
        self.device: Optional[str] = None
        self.held: List[Any] = []
        self.copies: List[Tuple[Tensor, Tensor, Stream]] = []
        self._taken: Optional[List[Tensor]] = None

    def __del__(self) -> None:
        for tensor in getattr(self, "_taken", None) or ():  # absent if __init__ was not run, as in a tracer
            _scratch.give(tensor)

    def _check(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            raise invalid(self.operation, f"a tensor has the layout {tensor.layout}; this call takes dense ones")
        if not tensor.is_cpu:
            self.device = tensor.device.type
            if tensor.is_meta:
                raise invalid(self.operation, "a tensor is on meta, where it has no elements")

    def source(self, tensor: Tensor) -> Any:
        """Returns the address of the elements of `tensor`, for reading."""
        self._check(tensor)
        if not _plain(tensor):
            tensor = tensor.detach().contiguous().resolve_conj().resolve_neg().cpu()
        self.held.append(tensor)
        return ffi.cast("void*", tensor.data_ptr())

    def target(self, tensor: Tensor, keeps: bool = False) -> Any:
        """Returns the address of the elements of `tensor`, for writing. `keeps`: the call also reads their present
        values."""
        self._check(tensor)
        self.held.append(tensor)
        if _plain(tensor):
            return ffi.cast("void*", tensor.data_ptr())
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        if keeps:
            copy.copy_(tensor)
        self.copies.append((tensor, copy, stream_of([tensor])))
        return ffi.cast("void*", copy.data_ptr())

    def _together(self, tensors: Sequence[Tensor]) -> Optional[Any]:
        """Returns the address of tensors that are contiguous in memory, or None if they are not."""
        first = expected = tensors[0].data_ptr() if tensors[0].is_cpu else 0
        for tensor in tensors:
            self._check(tensor)
            if not _plain(tensor) or (tensor.data_ptr() != expected and tensor.numel() > 0):
                return None
            expected += tensor.nbytes
        # Tensors of different allocations may be neighbours by chance, which works as well.
        self.held.extend(tensors)
        return ffi.cast("void*", first)

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        nbytes = sum(tensor.nbytes for tensor in tensors)
        memory = _scratch.take(nbytes)
        if self._taken is None:
            self._taken = []
        self._taken.append(memory)
        return memory[:nbytes].view(tensors[0].dtype)

    def sources(self, tensors: Sequence[Tensor]) -> Any:
        """As source(), for several tensors whose elements follow each other."""
        together = self._together(tensors)
        if together is not None:
            return together
        flat = self._flat(tensors)
        for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors):
            part.view(tensor.shape).copy_(tensor)
        return ffi.cast("void*", flat.data_ptr())

    def targets(self, tensors: Sequence[Tensor]) -> Any:
        """As target(), for several tensors whose elements follow each other."""
        together = self._together(tensors)
        if together is not None:
            return together
        flat = self._flat(tensors)
        self.held.extend(tensors)
        for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors):
            self.copies.append((tensor, part.view(tensor.shape), stream_of([tensor])))
        return ffi.cast("void*", flat.data_ptr())

    def finish(self) -> None:
        for tensor, copy, stream in self.copies:
            with stream:
                tensor.detach().copy_(copy)


def single(operation: str, tensors: Union[Tensor, Sequence[Tensor]]) -> Tensor:
    """Returns `tensors` itself, or the only tensor of a list."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise invalid(operation, f"got {len(tensors)} tensors; a rank has one")
    return tensors[0]


def list_of(operation: str, lists: Sequence[Sequence[Tensor]], size: int) -> List[Tensor]:
    """Returns the only element of `lists`, a list with a tensor for each rank."""
    if len(lists) != 1 or len(lists[0]) != size:
        raise invalid(operation, f"got lists of {[len(tensors) for tensors in lists]} tensors; expected one of {size}, one a rank")
    return list(lists[0])


def counts_of(tensors: Sequence[Tensor], factor: int) -> Any:
    """Returns size_t[] with the number of elements of each tensor."""
    return ffi.new("size_t[]", [tensor.numel() * factor for tensor in tensors])


def rows_of(operation: str, name: str, tensor: Tensor, sizes: Sequence[int], ranks: int, factor: int) -> Any:
    """Returns size_t[] with the elements of each rank's part. `sizes`: the rows of each part; empty: equal parts."""
    rows = tensor.size(0) if tensor.dim() > 0 else 1
    if not sizes:
        if rows % ranks != 0:
            raise invalid(operation, f"the {name} has {rows} rows, which do not fall into {ranks} equal parts")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise invalid(operation, f"the split sizes {list(sizes)} of the {name} are not {ranks} parts of its {rows} rows")
    length = tensor.numel() // rows * factor if rows > 0 else 0
    return ffi.new("size_t[]", [size * length for size in sizes])


def sizes_match(operation: str, name: str, whole: Tensor, part: Tensor, parts: int) -> None:
    """Refuses tensors of different types, and a `whole` that is not `parts` times `part`."""
    if whole.dtype is not part.dtype:
        raise invalid(operation, f"the tensors are {part.dtype} and {whole.dtype}")
    if whole.numel() != part.numel() * parts:
        raise invalid(operation, f"the {name} has {whole.numel()} elements; expected {part.numel()} x {parts} ranks")


def same_types(operation: str, tensor: Tensor, others: Sequence[Tensor]) -> Tuple[int, int]:
    """As moved(), for tensors that must have one type."""
    for other in others:
        if other.dtype is not tensor.dtype:
            raise invalid(operation, f"the tensors are {tensor.dtype} and {other.dtype}")
    return moved(tensor)
