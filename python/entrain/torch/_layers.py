"""A module's parameters as the library's layers: which parameters form a layer, and one flat array for each layer."""
from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from ..errors import ErrorRecord, FailedPrecondition, invalid
from .._library import lib


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, as the DTensor itself holds it; another tensor as it is."""
    if isinstance(tensor, DTensor):
        local: Tensor = tensor._local_tensor  # to_local() gives an alias, whose memory cannot be exchanged
        return local
    return tensor


@dataclasses.dataclass
class Layer:
    """Parameters that are exchanged together, before the forward pass of `module`."""

    name: str
    module: nn.Module
    params: List[Tuple[str, nn.Parameter]]
    #: This rank's part of all of them, one after another; set by `bind`.
    flat: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))

    def bind(self, dtype: torch.dtype) -> None:
        """Moves the parameters into one flat array; they become views of it, with the same names, shapes and objects."""
        locals_ = [local_of(param) for _, param in self.params]
        self.flat = torch.empty(sum(local.numel() for local in locals_), dtype=dtype)
        offset = 0
        for local in locals_:
            part = self.flat[offset:offset + local.numel()].view(local.shape)
            with torch.no_grad():
                part.copy_(local)
            local.data = part
            offset += local.numel()

    @property
    def segments(self) -> List[Tuple[int, int]]:
        """Elements and length of dimension 0 of the whole parameters, so that a portable checkpoint goes with any sharding."""
        return [(param.numel(), param.shape[0] if param.dim() else 1) for _, param in self.params]

    def check_bound(self) -> None:
        """FailedPrecondition naming a parameter that somebody has given other memory since `bind`."""
        address = self.flat.data_ptr()
        for name, param in self.params:
            local = local_of(param)
            if local.numel() and local.data_ptr() != address:
                raise FailedPrecondition(ErrorRecord(
                    code=lib.ENTRAIN_FAILED_PRECONDITION,
                    text=f"the parameter {name} no longer lies where EDiT has bound it; load_state_dict(assign=True), .to() and "
                         "assignments to .data after the EDiT object was made do this; copy into the parameter instead"))
            address += local.numel() * local.element_size()


def default_layers(model: nn.Module) -> List[nn.Module]:
    """The modules that become layers unless the caller names them: of a model sharded by fully_shard, the modules given to it;
    else the children of the ModuleList or Sequential with the most parameters; none if there is no such list."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule) and module is not model]
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


def layers_of(model: nn.Module, chosen: Optional[Sequence[nn.Module]]) -> List[Layer]:
    """The layers of `model` in the order of the forward pass: what lies in none of the `chosen` modules, or in several of
    them, is the first and belongs to the model itself. Parameters that do not require gradients are in no layer."""
    modules = default_layers(model) if chosen is None else list(chosen)
    names = {id(module): name for name, module in model.named_modules()}
    owners: Dict[int, int] = {}
    for index, module in enumerate(modules):
        if id(module) not in names:
            raise invalid("EDiT", f"layers[{index}] is no module of the model")
        if module is model:
            raise invalid("EDiT", f"layers[{index}] is the model itself; what lies in no layer belongs to the model anyway")
        for inner in module.modules():
            owners[id(inner)] = index + 1  # of nested layers the later one in the list, which is the inner one by default
    owner_of: Dict[int, int] = {}
    for module in model.modules():
        owner = owners.get(id(module), 0)
        for param in module.parameters(recurse=False):
            owner_of[id(param)] = owner if owner_of.get(id(param), owner) == owner else 0
    found = [Layer(names[id(module)] or "the model", module, []) for module in [model, *modules]]
    for name, param in model.named_parameters():
        if param.requires_grad:
            found[owner_of[id(param)]].params.append((name, param))
    found = [layer for layer in found if layer.params]
    if not found:
        raise invalid("EDiT", "the model has no parameters that require gradients")
    return found


def dtype_of(layers: Sequence[Layer]) -> torch.dtype:
    """The one type of all parameters, which must be float32 or bfloat16 in host memory."""
    dtype = layers[0].params[0][1].dtype
    for layer in layers:
        for name, param in layer.params:
            if param.device.type != "cpu":
                raise invalid("EDiT", f"the parameter {name} is on {param.device}; expected the CPU")
            if param.dtype != dtype:
                raise invalid("EDiT", f"the parameter {name} is {param.dtype}, and others are {dtype}; expected one type")
    if dtype not in (torch.float32, torch.bfloat16):
        raise invalid("EDiT", f"the parameters are {dtype}; expected torch.float32 or torch.bfloat16")
    return dtype


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How fully_shard has cut the model: over which ranks of torch.distributed, and this rank's place among them."""

    ranks: Tuple[int, ...] = ()
    slot: int = 0

    @property
    def size(self) -> int:
        """M; 1 without fully_shard."""
        return max(1, len(self.ranks))


def sharding_of(layers: Sequence[Layer]) -> Sharding:
    """The one sharding of all parameters. InvalidArgument names a parameter that is cut otherwise than the library can bind."""
    found: Optional[Sharding] = None
    for layer in layers:
        for name, param in layer.params:
            if isinstance(param, DTensor):
                mesh = param.device_mesh
                if mesh.ndim != 1:
                    raise invalid("EDiT", f"the parameter {name} is on a mesh of {mesh.ndim} dimensions; give fully_shard the one "
                                          "dimension that shards a replica: EDiT itself connects the replicas")
                if param.placements != (Shard(0),):
                    raise invalid("EDiT", f"the parameter {name} has the placements {param.placements}; expected (Shard(dim=0),)")
                here = Sharding(tuple(mesh.mesh.tolist()), mesh.get_local_rank())
                if param.shape[0] % here.size:
                    raise invalid("EDiT", f"dimension 0 of the parameter {name} is {param.shape[0]} long, which {here.size} ranks "
                                          "cannot divide evenly; fully_shard pads it, so that it cannot be bound without a copy")
            else:
                here = Sharding()
            if found is not None and here != found:
                raise invalid("EDiT", f"the parameter {name} is sharded over the ranks {list(here.ranks)}, and others over "
                                      f"{list(found.ranks)}")
            found = here
    assert found is not None
    return found
