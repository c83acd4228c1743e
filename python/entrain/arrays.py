"""Uses arrays of other packages as buffers of the library without a copy. The arrays may come from NumPy and the
buffer protocol, from PyTorch, and from every package that supports DLPack. The arrays must be in host memory. This
module imports neither PyTorch nor ml_dtypes nor JAX."""
from __future__ import annotations

import ctypes
import enum
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

import numpy as np

from ._library import NULL, ffi, lib
from .errors import invalid


class DType(enum.IntEnum):
    """Element types of the library. In text they have the names of the members in lower case: "f32", "bf16"."""

    F32 = lib.ENTRAIN_F32
    F64 = lib.ENTRAIN_F64
    BF16 = lib.ENTRAIN_BF16
    F16 = lib.ENTRAIN_F16
    F8_E4M3 = lib.ENTRAIN_F8_E4M3
    F8_E5M2 = lib.ENTRAIN_F8_E5M2
    I8 = lib.ENTRAIN_I8
    U8 = lib.ENTRAIN_U8
    I16 = lib.ENTRAIN_I16
    U16 = lib.ENTRAIN_U16
    I32 = lib.ENTRAIN_I32
    U32 = lib.ENTRAIN_U32
    I64 = lib.ENTRAIN_I64
    U64 = lib.ENTRAIN_U64
    #: Pairs of a value and a location, for minloc and maxloc: structured NumPy arrays with two fields.
    F32_I32 = lib.ENTRAIN_F32_I32
    F64_I64 = lib.ENTRAIN_F64_I64
    I32_I32 = lib.ENTRAIN_I32_I32
    I64_I64 = lib.ENTRAIN_I64_I64

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return _ITEMSIZE[self]


DTypeLike = Union[DType, str]

_ITEMSIZE: Dict[int, int] = {dtype: lib.entrain_dtype_size(int(dtype)) for dtype in DType}

# Types by the name that NumPy, ml_dtypes and PyTorch give them.
_BY_NAME: Dict[str, DType] = {
    "float32": DType.F32, "float64": DType.F64, "bfloat16": DType.BF16, "float16": DType.F16,
    "float8_e4m3fn": DType.F8_E4M3, "float8_e5m2": DType.F8_E5M2,
    "int8": DType.I8, "uint8": DType.U8, "int16": DType.I16, "uint16": DType.U16, "int32": DType.I32, "uint32": DType.U32,
    "int64": DType.I64, "uint64": DType.U64, "bool": DType.U8,
    # codes of the struct module, for other exporters of the buffer protocol
    "float": DType.F32, "double": DType.F64,
}
_NUMPY: Dict[DType, Any] = {
    DType.F32: np.float32, DType.F64: np.float64, DType.F16: np.float16, DType.I8: np.int8, DType.U8: np.uint8,
    DType.I16: np.int16, DType.U16: np.uint16, DType.I32: np.int32, DType.U32: np.uint32, DType.I64: np.int64,
    DType.U64: np.uint64,
    DType.F32_I32: np.dtype([("value", "f4"), ("location", "i4")]), DType.F64_I64: np.dtype([("value", "f8"), ("location", "i8")]),
    DType.I32_I32: np.dtype([("value", "i4"), ("location", "i4")]), DType.I64_I64: np.dtype([("value", "i8"), ("location", "i8")]),
}
_PAIRS = {("f4", "i4"): DType.F32_I32, ("f8", "i8"): DType.F64_I64, ("i4", "i4"): DType.I32_I32, ("i8", "i8"): DType.I64_I64}
_NUMPY_CACHE: Dict[Any, DType] = {}


def dtype_of(value: DTypeLike) -> DType:
    """Returns the DType of "f32", "bf16", ..., or of a DType."""
    if isinstance(value, DType):
        return value
    try:
        return DType[value.upper()]
    except (KeyError, AttributeError):
        raise invalid("dtype", f"{value!r} is none of {', '.join(d.name.lower() for d in DType)}") from None


def numpy_dtype(dtype: DTypeLike) -> Any:
    """Returns NumPy's type for a type of the library. bf16 and the 8-bit floats need ml_dtypes, which must have been
    imported."""
    dtype = dtype_of(dtype)
    found = _NUMPY.get(dtype)
    if found is None:
        extra = sys.modules.get("ml_dtypes")
        if extra is None:
            raise invalid("dtype", f"NumPy has no {dtype.name.lower()}: import ml_dtypes first, or give an array for the result")
        found = getattr(extra, {DType.BF16: "bfloat16", DType.F8_E4M3: "float8_e4m3fn", DType.F8_E5M2: "float8_e5m2"}[dtype])
    return np.dtype(found)


