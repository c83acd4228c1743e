"""The mesh of ranks, layer-wise sharding, and EDiT and A-EDiT on top (entrain/train.h; arXiv 2412.07210).

M = shard group size: the ranks that together hold one replica
N = sync group size: the ranks that hold the same part of all replicas"""
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import numpy.typing as npt

from ._launch import shown
from ._options import EDIT_FAMILIES, EditNumbers, EditOptions
from ._library import NULL, OK, ffi, lib, nanoseconds, new_struct
from .arrays import DType, DTypeLike, buffer_of, dtype_of
from .comm import Comm, end_calls
from .errors import check, invalid
from .lifetime import Life, drop, inside, interruptible, nothing
from .reductions import Callback, constant, constant_name, view
from .store import Store
from .training import Checkpointed, Trained, fill, identity_text

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Mesh(Trained):
    """Ranks in axes: tensor, pipeline, context, shard (M), sync (N)."""

    _what = "mesh"

    def __init__(self, comm: Comm, *, shard: int = 1, sync: int = 0, tensor: int = 1, pipeline: int = 1, context: int = 1,
                 order: Optional[str] = None) -> None:
        """Collective over `comm`. The mesh splits `comm`, and keeps it alive. sync 0: computed from the other axes.
        order: the axes, beginning with the one whose neighbours have consecutive ranks; None:
        "tensor,context,shard,pipeline,sync"."""
        config = new_struct("mesh_config")
        config.shard, config.sync, config.tensor, config.pipeline, config.context = shard, sync, tensor, pipeline, context
        text = NULL if order is None else ffi.new("char[]", order.encode())
        config.order = text

        def create(comm: Any, out: Any, text: Any = text) -> int:  # keeps text alive during the call
            return int(lib.entrain_mesh_create(comm, config, out))

        self._become(create, comm)

    def _become(self, create: Callable[..., int], *needs: Comm) -> None:
        out = ffi.new("entrain_mesh_t**")

        def call() -> Life:
            with inside(*needs) as handles:
                check(create(*handles, out))
                return Life(out[0], lib.entrain_mesh_destroy, *(comm._life for comm in needs), stop=_end_calls)

        super().__init__(interruptible(call, drop))
        self._comms: Dict[int, Comm] = {}

    @classmethod
    def of(cls, shard_comm: Comm, sync_comm: Comm) -> "Mesh":
        """Makes a mesh of two existing communicators. shard_comm has the ranks of this rank's replica. sync_comm has
        the ranks with the same part of all replicas. Collective over both. Closing one of them closes the mesh."""
        mesh = cls.__new__(cls)
        mesh._become(lib.entrain_mesh_create_from, shard_comm, sync_comm)
        return mesh

    def coordinate(self, axis: str) -> Tuple[int, int]:
        """Returns this rank's coordinate and the length along "tensor", "pipeline", "context", "shard", "sync" or
        "model" (all but sync)."""
        out = ffi.new("int32_t[2]")
        self._call(lib.entrain_mesh_coordinate, constant("AXIS", axis, "axis"), out, out + 1)
        return int(out[0]), int(out[1])

    def comm(self, axis: str) -> Comm:
        """Returns the communicator of an axis. It belongs to the mesh and is closed with it."""
        code = constant("AXIS", axis, "axis")
        if code not in self._comms:
            out = ffi.new("entrain_comm_t**")
            with self._life as handle:
                check(lib.entrain_mesh_comm(handle, code, out))
                life = Life(out[0], nothing, self._life)  # the mesh destroys it
            self._comms[code] = Comm(life, owned=False)
        return self._comms[code]


def _end_calls(mesh: Any) -> None:
    """Ends the calls on a mesh that is closed while they run."""
    out = ffi.new("entrain_comm_t**")
    for axis in (lib.ENTRAIN_AXIS_MODEL, lib.ENTRAIN_AXIS_SHARD, lib.ENTRAIN_AXIS_SYNC):
        if lib.entrain_mesh_comm(mesh, axis, out) == OK:
            end_calls(out[0])


