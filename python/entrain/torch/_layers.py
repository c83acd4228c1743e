"""Maps a module's parameters to the library's layers: which parameters form a layer, and one flat array for each
layer."""
from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ..arrays import DType
from ..errors import ErrorRecord, FailedPrecondition, invalid
from .._library import lib

if TYPE_CHECKING:
    from typing import TypeGuard

    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


# Importing the modules of DTensor and FSDPModule takes a second. If a program has not imported these modules, no
# object has these classes.
def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def is_fsdp(module: nn.Module) -> TypeGuard[FSDPModule]:
    return isinstance(module, getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ()))


def local_of(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a DTensor, on the DTensor's memory. Returns any other tensor unchanged."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        local: Tensor = tensor.to_local()
        return local


def like(local: Tensor, param: Tensor) -> Tensor:
    """Returns this rank's part of a value that has the parameter's shape, as a DTensor if the parameter is one."""
    if is_dtensor(param):
        from torch.distributed.tensor import DTensor
        shaped = local.view(local_of(param).shape).to(local_of(param).device)
        return DTensor.from_local(shaped, param.device_mesh, param.placements, run_check=False, shape=param.shape,
                                  stride=param.stride())
    return local.view(param.shape)


def tensor_of(array: Any, dtype: DType) -> Tensor:
    """Returns a NumPy array of the library as a tensor on the same memory."""
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16) if dtype is DType.BF16 else torch.from_numpy(array)