class Buffer:
    """The memory of an array, in the form that the library takes. Keeps the array alive."""

    __slots__ = ("array", "pointer", "count", "dtype", "shape", "is_bool", "finish", "_held")

    def __init__(self, array: Any, pointer: Any, count: int, dtype: DType, shape: Tuple[int, ...], held: Any = None,
                 is_bool: bool = False, finish: Optional[Callable[[], None]] = None) -> None:
        self.array = array      # the caller's
        self.pointer = pointer  # void*
        self.count = count
        self.dtype = dtype
        self.shape = shape
        self.is_bool = is_bool
        self.finish = finish    # copies a result into a strided array; None: nothing to do
        self._held = held       # the owner of the memory, if it is not the array


def _refuse_strided(operation: str, name: str, detail: str) -> Any:
    return invalid(operation, f"{name} is not contiguous ({detail}); give a contiguous array, or copy=True to have it copied")


def _numpy_type(operation: str, name: str, dtype: Any) -> DType:
    found = _NUMPY_CACHE.get(dtype)
    if found is not None:
        return found
    if not dtype.isnative:
        raise invalid(operation, f"{name} has the other byte order ({dtype})")
    if dtype.names is not None:
        kinds = tuple(dtype.fields[field][0].str[1:] for field in dtype.names)
        found = _PAIRS.get(kinds)  # type: ignore[call-overload, unused-ignore]
        if found is not None and dtype.itemsize != _ITEMSIZE[found]:
            found = None
    else:
        found = _BY_NAME.get(dtype.name)
    if found is None:
        hint = "; view complex numbers as twice as many floats" if dtype.kind == "c" else ""
        raise invalid(operation, f"{name} has the type {dtype}, which has no counterpart{hint}")
    _NUMPY_CACHE[dtype] = found
    return found


def _of_numpy(operation: str, name: str, array: Any, writable: bool, copy: bool, dtype: Optional[DType]) -> Buffer:
    found = _numpy_type(operation, name, array.dtype) if dtype is None else dtype
    flags = array.flags
    if writable and not flags.writeable:
        raise invalid(operation, f"{name} is read-only")
    held, finish = array, None
    if not flags.c_contiguous:
        if not copy:
            raise _refuse_strided(operation, name, f"shape {array.shape}, strides {array.strides} bytes")
        held = np.ascontiguousarray(array)
        if writable:
            temporary = held

            def finish() -> None:
                np.copyto(array, temporary)
    # Types from outside of NumPy do not support the buffer protocol.
    pointer = ffi.cast("void*", held.__array_interface__["data"][0])
    count = array.size
    if dtype is not None:
        count = _count_as(operation, name, array.nbytes, dtype)
    return Buffer(array, pointer, count, found, array.shape, held, array.dtype.kind == "b" and dtype is None, finish)


def _count_as(operation: str, name: str, nbytes: int, dtype: DType) -> int:
    if nbytes % _ITEMSIZE[dtype] != 0:
        raise invalid(operation, f"{name} has {nbytes} bytes, which is no whole number of {dtype.name.lower()}")
    return nbytes // _ITEMSIZE[dtype]


def _of_torch(operation: str, name: str, tensor: Any, writable: bool, copy: bool, dtype: Optional[DType]) -> Buffer:
    if tensor.device.type != "cpu":
        raise invalid(operation, f"{name} is on {tensor.device}; this package takes arrays in host memory")
    if tensor.layout is not sys.modules["torch"].strided:
        raise invalid(operation, f"{name} has the layout {tensor.layout}; give a dense tensor")
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        raise invalid(operation, f"{name} is a lazy conjugate or negative; call resolve_conj() or resolve_neg() first")
    text = str(tensor.dtype)[len("torch."):]
    found = _BY_NAME.get(text) if dtype is None else dtype
    if found is None:
        hint = "; use torch.view_as_real" if text.startswith("complex") else ""
        raise invalid(operation, f"{name} has the type {tensor.dtype}, which has no counterpart{hint}")
    held, finish = tensor, None
    if not tensor.is_contiguous():
        if not copy:
            raise _refuse_strided(operation, name, f"shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())} elements")
        held = tensor.contiguous()
        if writable:
            temporary = held

            def finish() -> None:
                tensor.copy_(temporary)
    count = tensor.numel()
    if dtype is not None:
        count = _count_as(operation, name, count * tensor.element_size(), dtype)
    return Buffer(tensor, ffi.cast("void*", held.data_ptr()), count, found, tuple(tensor.shape), held,
                  text == "bool" and dtype is None, finish)


# ---- DLPack -----------------------------------------------------------------------------------------------------------

