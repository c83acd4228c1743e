"""Operators, and reductions as objects: the rules by which contributions are combined."""
from __future__ import annotations

import enum
import sys
from typing import Any, Callable, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._library import NULL, ffi, lib, new_struct
from .arrays import DType, numpy_dtype
from .errors import Error, check, invalid
from .lifetime import Handle, Life


class Op(enum.IntEnum):
    """Reduction operators. In text they have their names in lower case. AVG is the sum divided by the number of
    ranks."""

    SUM = lib.ENTRAIN_SUM
    PROD = lib.ENTRAIN_PROD
    MIN = lib.ENTRAIN_MIN
    MAX = lib.ENTRAIN_MAX
    AVG = lib.ENTRAIN_AVG
    BAND = lib.ENTRAIN_BAND
    BOR = lib.ENTRAIN_BOR
    BXOR = lib.ENTRAIN_BXOR
    LAND = lib.ENTRAIN_LAND
    LOR = lib.ENTRAIN_LOR
    LXOR = lib.ENTRAIN_LXOR
    MINLOC = lib.ENTRAIN_MINLOC
    MAXLOC = lib.ENTRAIN_MAXLOC


_NO_BOOL = (Op.SUM, Op.AVG)


class Callback:
    """A Python function that the library calls, on a thread that the library chooses. An exception of the function
    ends the communicator, and is the cause of the error that the waiting call raises."""

    def __init__(self, function: Callable[..., object], kind: str) -> None:
        self.failure: Optional[BaseException] = None
        self._function = function
        # `pointer` must live as long as the library may call it, because the library holds only the bare pointer.
        self._gives = ffi.typeof(kind).result.cname == "double"
        self.pointer = ffi.callback(kind, self._called)

    def _called(self, *arguments: Any) -> Any:
        try:
            value = self._function(*arguments)
        except BaseException as failure:  # the interpreter has no frame in which to raise it
            self.failure = failure
            return float("nan") if self._gives else 1
        return value if self._gives else 0

    def blame(self, error: Error) -> Error:
        """Returns `error`, with the function's exception as its cause."""
        if self.failure is not None:
            error.__cause__ = self.failure
        return error


def view(pointer: Any, count: int, dtype: int) -> npt.NDArray[Any]:
    """Returns `count` elements at `pointer` as a NumPy array, which does not own them. Without ml_dtypes, elements of
    bf16 are returned as their bits, in uint16."""
    bits = dtype == DType.BF16 and "ml_dtypes" not in sys.modules
    kind = np.dtype(np.uint16) if bits else numpy_dtype(DType(dtype))
    if count == 0:
        return np.empty(0, kind)
    return np.frombuffer(ffi.buffer(ffi.cast("char*", pointer), count * kind.itemsize), np.uint8).view(kind)


def _destroy_idle(handle: Any) -> bool:
    """Destroys a reduction. Returns False, and does nothing, while its function runs. The function may run after its
    call has ended, for example while it waits for the interpreter's lock."""
    busy = ffi.new("int32_t*")
    lib.entrain_reduction_busy(handle, busy)
    if busy[0]:
        return False
    lib.entrain_reduction_destroy(handle)
    return True