def _ending(mesh: Life) -> Callable[[Any], None]:
    """Returns a function that ends the calls on an object of the mesh. The function keeps the mesh alive."""
    return lambda handle: _end_calls(mesh.handle)


@dataclasses.dataclass(frozen=True)
class ShardLayer:
    """The place of a layer, in numbers of elements."""

    full_count: int
    #: The elements that `wait` and `gradients` return: M * shard_count.
    padded_count: int
    shard_count: int
    #: This rank's first element of the layer.
    first: int
    #: The elements of this rank's shard that are not padding.
    valid_count: int
    #: Where the shard begins in the slab.
    slab_offset: int


@dataclasses.dataclass(frozen=True)
class ShardStats:
    """Counts since the shard was made; times in ns, payload in bytes."""

    gather_wait_ns: int
    reduce_wait_ns: int
    bytes_sent_shard: int
    bytes_sent_sync: int


def _figures(info: Any) -> Dict[str, float]:
    """Returns the numbers of an information by name. Times are in seconds, under names that end in _s."""
    found = dataclasses.asdict(info)
    return {f"{name[:-3]}_s" if name.endswith("_ns") else name: value / 1e9 if name.endswith("_ns") else value
            for name, value in found.items() if name != "anchor_checksum"}


def _dataclass_of(kind: Any, struct: Any) -> Any:
    return kind(**{field.name: getattr(struct, field.name) for field in dataclasses.fields(kind)})