_CPU = 1
_READ_ONLY = 1
_DL_TYPES: Dict[Tuple[int, int], DType] = {
    (0, 8): DType.I8, (0, 16): DType.I16, (0, 32): DType.I32, (0, 64): DType.I64,
    (1, 8): DType.U8, (1, 16): DType.U16, (1, 32): DType.U32, (1, 64): DType.U64,
    (2, 16): DType.F16, (2, 32): DType.F32, (2, 64): DType.F64, (4, 16): DType.BF16, (6, 8): DType.U8,
    (10, 8): DType.F8_E4M3, (12, 8): DType.F8_E5M2,
}
_DL_BOOL = 6
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def _is_packed(shape: Sequence[int], strides: Optional[Sequence[int]]) -> bool:
    if strides is None:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length == 0:
            return True
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _of_dlpack(operation: str, name: str, array: Any, writable: bool, dtype: Optional[DType]) -> Buffer:
    device, number = array.__dlpack_device__()
    if device != _CPU:
        raise invalid(operation, f"{name} is on a device (DLPack type {int(device)}, number {number}); this package takes "
                                 "arrays in host memory")
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # an exporter from before DLPack 1.0
        capsule = array.__dlpack__()
    # The capsule is not consumed: its owner frees the memory when the buffer is destroyed.
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = ffi.cast("DLManagedTensorVersioned*", _capsule_pointer(capsule, b"dltensor_versioned"))
        read_only = bool(managed.flags & _READ_ONLY)
    else:
        managed = ffi.cast("DLManagedTensor*", _capsule_pointer(capsule, b"dltensor"))
        read_only = False
    # JAX's arrays must not change, even if the capsule is writable.
    if writable and (read_only or type(array).__module__.partition(".")[0] in ("jax", "jaxlib")):
        raise invalid(operation, f"{name} is read-only; give a NumPy array for the result")
    tensor = managed.dl_tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = None if tensor.strides == ffi.NULL else tuple(tensor.strides[i] for i in range(tensor.ndim))
    if not _is_packed(shape, strides):
        raise _refuse_strided(operation, name, f"shape {shape}, strides {strides} elements")
    kind = (tensor.dtype.code, tensor.dtype.bits)
    found = _DL_TYPES.get(kind) if tensor.dtype.lanes == 1 else None
    if found is None and dtype is None:
        raise invalid(operation, f"{name} has the DLPack type (code {kind[0]}, {kind[1]} bits, {tensor.dtype.lanes} lanes), "
                                 "which has no counterpart")
    count = 1
    for length in shape:
        count *= length
    if dtype is not None:
        count = _count_as(operation, name, count * tensor.dtype.bits * tensor.dtype.lanes // 8, dtype)
    data = 0 if tensor.data == ffi.NULL else int(ffi.cast("uintptr_t", tensor.data)) + tensor.byte_offset
    return Buffer(array, ffi.cast("void*", data), count, found if dtype is None else dtype, shape,  # type: ignore[arg-type]
                  (array, capsule), kind[0] == _DL_BOOL and dtype is None)


# ---- Any of them ------------------------------------------------------------------------------------------------------


def _is_tensor(array: Any) -> bool:
    # PyTorch may be absent, or may be importing itself at this moment.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(array, kind)


def buffer_of(operation: str, name: str, array: Any, *, writable: bool = False, copy: bool = False,
              dtype: Optional[DType] = None) -> Buffer:
    """Returns the memory of `array` for one call. `dtype` reads the array's bytes as another type.

    Raises InvalidArgument, naming `operation` and `name`, for an array that is strided (unless `copy`), that is
    read-only although `writable`, that is on a device, or whose type has no counterpart. Raises TypeError for an
    object that is no array."""
    if isinstance(array, np.ndarray):
        return _of_numpy(operation, name, array, writable, copy, dtype)
    if _is_tensor(array):
        return _of_torch(operation, name, array, writable, copy, dtype)
    if hasattr(array, "__dlpack__") and not isinstance(array, np.generic):
        if copy and not writable:
            array = np.from_dlpack(array)
            return _of_numpy(operation, name, array, False, True, dtype)
        return _of_dlpack(operation, name, array, writable, dtype)
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError(f"{operation}: {name} is a {type(array).__name__}; expected an array (NumPy, buffer protocol, "
                        "DLPack)") from None
    found = _of_numpy(operation, name, np.asarray(view), writable, copy, dtype)
    found.array = array
    return found


def empty(like: Buffer, shape: Tuple[int, ...]) -> Any:
    """Makes a new array for a result, of the kind and type of `like`: a tensor for a tensor, else a NumPy array."""
    if _is_tensor(like.array):
        return like.array.new_empty(shape)
    if isinstance(like.array, np.ndarray):
        return np.empty(shape, like.array.dtype)
    return np.empty(shape, np.bool_ if like.is_bool else numpy_dtype(like.dtype))


def size_array(operation: str, name: str, counts: Sequence[int], length: int) -> Any:
    """Converts `counts` to size_t[length]."""
    if len(counts) != length:
        raise invalid(operation, f"{name} has {len(counts)} entries; the communicator has {length} ranks")
    for index, count in enumerate(counts):
        if count < 0:
            raise invalid(operation, f"{name}[{index}] is {count}")
    return ffi.new("size_t[]", [int(count) for count in counts])


NOTHING = Buffer(None, NULL, 0, DType.U8, ())