class Reduction(Handle):
    """A rule by which contributions are combined. Pass it as `op` to all_reduce, reduce, reduce_scatter and the scans.
    Its settings must be equal on all ranks unless a method says otherwise."""

    _what = "reduction"

    def __init__(self, handle: Any, callback: Optional[Callback] = None) -> None:
        super().__init__(Life(handle, lib.entrain_reduction_destroy) if callback is None else
                         Life(handle, _destroy_idle, held=[callback], late=True))
        self._callback = callback

    def close(self) -> None:
        """Destroys the object. A reduction of `user` is destroyed only after it is dropped, because calls in progress
        keep the reduction and its function."""
        if self._callback is None:
            super().close()
        else:
            self._life.open = False

    @classmethod
    def user(cls, combine: Callable[[npt.NDArray[Any], npt.NDArray[Any]], object], signature: int,
             commutative: bool = True) -> "Reduction":
        """Returns a reduction by the function `combine`. combine(a, b) writes a (+) b into the NumPy array `a`. Both
        arrays are valid only until the function returns. The function must be associative, and must give equal bits on
        every rank. Without `commutative` it is applied in rank order. `signature`: a number of 32 bits that identifies
        the function. It must be equal on all ranks. The function runs on a thread of the library and may take locks.
        Other calls continue meanwhile. If the function does not return, its call ends at the deadline (TimedOut names
        the reduction). The function must not call the library. If it raises, the communicator ends with Aborted on all
        ranks. On this rank the exception is the cause of the error."""

        def called(dst: Any, src: Any, count: int, dtype: int, user: Any) -> None:
            combine(view(dst, count, dtype), view(src, count, dtype))

        callback = Callback(called, "entrain_reduce_fn")
        out = ffi.new("entrain_reduction_t**")
        check(lib.entrain_reduction_user(callback.pointer, NULL, signature, commutative, out))
        return cls(out[0], callback)

    @classmethod
    def premultiplied_sum(cls, factor: float) -> "Reduction":
        """Returns a reduction to the sum of factor * contribution. Each rank has its own factor."""
        out = ffi.new("entrain_reduction_t**")
        check(lib.entrain_reduction_premultiplied_sum(factor, out))
        return cls(out[0])

    @classmethod
    def weighted(cls, weights: Sequence[float]) -> "Reduction":
        """Returns a reduction to the mean weighted by weights[rank]. The weights are finite, >= 0, and not all 0."""
        out = ffi.new("entrain_reduction_t**")
        check(lib.entrain_reduction_weighted(ffi.new("double[]", list(weights)), len(weights), out))
        return cls(out[0])

    @classmethod
    def gta(cls, *, weights: Optional[Sequence[float]] = None, consensus: str = "none", normalize: bool = True,
            sparsification: str = "none", density: float = 1.0, seed: int = 0, wire_format: str = "f32", wire_block: int = 0,
            wire_rounding: str = "nearest", error_feedback: bool = False) -> "Reduction":
        """Returns generalised task arithmetic (entrain_reduction_gta). consensus: none, sum, count. sparsification:
        none, magnitude, random, rescaled_random, with 0 < density < 1. wire_format: f32, bf16, int8, int4, or with
        sparsification int2. wire_rounding: nearest, stochastic. error_feedback: the part that a call did not send is
        added to the contribution of the next call."""
        config = new_struct("gta_config")
        values = NULL if weights is None else ffi.new("double[]", list(weights))
        config.weights, config.ranks = values, 0 if weights is None else len(weights)
        config.consensus = constant("CONSENSUS", consensus, "consensus")
        config.sparsification = constant("SPARSIFY", sparsification, "sparsification")
        config.wire_format = constant("WIRE", wire_format, "wire_format")
        config.wire_rounding = constant("ROUND", wire_rounding, "wire_rounding")
        config.normalize, config.density, config.seed = normalize, density, seed
        config.wire_block, config.error_feedback = wire_block, error_feedback
        out = ffi.new("entrain_reduction_t**")
        check(lib.entrain_reduction_gta(config, out))
        return cls(out[0])

    def set_weights(self, weights: Optional[Sequence[float]]) -> None:
        """Sets other weights for later calls with a reduction of `gta`. Must not run while a call is being started."""
        values = NULL if weights is None else ffi.new("double[]", list(weights))
        self._call(lib.entrain_reduction_set_weights, values, 0 if weights is None else len(weights))

    def save(self) -> bytes:
        """Returns the state that a sparsified or encoded reduction keeps between calls; b"" for other reductions. Local
        to this rank."""
        size = ffi.new("size_t*")
        self._call(lib.entrain_reduction_state_size, size)
        state = ffi.new("char[]", max(1, size[0]))
        self._call(lib.entrain_reduction_state_save, state, size[0])
        return bytes(ffi.buffer(state, size[0]))

    def load(self, state: bytes) -> None:
        """Restores the state that `save` returned."""
        self._call(lib.entrain_reduction_state_load, state, len(state))


OpLike = Union[Op, str, Reduction]

_OPS = {op.name.lower(): op for op in Op}


def constant(family: str, name: Union[str, int], argument: str) -> int:
    """Returns the value of ENTRAIN_<family>_<NAME> for a name in lower case. If the name is that of the family, returns
    the value of ENTRAIN_<family>."""
    if isinstance(name, int):
        return int(name)
    head = f"ENTRAIN_{family}"
    values = {key[len(head) + 1:].lower() or family.lower(): key for key in dir(lib)
              if key == head or key.startswith(f"{head}_")}
    key = values.get(name) if isinstance(name, str) else None
    if key is None:
        raise invalid(argument, f"{name!r} is none of {', '.join(sorted(values))}")
    return int(getattr(lib, key))


def constant_name(family: str, value: int) -> str:
    """Returns the name that `constant` converts to the value."""
    head = f"ENTRAIN_{family}"
    for key in dir(lib):
        if (key == head or key.startswith(f"{head}_")) and getattr(lib, key) == value:
            return key[len(head) + 1:].lower() or family.lower()
    raise ValueError(f"{head}_*: no constant is {value}")


def resolve_op(operation: str, op: OpLike, is_bool: bool) -> Tuple[int, Optional[Reduction]]:
    """Returns the operator's code, and the reduction if it is an object."""
    if isinstance(op, Reduction):
        return lib.ENTRAIN_REDUCTION, op
    found = _OPS.get(op) if isinstance(op, str) else Op(op)
    if found is None:
        raise invalid(operation, f"op is {op!r}, which is none of {', '.join(_OPS)}")
    if is_bool and found in _NO_BOOL:
        raise invalid(operation, f"op is {found.name.lower()} on an array of bool; take lor, land, lxor, min or max")
    return int(found), None