class Shard(Trained):
    """A model cut into layers, each spread over the shard group. A rank's shards of all layers are contiguous in one
    flat f32 array, the slab."""

    _what = "shard"

    def __init__(self, mesh: Mesh, layer_counts: Sequence[int], *, prefetch: int = 1, param_dtype: DTypeLike = "f32",
                 grad_dtype: DTypeLike = "f32", frozen: Optional[Sequence[bool]] = None,
                 replicated: Optional[Sequence[bool]] = None, timeout: Optional[float] = None,
                 segments: Optional[Sequence[Sequence[Tuple[int, int]]]] = None) -> None:
        """layer_counts: elements of each layer, in the order of the forward pass. param_dtype: the type of gathered
        layers. grad_dtype: the type of gradient buffers. Both are "f32" or "bf16". frozen: layers without trained
        parameters. replicated: layers whose values are equal on all ranks along the tensor axis. segments: for each
        layer the (elements, length of dimension 0) of its tensors. Each tensor is cut along dimension 0, as torch.chunk
        and FSDP2 cut it; None: layers are cut as flat arrays. Collective."""
        config = new_struct("shard_config")
        counts = ffi.new("size_t[]", list(layer_counts))
        flags = [NULL if given is None else self._flags(name, given, len(layer_counts))
                 for name, given in (("frozen", frozen), ("replicated", replicated))]
        config.layers, config.layer_counts, config.prefetch = len(layer_counts), counts, prefetch
        config.param_dtype, config.grad_dtype = dtype_of(param_dtype), dtype_of(grad_dtype)
        config.layer_frozen, config.layer_replicated = flags
        pieces: Any = ()
        if segments is not None:
            parts = [part for layer in segments for part in layer]
            pieces = (ffi.new("int32_t[]", [len(layer) for layer in segments]), ffi.new("size_t[]", [count for count, _ in parts]),
                      ffi.new("size_t[]", [rows for _, rows in parts]))
            config.layer_segments, config.segment_counts, config.segment_rows = pieces
        config.timeout_ns = nanoseconds(timeout)
        out = ffi.new("entrain_shard_t**")

        def call(kept: Any = (counts, flags, pieces)) -> Life:  # keeps them alive during the call
            with mesh._life as handle:
                check(lib.entrain_shard_create(handle, config, out))
                return Life(out[0], lib.entrain_shard_destroy, mesh._life, stop=_ending(mesh._life))

        super().__init__(interruptible(call, drop))
        self._buffers: Dict[int, List[Any]] = {}  # by layer, of set_buffers
        self._gathering: Set[int] = set()  # layers after gather(), and before wait() and release()
        self._types = int(config.param_dtype), int(config.grad_dtype)
        #: The place of each layer.
        self.layers: List[ShardLayer] = [self._layer(index) for index in range(len(layer_counts))]

    @staticmethod
    def _flags(name: str, given: Sequence[bool], layers: int) -> Any:
        if len(given) != layers:
            raise invalid("Shard", f"{name} has {len(given)} entries; there are {layers} layers")
        return ffi.new("uint8_t[]", [int(flag) for flag in given])

    def _layer(self, layer: int) -> ShardLayer:
        out = new_struct("shard_layer")
        self._call(lib.entrain_shard_layer_info, layer, out)
        return _dataclass_of(ShardLayer, out)  # type: ignore[no-any-return]

    @property
    def slab_count(self) -> int:
        """The number of elements of the slab."""
        out = ffi.new("size_t*")
        self._call(lib.entrain_shard_slab_count, out)
        return int(out[0])

    def bind(self, params: Any, grads: Any) -> None:
        """Lends the slab of parameters and the slab of gradients, slab_count elements each, f32 or bf16, until the
        shard is closed. The shard keeps both arrays alive. Call it once, before any method below. Reductions add to the
        gradients, and no method clears them."""
        p = buffer_of("bind", "params", params, writable=True)
        g = buffer_of("bind", "grads", grads, writable=True)
        for name, buffer in (("params", p), ("grads", g)):
            if buffer.count != self.slab_count or buffer.dtype is not p.dtype:
                raise invalid("bind", f"{name} has {buffer.count} elements of {buffer.dtype.name.lower()}; the slab has "
                                      f"{self.slab_count}, of {p.dtype.name.lower()}")
        self._held += [p, g]
        self._call(lib.entrain_shard_bind, p.pointer, g.pointer, p.dtype)

    def bind_layers(self, params: Sequence[Any], grads: Optional[Sequence[Any]] = None) -> None:
        """As bind, with one array per layer: shard_count elements each, f32 or bf16; None for a layer without elements.
        Without `grads` the caller must reduce the gradients."""
        arrays: List[Any] = []
        dtype = DType.F32
        for name, given in (("params", params), ("grads", grads)):
            if given is None:
                arrays.append(NULL)
                continue
            if len(given) != len(self.layers):
                raise invalid("bind_layers", f"{name} has {len(given)} entries; there are {len(self.layers)} layers")
            buffers = [None if array is None else buffer_of("bind_layers", f"{name}[{index}]", array, writable=True)
                       for index, array in enumerate(given)]
            for index, buffer in enumerate(buffers):
                if buffer is None:
                    continue
                dtype = buffer.dtype if not arrays and index == 0 else dtype
                if buffer.count != self.layers[index].shard_count or buffer.dtype is not dtype:
                    raise invalid("bind_layers", f"{name}[{index}] has {buffer.count} elements of {buffer.dtype.name.lower()}; "
                                                 f"expected {self.layers[index].shard_count} of {dtype.name.lower()}")
            self._held.append(buffers)
            arrays.append(ffi.new("void*[]", [NULL if buffer is None else buffer.pointer for buffer in buffers]))
        self._call(lib.entrain_shard_bind_layers, arrays[0], arrays[1], dtype)

    def load(self, layer: int, full: Any) -> None:
        """Copies this rank's part of a whole layer (full_count elements; f32, f64, bf16, f16) into the parameters. Local."""
        buffer = buffer_of("load", "full", full)
        if not 0 <= layer < len(self.layers) or buffer.count != self.layers[layer].full_count:
            expected = self.layers[layer].full_count if 0 <= layer < len(self.layers) else "no such layer"
            raise invalid("load", f"layer {layer}: full has {buffer.count} elements; expected: {expected}")
        self._call(lib.entrain_shard_load, layer, buffer.pointer, buffer.dtype)

    def broadcast(self) -> None:
        """Copies the parameters of replica 0 to all. Collective."""
        self._start(lib.entrain_shard_broadcast)

    def begin_pass(self, *, backward: bool = False) -> None:
        """Sets the order in which the caller uses the layers next, for prefetching. Collective."""
        self._call(lib.entrain_shard_begin_pass, lib.ENTRAIN_PASS_BACKWARD if backward else lib.ENTRAIN_PASS_FORWARD)

    def gather(self, layer: int) -> None:
        """Starts gathering a layer over the shard group. Returns at once."""
        self._call(lib.entrain_shard_gather, layer)
        self._gathering.add(layer)

    def wait(self, layer: int) -> npt.NDArray[Any]:
        """Waits for the layer. Returns padded_count elements of param_dtype in the library's memory. They must only be
        read. They are valid until `release`; copy values that must live longer."""
        out = ffi.new("void**")
        self._watch(lib.entrain_shard_gather_work, layer, counts="gather_wait_ns")
        self._call(lib.entrain_shard_wait, layer, out)
        self._gathering.discard(layer)
        array = view(out[0], self.layers[layer].padded_count, self._types[0])
        array.flags.writeable = False
        return array

    def release(self, layer: int) -> None:
        """Gives the layer's memory back to the library, after its gather is over."""
        if layer in self._gathering:
            self._watch(lib.entrain_shard_gather_work, layer)
        self._call(lib.entrain_shard_release, layer)
        self._gathering.discard(layer)

    def gradients(self, layer: int) -> npt.NDArray[Any]:
        """Returns a zeroed buffer for the layer's gradients, padded_count elements of grad_dtype, to which the caller
        adds until `reduce_gradients`. The buffer is memory of the library."""
        out = ffi.new("void**")
        self._call(lib.entrain_shard_gradients, layer, out)
        return view(out[0], self.layers[layer].padded_count, self._types[1])

    def reduce_gradients(self, layer: int) -> None:
        """Takes the buffer back and starts its reduction into the gradient slab. Returns at once."""
        self._call(lib.entrain_shard_reduce_gradients, layer)

    def finish_gradients(self) -> None:
        """Waits until all started reductions are in the gradient slab."""
        self._watch(lib.entrain_shard_gradients_work, counts="reduce_wait_ns")
        self._call(lib.entrain_shard_finish_gradients)

    def set_buffers(self, layer: int, gathered: Any = None, gradients: Any = None) -> None:
        """Lends arrays of the caller for a layer, padded_count elements each, until others are set or the shard is
        closed. The method `wait` then returns `gathered`, of param_dtype, and the method `gradients` clears and
        returns the array `gradients`, of grad_dtype. None: the library's own arrays. Waits for the layer's reduction.
        FailedPrecondition before `bind`, between `gather` and `release`, and between `gradients` and
        `reduce_gradients`. Local."""
        pointers, buffers = [], []
        for name, array, dtype in (("gathered", gathered, self._types[0]), ("gradients", gradients, self._types[1])):
            if array is None:
                pointers.append(NULL)
                continue
            buffer = buffer_of("set_buffers", name, array, writable=True)
            if 0 <= layer < len(self.layers) and (buffer.count, buffer.dtype) != (self.layers[layer].padded_count, dtype):
                raise invalid("set_buffers", f"{name} has {buffer.count} elements of {buffer.dtype.name.lower()}; layer {layer} takes "
                                             f"{self.layers[layer].padded_count} of {DType(dtype).name.lower()}")
            buffers.append(buffer)
            pointers.append(buffer.pointer)
        self._held.append(buffers)
        self._watch(lib.entrain_shard_gradients_work)
        self._call(lib.entrain_shard_set_buffers, layer, *pointers)
        # The library no longer uses the arrays of an earlier call.
        if layer in self._buffers:
            self._held.remove(self._buffers[layer])
        self._buffers[layer] = buffers

    def gradient_norm(self) -> float:
        """Returns the norm of the bound gradients of this replica, over its shard, tensor and pipeline ranks. Each
        element counts once. Equal bits on all ranks of the replica. FailedPrecondition unless gradients are bound and
        reduced. Collective over the replica; blocks."""
        norm = ffi.new("double*")
        self._start(lib.entrain_shard_gradient_norm, norm)
        return float(norm[0])

    def set_gradients(self, scope: str) -> None:
        """Sets the scope of later reductions: "global" (over replicas too) or "local". An EDiT object sets it itself.
        Collective."""
        self._call(lib.entrain_shard_set_gradients, constant("GRADIENTS", scope, "scope"))

    def stats(self) -> ShardStats:
        """Returns waits and bytes."""
        out = new_struct("shard_stats")
        self._call(lib.entrain_shard_stats, out)
        return _dataclass_of(ShardStats, self._told(out))  # type: ignore[no-any-return]


