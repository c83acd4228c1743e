"""Arrays of other packages: used without a copy if possible, otherwise refused with a clear error."""
import array
import sys

import numpy as np
import pytest

import entrain
from entrain.arrays import buffer_of


@pytest.fixture
def comm():
    with entrain.Comm.from_env() as comm:
        yield comm


def address(buffer):
    from entrain._library import ffi
    return int(ffi.cast("uintptr_t", buffer.pointer))


def test_no_copy():
    x = np.ones((3, 4), np.float32)
    assert address(buffer_of("op", "x", x)) == x.ctypes.data
    plain = array.array("d", [1, 2])
    assert address(buffer_of("op", "x", plain, writable=True)) == plain.buffer_info()[0]
    assert buffer_of("op", "x", bytearray(5)).dtype is entrain.DType.U8
    assert buffer_of("op", "x", x[1]).count == 4 and buffer_of("op", "x", np.float64(1)).count == 1


class Exporter:
    """DLPack by a class that is not NumPy's."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **options):
        return self.inner.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


def test_dlpack(comm):
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    buffer = buffer_of("op", "x", Exporter(x), writable=True)
    assert address(buffer) == x.ctypes.data and buffer.shape == (2, 3) and buffer.dtype is entrain.DType.I16
    assert comm.all_gather(Exporter(x)).tolist() == [x.tolist()]
    with pytest.raises(entrain.InvalidArgument, match="x is not contiguous"):
        buffer_of("op", "x", Exporter(x.T))
    assert buffer_of("op", "x", Exporter(x.T), copy=True).count == 6
    before = sys.getrefcount(x)
    kept = buffer_of("op", "x", Exporter(x))
    assert sys.getrefcount(x) > before
    del kept
    assert sys.getrefcount(x) == before


def test_strided(comm):
    x = np.zeros((4, 4))
    for call in (lambda: comm.all_reduce(x[:, 1]), lambda: comm.all_reduce(x.T), lambda: comm.all_gather(np.ones(4), x[:, 0])):
        with pytest.raises(entrain.InvalidArgument, match="is not contiguous .*copy=True"):
            call()
    comm.all_gather(np.ones(4), x[:, 0], copy=True)
    assert x[:, 0].tolist() == [1] * 4 and not x[:, 1:].any()
    target = np.zeros((4, 4))
    work = comm.all_gather(np.arange(4.0), target[:, 2], copy=True, async_=True)
    assert work.result().base is target and target[:, 2].tolist() == [0, 1, 2, 3]
    assert not target[:, [0, 1, 3]].any()


def test_refused(comm):
    x = np.ones(3)
    x.flags.writeable = False
    with pytest.raises(entrain.InvalidArgument, match="all_reduce: array is read-only"):
        comm.all_reduce(x)
    assert comm.all_reduce(x, np.empty(3)).tolist() == [1, 1, 1]
    with pytest.raises(entrain.InvalidArgument, match="out is read-only"):
        comm.all_gather(x, b"123")
    with pytest.raises(entrain.InvalidArgument, match="complex128.*view complex numbers"):
        comm.all_reduce(np.ones(3, complex))
    with pytest.raises(entrain.InvalidArgument, match="other byte order"):
        comm.all_reduce(np.ones(3, ">f4"))
    with pytest.raises(entrain.InvalidArgument, match="7 bytes, which is no whole number of f32"):
        comm.all_reduce(np.ones(7, np.uint8), dtype="f32")
    with pytest.raises(entrain.InvalidArgument, match="'f31' is none of f32, f64"):
        comm.all_reduce(np.ones(1), dtype="f31")


def test_ml_dtypes(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind, dtype in ((ml_dtypes.bfloat16, "BF16"), (ml_dtypes.float8_e4m3fn, "F8_E4M3"), (ml_dtypes.float8_e5m2, "F8_E5M2")):
        x = np.ones(5, kind)
        assert buffer_of("op", "x", x).dtype.name == dtype
        assert comm.all_gather(x).dtype == kind and comm.alloc(4, dtype.lower()).dtype == kind


def test_jax(comm):
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(6, dtype=jax.numpy.float32).reshape(2, 3)
    buffer = buffer_of("op", "x", x)
    assert buffer.shape == (2, 3) and buffer.dtype is entrain.DType.F32 and address(buffer) == x.unsafe_buffer_pointer()
    assert comm.all_gather(x).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    out = np.empty((2, 3), np.float32)
    assert comm.all_reduce(x, out) is out and out.tolist() == x.tolist()
    for call in (lambda: comm.all_reduce(x), lambda: comm.all_reduce(out, x), lambda: comm.recv(x, 0)):
        with pytest.raises(entrain.InvalidArgument, match="is read-only; give a NumPy array for the result"):
            call()
    bits = comm.all_gather(jax.numpy.ones(3, jax.numpy.bfloat16))
    assert bits.dtype == jax.numpy.bfloat16 and bits.tolist() == [[1, 1, 1]]
    assert comm.all_gather(jax.numpy.array([True, False])).dtype == bool


def test_torch(comm):
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    assert address(buffer_of("op", "x", x)) == x.data_ptr()
    gathered = comm.all_gather(x)
    assert isinstance(gathered, torch.Tensor) and gathered.shape == (1, 2, 3)
    with pytest.raises(entrain.InvalidArgument, match="not contiguous"):
        comm.all_reduce(torch.ones(2, 3).T)