@dataclasses.dataclass
class Layer:
    """Parameters that are exchanged together before the forward pass of `module`."""

    name: str
    module: nn.Module
    params: List[Tuple[str, nn.Parameter]]
    #: The ranks along the tensor axis hold equal values.
    replicated: bool = False
    #: Names of the optimizer's states that are exchanged as if they were parameters, which they equal in shape.
    states: Tuple[str, ...] = ()
    #: The states that the library has written (a load, a join) count, and not those of the optimizer, which has not seen them yet.
    keeps_states: bool = False
    #: This rank's parts of all parameters, each with room for the longest part of any rank. They lie one after another in an
    #: array for each type that parameters have (one, as a rule). Set by `bind`.
    parts: List[Tensor] = dataclasses.field(default_factory=list)
    flats: List[Tensor] = dataclasses.field(default_factory=list)
    #: What the library sees of `parts`, in their order: the one array itself, or its twin in host memory. Set by `bind`.
    host: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    #: The address of `host`, which the library has.
    at: int = 0
    #: Copies from and to the twin may be over later than they return (Stream.known).
    late: bool = False
    #: Elements of `host` for each parameter. Those beyond the parameter's own are zero.
    rooms: List[int] = dataclasses.field(default_factory=list)

    def bind(self, dtype: torch.dtype, ranks: int, staging: bool, late: bool) -> None:
        """Moves the parameters, which `ranks` ranks share, into one flat array for each of their types, on their device. The
        Parameter objects stay, with their names and shapes, and become views of the array. staging: the library gets a twin in host
        memory, of type `dtype`. Without staging `dtype` must be the type of all parameters. late: somebody waits for copies to the
        twin (Stream.wait)."""
        self.late = late
        self.rooms = [-(-rows // ranks) * (count // rows) if rows else 0 for count, rows in self.segments]
        device = local_of(self.params[0][1]).device
        ends: Dict[torch.dtype, int] = {}
        places = []
        for (_, param), room in zip(self.exchanged, self.rooms):
            places.append(ends.get(param.dtype, 0))
            ends[param.dtype] = places[-1] + room
        flats = {kind: torch.zeros(end, dtype=kind, device=device) for kind, end in ends.items()}
        self.flats = list(flats.values())
        self.parts = [flats[param.dtype][place:place + room] for (_, param), place, room in zip(self.exchanged, places, self.rooms)]
        self.host = host_twin(sum(self.rooms), dtype, device) if staging else self.flats[0]
        self.at = self.host.data_ptr()
        for (_, param), room, whole in zip(self.params, self.rooms, self.parts):
            # This is the only use of a private member: to_local() returns an alias, and no public function gives other
            # memory to a DTensor.
            local = param._local_tensor if is_dtensor(param) else param
            part = whole[:local.numel()].view(local.shape)
            with torch.no_grad():
                part.copy_(local)
            if room > local.numel():
                # fully_shard gathers the padded length. Its hook after load_state_dict takes over the parameter's
                # memory, and no other public call has this effect.
                local.data = whole.view(-1, *local.shape[1:])
                for module in self.module.modules():
                    if any(own is param for own in module.parameters(recurse=False)):
                        module.load_state_dict({}, strict=False)
            local.data = part

    @torch.no_grad()
    def fetch(self) -> None:
        """Copies the parameters to the library's twin. On an accelerator the copy is over after `Stream.wait`."""
        if self.host is not self.flats[0]:
            for mine, theirs in self._pairs(self.host):
                theirs.copy_(mine, non_blocking=self.late)

    def store(self) -> None:
        """Copies the library's twin to the parameters, in the order of the current stream."""
        if self.host is not self.flats[0]:
            self.write(self.host, late=self.late)

    @torch.no_grad()
    def write(self, values: Tensor, *, late: bool = False) -> None:
        """Copies an array that is laid out as `host` to the parameters. late: the copy may be over later than this call returns."""
        for mine, theirs in self._pairs(values):
            mine.copy_(theirs, non_blocking=late)

    def _pairs(self, other: Tensor) -> "Iterable[Tuple[Tensor, Tensor]]":
        return [(self.flats[0], other)] if len(self.flats) == 1 else zip(self.parts, other.split(self.rooms))

    @property
    def exchanged(self) -> List[Tuple[str, nn.Parameter]]:
        """The names of all that is exchanged: the parameters, then for each state the parameters to which it belongs."""
        return self.params + [(f"{name}/{state}", param) for state in self.states for name, param in self.params]

    @torch.no_grad()
    def bind_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Moves the states of `optimizer` to the array of the parameters, if they are not there. A state that the optimizer has not made
        yet begins with the parameter's values."""
        keeps = self.keeps_states
        parts = iter(self.parts[len(self.params):])
        for state in self.states:
            for name, param in self.params:
                local = local_of(param)
                part = next(parts)[:local.numel()].view(local.shape)
                known = optimizer.state.get(param, {})
                if not known:
                    if not keeps:
                        part.copy_(local)
                    continue
                self.keeps_states = False
                mine = known.get(state)
                if not isinstance(mine, Tensor) or local_of(mine).shape != local.shape:
                    found = sorted(key for key, one in known.items() if isinstance(one, Tensor) and local_of(one).shape == local.shape)
                    raise FailedPrecondition(ErrorRecord(
                        code=lib.ENTRAIN_FAILED_PRECONDITION,
                        text=f"exchange_state has {state!r}, and the optimizer keeps no such state of the parameter's shape for {name}; it "
                             f"keeps {found}"))
                if local_of(mine).data_ptr() != part.data_ptr() or mine.dtype != part.dtype:
                    if not keeps:
                        part.copy_(local_of(mine))
                    known[state] = like(part, param)

    @property
    def count(self) -> int:
        """The number of elements of all that is exchanged, whole."""
        return sum(param.numel() for _, param in self.exchanged)

    @property
    def segments(self) -> List[Tuple[int, int]]:
        """For each whole parameter or state, its number of elements and the length of its dimension 0. With these, a portable
        checkpoint fits any sharding."""
        return [(param.numel(), param.shape[0] if param.dim() else 1) for _, param in self.exchanged]

    def check_memory(self) -> None:
        """Raises FailedPrecondition if torch has given the array of the library other memory. Must be called before the library reads it."""
        if self.host.data_ptr() != self.at:
            raise FailedPrecondition(ErrorRecord(
                code=lib.ENTRAIN_FAILED_PRECONDITION,
                text=f"the parameters of {self.name or 'the model'} were moved into shared memory after they were bound: share_memory(), and "
                     "queues and processes of torch.multiprocessing do this; call share_memory() before, or give away a copy"))

    def check_bound(self) -> None:
        """Raises FailedPrecondition if the memory of a parameter was replaced after `bind`. The error names the
        parameter."""
        for (name, param), part in zip(self.params, self.parts):
            local = local_of(param)
            if local.numel() and local.data_ptr() != part.data_ptr():
                raise FailedPrecondition(ErrorRecord(
                    code=lib.ENTRAIN_FAILED_PRECONDITION,
                    text=f"the parameter {name} no longer lies where EDiT has bound it; load_state_dict(assign=True), .to() and "
                         "assignments to .data after the EDiT object was made do this; copy into the parameter instead"))


def host_twin(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns an array in host memory for copies of one on `device`, pinned if that is an accelerator, so that copies need no
    bounce. Padding of uneven shards is zero, as the library expects."""
    if device.type not in ("cpu", "meta"):
        try:
            return torch.zeros(count, dtype=dtype, pin_memory=True)
        except RuntimeError:  # the device has no pinned memory, or the system no more of it
            pass
    return torch.zeros(count, dtype=dtype)


class Stream:
    """The stream on which the caller computes, for copies on other threads."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self.note()

    def note(self) -> None:
        """Must be called on the caller's thread, behind the kernels that write the parameters."""
        try:
            stream = None if self._device.type == "cpu" else torch.accelerator.current_stream(self._device)
        except (AttributeError, RuntimeError, ValueError):  # the device is not torch.accelerator's
            stream = None
        self._stream = stream if hasattr(stream, "__enter__") else None  # in older releases a stream is no context

    @property
    def known(self) -> bool:
        """Whether `wait` can wait for copies. Otherwise nobody could, so copies must be over when they return."""
        return self._stream is not None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()  # also makes its device the current one
        elif self._device.type != "cpu":  # the parameters may be written on any stream
            try:
                torch.get_device_module(self._device).synchronize(self._device)
            except (AttributeError, RuntimeError):  # the device has nothing to wait for
                pass

    def __exit__(self, *error: Any) -> None:
        if self._stream is not None:
            self._stream.__exit__(*error)

    def wait(self) -> None:
        """Waits for the copies that were made on this stream."""
        if self._stream is not None:
            try:
                self._stream.synchronize()
            except RuntimeError:  # MPS, for example, can wait only for the whole device
                torch.accelerator.synchronize(self._device)


def default_layers(model: nn.Module) -> List[nn.Module]:
    """Returns the modules that become layers unless the caller names layers. For a model sharded by fully_shard: the
    modules given to fully_shard. Otherwise the children of the ModuleList or Sequential with the most parameters. No
    modules if there is no such list."""
    sharded = [module for module in model.modules() if is_fsdp(module) and module is not model]
    if sharded:
        return [module for module in sharded if isinstance(module, nn.Module)]
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    most: Optional[nn.Module] = None
    for module in lists:
        if most is None or _size(module) > _size(most):
            most = module
    return list(most.children()) if most is not None else []


def _size(module: nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())


def layers_of(model: nn.Module, chosen: Optional[Sequence[nn.Module]], replicated: Iterable[nn.Parameter] = ()) -> List[Layer]:
    """Returns the layers of `model` in the order of the forward pass. The first layer belongs to the model itself: it
    has the parameters that are in none of the `chosen` modules, or in several of them. The parameters of a module
    that are in `replicated` form a layer of their own, after the others. Parameters that do not require gradients are
    in no layer."""
    modules = default_layers(model) if chosen is None else list(chosen)
    names = {id(module): name for name, module in model.named_modules()}
    owners: Dict[int, int] = {}
    for index, module in enumerate(modules):
        if id(module) not in names:
            raise invalid("EDiT", f"layers[{index}] is no module of the model")
        if module is model:
            raise invalid("EDiT", f"layers[{index}] is the model itself; what lies in no layer belongs to the model anyway")
        for inner in module.modules():
            # Of nested layers, the later one in the list counts. By default it is the inner one.
            owners[id(inner)] = index + 1
    owner_of: Dict[int, int] = {}
    for module in model.modules():
        owner = owners.get(id(module), 0)
        for param in module.parameters(recurse=False):
            owner_of[id(param)] = owner if owner_of.get(id(param), owner) == owner else 0
    alike = {id(param) for param in replicated}
    strangers = alike.difference(id(param) for param in model.parameters())
    if strangers:
        raise invalid("EDiT", f"{len(strangers)} of the {len(alike)} replicated parameters are none of the model's")
    found = [Layer((names[id(module)] or "the model") + kind, module, [], replicated=bool(kind))
             for module in [model, *modules] for kind in ("", ", replicated")]
    for name, param in model.named_parameters():
        if param.requires_grad and param.numel():
            found[2 * owner_of[id(param)] + (id(param) in alike)].params.append((name, param))
    found = [layer for layer in found if layer.params]
    if not found:
        raise invalid("EDiT", "the model has no parameters that require gradients")
    return found


def check_place(call: str, name: str, local: Tensor) -> None:
    """Refuses a parameter that cannot be moved into a flat array."""
    if local.device.type == "meta":
        raise invalid(call, f"the parameter {name} is on meta; give the model its memory first (to_empty, and its values)")
    try:
        lies = not local.numel() or local.data_ptr() != 0
    except RuntimeError:
        lies = False
    if not lies:
        raise invalid(call, f"the parameter {name} is a {type(local).__name__} on {local.device}, which has no memory of its own (a tensor "
                            "around others, or of a device without addresses); expected plain tensors")


def check_copies(call: str, device: torch.device) -> None:
    """Refuses a device from which, or to which, PyTorch cannot copy, before other ranks wait for this one."""
    try:
        torch.ones(1).to(device).cpu()
    except RuntimeError as error:
        raise invalid(call, f"the parameters are on {device}, and PyTorch cannot copy between it and the host: {error}") from error


def device_of(layers: Sequence[Layer]) -> torch.device:
    """Returns the one device of all parameters."""
    first, device = layers[0].params[0][0], local_of(layers[0].params[0][1]).device
    for layer in layers:
        for name, param in layer.params:
            local = local_of(param)
            check_place("EDiT", name, local)
            if local.device != device:
                raise invalid("EDiT", f"the parameter {name} is on {local.device}, and {first} is on {device}; expected one device")
    check_copies("EDiT", device)
    return device


def dtype_of(layers: Sequence[Layer]) -> Tuple[torch.dtype, bool]:
    """Returns the type in which the library sees all parameters, and whether that is the type of each of them. Parameters of
    several types, and of float16, need a twin in float32."""
    kinds: Dict[torch.dtype, str] = {}
    for layer in layers:
        for name, param in layer.params:
            kinds.setdefault(param.dtype, name)
    for dtype, name in kinds.items():
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise invalid("EDiT", f"the parameter {name} is {dtype}; expected torch.float32, torch.bfloat16 or torch.float16")
    alike = len(kinds) == 1 and torch.float16 not in kinds
    return next(iter(kinds)) if alike else torch.float32, alike


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How fully_shard has sharded the model: the ranks of torch.distributed, and this rank's place among them."""

    ranks: Tuple[int, ...] = ()
    slot: int = 0

    @property
    def size(self) -> int:
        """The number of ranks that share a replica (M); 1 without fully_shard."""
        return max(1, len(self.ranks))


def sharding_of(model: nn.Module, layers: Sequence[Layer]) -> Sharding:
    """Returns the one sharding of all parameters. Raises InvalidArgument, naming a parameter, if the library cannot
    bind its sharding."""
    found: Optional[Sharding] = None
    cut = {id(param) for module in model.modules() if is_fsdp(module) for param in module.parameters()}
    for layer in layers:
        for name, param in layer.params:
            if is_dtensor(param):
                if id(param) not in cut:
                    raise invalid("EDiT", f"the parameter {name} is a DTensor that fully_shard has not made (of tensor parallelism, for "
                                          "example); give each rank its part as a plain module, with a mesh that has a tensor axis")
                mesh = param.device_mesh
                if mesh.ndim != 1:
                    raise invalid("EDiT", f"the parameter {name} is on a mesh of {mesh.ndim} dimensions; give fully_shard the one "
                                          "dimension that shards a replica: EDiT itself connects the replicas")
                if len(param.placements) != 1 or not param.placements[0].is_shard(0):
                    raise invalid("EDiT", f"the parameter {name} has the placements {param.placements}; expected (Shard(dim=0),)")
                here = Sharding(tuple(mesh.mesh.tolist()), mesh.get_local_rank())
            else:
                here = Sharding()
            if found is not None and here != found:
                raise invalid("EDiT", f"the parameter {name} is sharded over the ranks {list(here.ranks)}, and others over "
                                      f"{list(found.ranks)}")
            found = here
    assert found is not None
    return found