#: outer_step(layer, step, anchor, grad) moves `anchor` in place. Both arrays are f32, and valid only during the call.
OuterStep = Callable[[int, int, npt.NDArray[np.float32], npt.NDArray[np.float32]], object]
#: outer_schedule(layer, step, lr, momentum) returns the learning rate and the momentum of outer step `step` of the layer, from 1. `lr`
#: and `momentum` are outer_lr and outer_momentum. The same on all ranks, so it must follow from the arguments.
OuterSchedule = Callable[[int, int, float, float], Tuple[float, float]]

#: interval_schedule(exchanges, steps) returns H in steps, or with use_async tau in seconds, of the interval after `exchanges` exchanges
#: and `steps` steps since warm-up. EDiT's must be the same on all replicas, so it must follow from the arguments.
IntervalSchedule = Callable[[int, int], float]


@dataclasses.dataclass
class EditConfig(EditOptions):
    """EDiT's options under the names of the published code; entrain_edit_config_t in entrain/train.h explains each.
    `timeout` (None: the communicators' default) and `local_sgd_sync_time` are in seconds."""

    #: Used with outer_optimizer "callback".
    outer_step: Optional[OuterStep] = None
    timeout: Optional[float] = None
    fragment_of_layer: Optional[Sequence[int]] = None
    fragment_intervals: Optional[Sequence[int]] = None
    fragment_offsets: Optional[Sequence[int]] = None
    #: The store in which newcomers apply (admit); None: the store of the launcher.
    admit_store: Optional[Store] = None
    admit_name: Optional[str] = None
    #: What makes this run what it is (the data, the seed, the batch size). Replicas of another run are refused by name.
    identity: Optional[Mapping[str, Any]] = None
    #: Changes outer_lr and outer_momentum step by step (entrain_outer_schedule_fn).
    outer_schedule: Optional[OuterSchedule] = None
    #: Replaces local_sgd_sync_interval, or local_sgd_sync_time (entrain_interval_schedule_fn).
    interval_schedule: Optional[IntervalSchedule] = None


