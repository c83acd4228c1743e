"""A device of PyTorch without hardware, for tests: "far" (PrivateUse1), with two devices far:0 and far:1.

Its memory cannot be read by the host, and its copies to the host are over only when somebody waits for them: until then the host's
memory holds NaN. Operators work on the CPU, at once, with the CPU's bits. What would be a race on an accelerator is a fault, which
`check` raises:

    a copy from page-locked memory, whose source the host changes before it waits for the copy
    an operator that reads or writes what another stream has written or read, and is not ordered behind it

PyTorch's back ends in Python (_setup_privateuseone_for_python_backend) have neither streams nor page-locked memory: these calls do not
reach Python. So far_device.cc has these, and the memory; the operators are here, in one fallback for all."""
import collections
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import threading
import types

import torch
from torch.utils._pytree import tree_map

_HEARD = ["stream wait", "device wait", "record", "block", "event wait"]  # Happened of far_device.cc
_CPU = torch.device("cpu")
_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_aten = torch.ops.aten

faults = []
copies = collections.Counter()  # "to host", "from host": the copies so far, also those that are not over
copies_fail = False  # the device refuses copies to the host
_lock = threading.RLock()
_library = _listener = None
_registered = []

# For streams, which are pairs of a device's index and a number. An operation of a stream has a number, too.
_last = collections.Counter()
_behind = collections.defaultdict(collections.Counter)  # the operations of other streams behind which later ones are
_host = collections.Counter()  # the operations for which the host has waited
_events = {}  # what `_behind` was when an event was recorded
_to_host = collections.defaultdict(list)  # copies that are not over: targets and values
_from_host = collections.defaultdict(list)  # copies that are not over: sources and their values when the copies began
# For allocations, by address.
_written = {}  # the last operation that has written
_read = collections.defaultdict(dict)  # for each stream, its last operation that has read


def compiler():
    """Returns the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")


def build(folder):
    """Compiles the part in C++ (some seconds). Returns its path."""
    path, root = os.path.join(folder, "far_device.so"), os.path.dirname(torch.__file__)
    subprocess.run([compiler(), "-std=c++20", "-O0", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                    f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include",
                    os.path.join(os.path.dirname(os.path.abspath(__file__)), "far_device.cc"), "-o", path,
                    f"-L{root}/lib", "-lc10", "-ltorch_cpu"], check=True)
    return path


def start(path, pinning=True, stream_waits=True):
    """Makes the device known to PyTorch, once in a process. `path`: the result of `build`. pinning: it has page-locked memory.
    stream_waits: it can wait for a stream; otherwise only for all that it does, as MPS."""
    global _library, _listener
    _listener = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)(_hear)
    _library = ctypes.CDLL(path)
    _library.Far_Memory.restype, _library.Far_Memory.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    _library.Far_CurrentStream.restype = ctypes.c_int64
    _library.Far_Start(_listener, ctypes.c_bool(pinning), ctypes.c_bool(stream_waits))
    torch.utils.rename_privateuse1_backend("far")
    torch.utils.generate_methods_for_privateuse1_backend()
    module = types.ModuleType("torch.far")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.synchronize = torch.accelerator.synchronize
    module.current_stream, module.Event = torch.accelerator.current_stream, torch.Event
    module.Stream = lambda device=None, priority=0: torch.Stream(device=device or "far")
    module.stream = lambda stream: stream  # which is a context manager
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module("far", module)
    sys.modules["torch.far"] = module
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_operator, "PrivateUse1")
    copying = torch.library.Library("aten", "IMPL")
    copying.impl("_copy_from", _copy, "PrivateUse1")
    copying.impl("_local_scalar_dense", _item, "PrivateUse1")
    # By default, PyTorch composes it of others, which give other bits than the CPU's.
    copying.impl("native_layer_norm", functools.partial(_operator, _aten.native_layer_norm.default), "PrivateUse1")
    _registered.extend([everything, copying])


def check():
    """Raises the faults so far."""
    assert not faults, "\n".join(faults)


# ---- streams -------------------------------------------------------------------------------------------------------------------


def _hear(happened, device, stream, event):
    what, stream = _HEARD[happened], (device, stream)
    with _lock:
        if what == "stream wait":
            _wait(stream)
        elif what == "device wait":
            for one in [one for one in _last if one[0] == device]:
                _wait(one)
        elif what == "record":
            _events[event] = _behind[stream] | collections.Counter({stream: _last[stream]})
        elif what == "block":
            _behind[stream] |= _events[event]
        else:  # waits for more than the event: all that its streams do now
            for one in _events[event]:
                _wait(one)


def _wait(stream):
    """Ends what the stream does."""
    global _host
    _host |= _behind[stream] | collections.Counter({stream: _last[stream]})
    for target, values in _to_host.pop(stream, ()):
        target.copy_(values)
    _end_from_host(stream)


def _end_from_host(stream, memory=None):
    """Ends the stream's copies from the host, or those of the sources that `memory` shares."""
    under_way, _from_host[stream] = _from_host[stream], []
    for source, values in under_way:
        if memory is not None and _address(source) != _address(memory):
            _from_host[stream].append((source, values))
        elif not _bytes(source).equal(_bytes(values)):
            faults.append(f"the host has changed {tuple(source.shape)} elements of {source.dtype} while they were being copied to the "
                          "device")