class EditKeywords(EditNumbers, total=False):
    """The fields of EditConfig as keywords."""

    outer_step: Optional[OuterStep]
    timeout: Optional[float]
    fragment_of_layer: Optional[Sequence[int]]
    fragment_intervals: Optional[Sequence[int]]
    fragment_offsets: Optional[Sequence[int]]
    admit_store: Optional[Store]
    admit_name: Optional[str]
    identity: Optional[Mapping[str, Any]]
    outer_schedule: Optional[OuterSchedule]
    interval_schedule: Optional[IntervalSchedule]


#: The published methods (entrain_edit_config_preset in entrain/train.h says what each is).
PRESETS = tuple(ffi.string(lib.entrain_edit_preset_name(index)).decode() for index in range(lib.entrain_edit_preset_count()))


def with_preset(config: EditConfig, preset: str, layers: int, given: Iterable[str] = ()) -> EditConfig:
    """Returns the options of a published method. `given`: the names of options of `config` that stay; further ones stay if they
    differ from their defaults. layers: the number of the model's layers."""
    struct = new_struct("edit_config")
    numbers = {field.name for field in dataclasses.fields(EditOptions)}
    plain = EditOptions(**{name: getattr(config, name) for name in numbers})
    fill(struct, plain, EDIT_FAMILIES)
    changed = (field.name for field in dataclasses.fields(EditOptions) if getattr(config, field.name) != field.default)
    replaced = ("local_sgd_sync_interval", "local_sgd_sync_time") if config.interval_schedule is not None else ()
    names = sorted(numbers & {*given, *changed, *replaced})
    texts = [ffi.new("char[]", name.encode()) for name in names]
    check(lib.entrain_edit_config_preset(struct, preset.encode(), layers, ffi.new("char*[]", texts), len(texts)))
    found: Dict[str, Any] = {}
    for field in dataclasses.fields(EditOptions):
        value, before = getattr(struct, field.name), getattr(config, field.name)
        if field.name in EDIT_FAMILIES:
            found[field.name] = before if constant(EDIT_FAMILIES[field.name], before, field.name) == value else \
                constant_name(EDIT_FAMILIES[field.name], value)
        else:
            kind = bool if isinstance(field.default, bool) else int if isinstance(field.default, int) else float
            found[field.name] = kind(value)
    return dataclasses.replace(config, **found)