def _bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _order(what, device, reads, writes):
    """Notes an operation of the device's current stream. Returns the stream."""
    stream = device.index, _library.Far_CurrentStream(device.index)
    _last[stream] += 1
    behind = _behind[stream] = _behind[stream] | _host

    def must_be_behind(other, number):
        if other != stream and behind[other] < number:
            faults.append(f"{what} on the stream {stream} is not ordered behind an operation of the stream {other}")

    for tensor in (*reads, *writes):
        must_be_behind(*_written.get(_address(tensor), (stream, 0)))
    for tensor in writes:
        for other in _read[_address(tensor)].items():
            must_be_behind(*other)
        _written[_address(tensor)] = stream, _last[stream]
    for tensor in reads:
        _read[_address(tensor)][stream] = _last[stream]
    return stream


# ---- operators -----------------------------------------------------------------------------------------------------------------


def _is_far(value):
    return isinstance(value, torch.Tensor) and value.device.type == "far"


def _address(tensor):
    return tensor.untyped_storage().data_ptr()


def _near(tensor):
    """Returns the tensor's elements as a tensor of the CPU, on the same memory."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = torch._C._construct_storage_from_data_pointer(_library.Far_Memory(storage.data_ptr()), _CPU, storage.nbytes())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def _far(tensor, device):
    """Returns a copy on the device."""
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    _near(result).copy_(tensor)
    return result


def _operator(op, *args, **kwargs):
    """Makes any operator on the CPU, with the device's memory as its inputs and the outputs that it is given."""
    if op.is_view or op.overloadpacket in (_aten.set_, _aten.resize_):
        return op.redispatch(_CPU_KEYS, *args, **kwargs)  # these kernels of the CPU touch no element
    written, tensors, near = [], [], {}

    def come(value):
        if isinstance(value, torch.device):
            return _CPU
        if _is_far(value):
            tensors.append(value)
            value = _near(value)
            near[id(value)] = tensors[-1], value
        elif isinstance(value, torch.Tensor) and value.dim() and "index" not in str(op):  # as on other devices
            raise RuntimeError(f"{op}: expected all tensors on one device, and found one on far and one on {value.device}")
        return value

    given = [tree_map(come, value) for value in args]
    named = {name: tree_map(come, value) for name, value in kwargs.items()}
    for number, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            tree_map(lambda value: written.append(value) if _is_far(value) else None,
                     args[number] if number < len(args) else kwargs.get(argument.name))
    device = tensors[0].device if tensors else torch.device(kwargs["device"])
    if device.index is None:
        device = torch.device("far", torch.accelerator.current_device_index())
    with _lock:
        result = op(*given, **named)
        made = []

        def go(value):
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) in near:
                old, value = near[id(value)]
                if old.shape != value.shape:  # an empty output, which the operator has given memory
                    _near(old.resize_(value.shape)).copy_(value)
                return old
            made.append(_far(value, device))
            return made[-1]

        result = tree_map(go, result)
        _order(op, device, [tensor for tensor in tensors if not any(tensor is one for one in written)], written + made)
    return result


def _copy(source, target, non_blocking=False):
    with _lock:
        if _is_far(source) and _is_far(target):
            _near(target).copy_(_near(source))
            _order("copy", source.device, [source], [target])
        elif _is_far(source):
            if copies_fail:
                raise NotImplementedError("far does not copy to the host")
            copies["to host"] += 1
            stream = _order("copy to the host", source.device, [source], [])
            values = torch.empty_like(target).copy_(_near(source))
            _to_host[stream].append((target.detach(), values))
            if non_blocking:
                _end_from_host(stream, target)  # this copy comes behind them
                target.fill_(float("nan") if target.is_floating_point() else 1)
            else:
                _wait(stream)
        else:
            copies["from host"] += 1
            stream = _order("copy from the host", target.device, [], [target])
            _near(target).copy_(source)
            if non_blocking and source.is_pinned():
                _from_host[stream].append((source.detach(), source.detach().clone()))
            else:
                _wait(stream)
    return target


def _item(tensor):
    with _lock:
        _wait(_order("item", tensor.device, [tensor], []))
        return _near(tensor).item()