_EDIT_ARRAYS = {"fragment_of_layer": "int32_t[]", "fragment_intervals": "int64_t[]", "fragment_offsets": "int64_t[]"}


@dataclasses.dataclass(frozen=True)
class EditInfo:
    """The state after the last finished exchange (entrain_edit_info_t)."""

    steps: int
    syncs: int
    last_sync_step: int
    anchor_checksum: int
    exposed_ns: int
    sync_ns: int
    bytes_sent_shard: int
    bytes_sent_sync: int
    in_warmup: int
    wishes: int
    rendezvous: int
    metric: float
    rejections: int
    rollbacks: int
    replicas: int
    losses: int
    short_rounds: int
    joins: int
    replica: int
    most_replicas: int
    repairs: int
    missed: int

    def as_dict(self) -> Dict[str, float]:
        """Returns the figures by name, times in seconds."""
        return _figures(self)


@dataclasses.dataclass(frozen=True)
class EditLoss:
    """A replica that was lost (entrain_edit_loss)."""

    replica: int
    rendezvous: int
    why: str


@dataclasses.dataclass(frozen=True)
class EditReplica:
    """The record of a replica from the last rendezvous."""

    steps: int
    steps_since: int
    tokens_since: int
    wishes: int
    leaving: int


class EDiT(Checkpointed):
    """EDiT, or with use_async A-EDiT, on a bound shard. A step:

        edit.begin_forward()                     # starts an exchange if one is due
        for layer: edit.wait_layer(layer); ... forward ...
        ... backward; optimizer ...
        edit.end_step()

    The shard reduces the gradients, or the caller does as gradient_scope says."""

    _what = "EDiT object"
    _kind = "edit"

    def __init__(self, mesh: Mesh, shard: Shard, config: Optional[EditConfig] = None, *,
                 preset: Optional[str] = None, join: Optional[float] = None, fetch: Optional[Callable[[], object]] = None,
                 **options: "Unpack[EditKeywords]") -> None:
        """Takes options as a config, or one by one: EDiT(mesh, shard, local_sgd_sync_interval=16). Collective.

        `preset` is the name of a published method (PRESETS), whose options the given ones override. None: the defaults of the
        published code, which are plain averaging.

        `fetch` copies the parameters into the bound arrays, for parameters that lie elsewhere (entrain_edit_fetch_fn says when
        it is called, and when they must be copied back).

        With `join`, this replica joins replicas that train with admit="exchange". The call waits until they take it in,
        at most `join` seconds (entrain_edit_join). The mesh then has the ranks of this replica alone. Its communicator
        is made in the others' store, under a name of its own."""
        given = dataclasses.replace(config or EditConfig(), **options)
        if preset is not None:
            given = with_preset(given, preset, len(shard.layers), options)
        struct = new_struct("edit_config")
        arrays = {name: ffi.new(kind, list(getattr(given, name))) for name, kind in _EDIT_ARRAYS.items()
                  if getattr(given, name) is not None}
        if given.admit_name is not None:
            arrays["admit_name"] = ffi.new("char[]", given.admit_name.encode())
        if given.identity is not None:
            arrays["identity"] = ffi.new("char[]", identity_text(given.identity))
        callbacks = []
        plain = dataclasses.replace(given, outer_step=None, fragment_of_layer=None, fragment_intervals=None,
                                    fragment_offsets=None, admit_store=None, admit_name=None, identity=None,
                                    outer_schedule=None, interval_schedule=None)
        fill(struct, plain, EDIT_FAMILIES)
        for name, array in arrays.items():
            setattr(struct, name, array)
        if given.outer_step is not None:
            outer = given.outer_step

            def called(user: Any, layer: int, step: int, anchor: Any, grad: Any, count: int) -> None:
                outer(layer, step, view(anchor, count, DType.F32), view(grad, count, DType.F32))

            callbacks.append(Callback(called, "entrain_outer_step_fn"))
            struct.outer_step = callbacks[-1].pointer
        if given.outer_schedule is not None:
            rates = given.outer_schedule

            def asked(user: Any, layer: int, step: int, lr: Any, momentum: Any) -> None:
                lr[0], momentum[0] = rates(layer, step, lr[0], momentum[0])

            callbacks.append(Callback(asked, "entrain_outer_schedule_fn"))
            struct.outer_schedule = callbacks[-1].pointer
        if given.interval_schedule is not None:
            length = given.interval_schedule
            callbacks.append(Callback(lambda user, exchanges, steps: float(length(exchanges, steps)),
                                      "entrain_interval_schedule_fn"))
            struct.interval_schedule = callbacks[-1].pointer
        if fetch is not None:
            callbacks.append(Callback(lambda user: fetch(), "entrain_edit_fetch_fn"))
            struct.fetch = callbacks[-1].pointer
        struct.timeout_ns = nanoseconds(given.timeout)
        out = ffi.new("entrain_edit_t**")

        def call(kept: Any = arrays) -> Life:  # keeps them alive during the call
            with inside(mesh, shard, given.admit_store) as (handle, struct.shard, struct.admit_store):
                if join is None:
                    check(lib.entrain_edit_create(handle, struct, out))
                else:
                    with shown():
                        check(lib.entrain_edit_join(handle, struct, nanoseconds(join), out))
                return Life(out[0], lib.entrain_edit_destroy, mesh._life, shard._life, held=callbacks, stop=_ending(mesh._life))

        super().__init__(interruptible(call, drop), callbacks)
        # Calls of the shard also raise the error of a failed exchange.
        shard._callbacks += callbacks
        self._replicas = self.info().most_replicas
        self._begin_waits = bool(struct.use_async or struct.overlap_steps)
        self._slab_count = shard.slab_count

    def begin_forward(self, *, training: bool = True, first_microbatch: bool = True) -> bool:
        """Must be called before each forward pass. Returns whether it started an exchange, for which it does not
        wait."""
        syncing = ffi.new("int32_t*")
        if self._begin_waits:
            self._start(lib.entrain_edit_begin_forward, training, first_microbatch, syncing)
        else:
            self._call(lib.entrain_edit_begin_forward, training, first_microbatch, syncing, NULL)
        return bool(syncing[0])

    def wait_layer(self, layer: int, timeout: Optional[float] = None) -> bool:
        """Waits for the layer's exchange. Afterwards its parameters have equal bits on all replicas. Returns False if the exchange is not
        over after `timeout` seconds (None: as long as its own deadline allows)."""
        if not self._watch(lib.entrain_edit_layer_work, layer, timeout=timeout, counts="exposed_ns"):
            return False
        self._call(lib.entrain_edit_wait_layer, layer)
        return True

    def end_step(self) -> None:
        """Counts a step. Must be called after the inner optimizer's step."""
        self._call(lib.entrain_edit_end_step)

    def gradient_scope(self) -> str:
        """Returns "local" or "global": the ranks over which the gradients of this step are averaged."""
        scope = ffi.new("int32_t*")
        self._call(lib.entrain_edit_gradient_scope, scope)
        return "global" if scope[0] == lib.ENTRAIN_GRADIENTS_GLOBAL else "local"

    def request_sync(self) -> None:
        """Makes the next begin_forward exchange, whatever the trigger says. Collective."""
        self._call(lib.entrain_edit_request_sync)

    def record(self, tokens: int, metric: float = 0.0, weight: float = 0.0) -> None:
        """Records this rank's tokens since the last call, and a metric with its weight (0: none). Local."""
        self._call(lib.entrain_edit_record, tokens, metric, weight)

    def wish(self, *, checkpoint: bool = False, stop: bool = False) -> None:
        """Shows wishes at the next rendezvous, where all ranks see them in info().wishes. Local."""
        bits = (lib.ENTRAIN_WISH_CHECKPOINT if checkpoint else 0) | (lib.ENTRAIN_WISH_STOP if stop else 0)
        self._call(lib.entrain_edit_wish, bits)

    def leave(self) -> None:
        """A-EDiT: says that this replica has made its last step. Takes part in the others' rendezvous until all have
        left."""
        self._start(lib.entrain_edit_leave)

    def info(self) -> EditInfo:
        """Returns the state after the last finished exchange."""
        out = new_struct("edit_info")
        self._call(lib.entrain_edit_info, out)
        return _dataclass_of(EditInfo, self._told(out))  # type: ignore[no-any-return]

    def replica(self, replica: int) -> EditReplica:
        """Returns the record of a replica, 0 to info().most_replicas - 1, from the last rendezvous."""
        out = new_struct("edit_replica")
        self._call(lib.entrain_edit_replica, replica, out)
        return _dataclass_of(EditReplica, out)  # type: ignore[no-any-return]

    def losses(self) -> List[EditLoss]:
        """Returns the replicas that were lost, in the order in which this rank learned of the losses."""
        replica, rendezvous, text, losses = ffi.new("int32_t*"), ffi.new("int64_t*"), ffi.new("char[]", 2000), []
        for index in range(self.info().losses):
            self._call(lib.entrain_edit_loss, index, replica, rendezvous, text, len(text))
            losses.append(EditLoss(replica[0], rendezvous[0], ffi.string(text).decode(errors="replace")))
        return losses

    def anchor(self, out: Any = None) -> Any:
        """Returns a copy of this rank's anchors, laid out as the slab. `out`: f32, f64, bf16 or f16; None: a new f32
        array."""
        out = np.empty(self._slab_count, np.float32) if out is None else out
        buffer = buffer_of("anchor", "out", out, writable=True)
        if buffer.count != self._slab_count:
            raise invalid("anchor", f"out has {buffer.count} elements; the slab has {self._slab_count}")
        self._call(lib.entrain_edit_anchor, buffer.pointer, buffer.dtype)
        return out

    def layer_report(self, layer: int) -> Tuple[List[float], List[float], float]:
        """Returns norms and weights by replica, and the clip factor, of the layer's last exchange."""
        norms, weights, factor = ffi.new("double[]", self._replicas), ffi.new("double[]", self._replicas), ffi.new("double*")
        self._call(lib.entrain_edit_layer_report, layer, norms, weights, factor)
        return list(norms), list(weights), float(factor[0])

    def layer_score(self, layer: int) -> Tuple[float, float]:
        """Returns the z-score of the layer's norm at the last exchange, and the limit above which the norm is an
        outlier."""
        z, limit = ffi.new("double*"), ffi.new("double*")
        self._call(lib.entrain_edit_layer_score, layer, z, limit)
        return float(z[0]), float(limit[0])
