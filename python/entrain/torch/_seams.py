"""Other people's code around the model: hooks that survive copies, wrappers that do the work of an exchange."""
from __future__ import annotations

import functools
import hashlib
import sys
import warnings
import weakref
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from .._library import lib
from ..comm import Comm
from ..errors import ErrorRecord, FailedPrecondition, invalid
from ._layers import local_of


class Hook:
    """A hook in the user's module. A copy of the module (copy.deepcopy, pickle, torch.save, AveragedModel) gets a hook that does
    nothing, because only the original is exchanged. torch.compile does not look into it."""

    def __init__(self, function: Optional[Callable[..., Any]] = None) -> None:
        self._function = None if function is None else torch.compiler.disable(function)

    def __call__(self, *arguments: Any) -> Any:
        return None if self._function is None else self._function(*arguments)

    def __deepcopy__(self, memo: Any) -> "Hook":
        return Hook()

    def __reduce__(self) -> "Tuple[type, Tuple[()]]":
        return Hook, ()


def _class(module: str, name: str) -> Any:
    """Returns a class of torch if the program has imported its module. Otherwise no object has this class."""
    return getattr(sys.modules.get(module), name, ())


def refuse_sparse(call: str, model: nn.Module, trained: Iterable[Tensor], way_out: str) -> None:
    bound = {id(param) for param in trained}
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True and any(id(param) in bound for param in module.parameters(recurse=False)):
            raise invalid(call, f"the module {name!r} has sparse gradients (sparse=True), which cannot be averaged{way_out}")


def refuse_fsdp1(call: str, model: nn.Module) -> None:
    """FSDP1 keeps a parameter of its own, which is different on each rank. As a plain parameter it would be overwritten."""
    wrappers = _class("torch.distributed.fsdp", "FullyShardedDataParallel")
    wrapped = [name for name, module in model.named_modules() if wrappers and isinstance(module, wrappers)]
    flat = [name for name, param in model.named_parameters() if getattr(param, "_fsdp_flattened", False)]
    if wrapped or flat:
        where = f"the parameter {flat[0]} is of" if not wrapped else f"the module {wrapped[0]!r} is" if wrapped[0] else "the model is"
        raise invalid(call, f"{where} FullyShardedDataParallel (FSDP1); shard the model with torch.distributed.fsdp.fully_shard instead")


def ddp_around() -> Optional[nn.Module]:
    """Returns the DistributedDataParallel whose forward pass is running, or None."""
    ddp = _class("torch.nn.parallel.distributed", "DistributedDataParallel")
    return getattr(ddp, "_active_ddp_module", None) if ddp else None


def ddp_inside(model: nn.Module) -> Optional[nn.Module]:
    ddp = _class("torch.nn.parallel.distributed", "DistributedDataParallel")
    return next((module for module in model.modules() if ddp and isinstance(module, ddp)), None)


def rank_in_torch() -> int:
    """Returns this process's rank in torch.distributed; -1: it has none."""
    return torch.distributed.get_rank() if torch.distributed.is_available() and torch.distributed.is_initialized() else -1


def check_ddp(ddp: Any, replicas: Sequence[int]) -> None:
    """Refuses a DistributedDataParallel that averages the gradients of several replicas: these would never differ. `replicas`:
    the ranks in torch.distributed of this rank's counterparts in all replicas; -1: unknown."""
    group: List[int] = torch.distributed.get_process_group_ranks(ddp.process_group)
    mine = rank_in_torch()
    common = sorted(set(group) & set(replicas) - {mine})
    unknown = len(replicas) > 1 and len(group) > 1 and all(rank < 0 for rank in replicas)
    if common or unknown:
        raise invalid("EDiT", f"DistributedDataParallel averages the gradients of the ranks {group} at every step, and {common or group} "
                              "are other replicas of EDiT: the replicas would never differ, and an exchange would have no effect. Use the "
                              "model without DistributedDataParallel (docs/python.md says how in Trainer and accelerate), or wrap only "
                              "the ranks of one replica")


#: By optimizer: the EDiT objects that count its steps and are not closed.
_watched: "weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]]" = weakref.WeakKeyDictionary()


def edits_of(optimizer: Any) -> List[Any]:
    """Returns the EDiT objects that count the steps of this optimizer."""
    return list(_watched.get(optimizer, ()))


def strangers(optimizer: Any, models: Iterable[nn.Module]) -> int:
    """Returns how many parameters the optimizer steps that none of these models has."""
    known = {id(param) for model in models for param in model.parameters()}
    return sum(id(param) not in known for group in optimizer.param_groups for param in group["params"])


def watch_scalers(edit: Any) -> None:
    """Lets torch.amp.GradScaler tell `edit` of the steps that it skips: there is no public hook for them. `unscale_` calls
    before_unscale first, and `step` calls after_scaler at the end."""
    _watched.setdefault(edit.optimizer, weakref.WeakSet()).add(edit)
    scaler: Any = torch.amp.GradScaler
    if getattr(scaler.step, "_tells_entrain", False):
        return
    unscale, step = scaler.unscale_, scaler.step

    @functools.wraps(unscale)
    def unscale_and_tell(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for edit in edits_of(optimizer) if self.is_enabled() else ():
            edit.before_unscale()
        return unscale(self, optimizer, *args, **kwargs)

    @functools.wraps(step)
    def step_and_tell(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        edits = edits_of(optimizer) if self.is_enabled() else []
        for edit in edits:
            edit.before_unscale()  # for a fused optimizer, step looks for infinity without unscale_
            edit.before_scaler()
        result = step(self, optimizer, *args, **kwargs)
        for edit in edits:
            edit.after_scaler()
        return result

    step_and_tell._tells_entrain = True  # type: ignore[attr-defined]
    scaler.unscale_, scaler.step = unscale_and_tell, step_and_tell


def forget_scalers(edit: Any) -> None:
    _watched.get(edit.optimizer, weakref.WeakSet()).discard(edit)


def make_alike(call: str, comm: Comm, tensors: Iterable[Tuple[str, Tensor]]) -> None:
    """Copies the tensors of rank 0 to all ranks, whatever their types and strides. If one cannot be copied on one rank, all ranks
    raise an error. Collective."""
    errors = [error for name, tensor in tensors if (error := _copy_of_first(comm, name, tensor))]
    failed = comm.all_gather(np.array([len(errors)], np.int64)).ravel().tolist()
    if any(failed):
        first = next(rank for rank, count in enumerate(failed) if count)
        raise invalid(call, errors[0] if errors else f"rank {first} has a buffer or a frozen parameter that cannot be made equal; its own "
                                                     "error names it")


class Frozen:
    """The parameters of a model that do not train. Nobody sends or saves them, so replicas refuse a newcomer with other ones, and a run
    refuses the state of a run with other ones. `replica`: the ranks of this replica; None: this rank alone."""

    def __init__(self, model: nn.Module, replica: Optional[Comm] = None) -> None:
        self.params = [(name, param) for name, param in model.named_parameters() if not param.requires_grad]
        self._replica = replica
        self._saved = np.zeros(2, np.int64)  # in the state: the digest, and the number of ranks that share a replica

    @functools.cached_property
    def _digest(self) -> bytes:
        """Of names and values. Collective over the replica."""
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor in self.params:
            digest.update(name.encode())
            digest.update(bytes_of(local_of(tensor.detach()).cpu()).numpy().tobytes())
        if self._replica is None or self._replica.size == 1:
            return digest.digest()
        parts = self._replica.all_gather(np.frombuffer(digest.digest(), np.uint8).copy())
        return hashlib.blake2b(parts.tobytes(), digest_size=8).digest()

    def identity(self, given: Optional[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Returns the options by which replicas know their like. Collective over the replica."""
        return {**(given or {}), **({"values of the frozen parameters": self._digest.hex()} if self.params else {})}

    def join_state(self, engine: Any) -> None:
        """Must be called once. From then on the digest is a part of the state of this object."""
        if self.params:
            engine.add_state("entrain.torch/frozen", self._saved, per_rank=False)

    def before_save(self) -> None:
        if self.params:
            self._saved[:] = self._now()

    def after_load(self, call: str) -> None:
        """Raises an error if the state is that of a run with other values. The library has taken the state over by then."""
        if not self.params:
            return
        (saved, ranks), (digest, now) = self._saved.tolist(), self._now()
        if ranks != now:
            warnings.warn(f"{call}: {ranks} ranks shared a replica of the run that saved the state, {now} do now, so it is not known "
                          "whether its frozen parameters, which the state does not hold, were those of this model", stacklevel=3)
        elif saved != digest:
            names = ", ".join(name for name, _ in self.params[:3]) + (", ..." if len(self.params) > 3 else "")
            text = f"{call}: the frozen parameters of this model are not those of the run that saved the state, which does not hold them " \
                   f"({names}): make {call.partition('.')[0]} anew, of a model that has the same values"
            # Not InvalidArgument, by which `resume` would take the checkpoint for a damaged one and try an older one.
            raise FailedPrecondition(ErrorRecord(code=lib.ENTRAIN_FAILED_PRECONDITION, text=text))

    def _now(self) -> Tuple[int, int]:
        return int.from_bytes(self._digest, "little", signed=True), 1 if self._replica is None else self._replica.size


def _copy_of_first(comm: Comm, name: str, tensor: Tensor) -> str:
    """Returns why this cannot be done; empty: it is done."""
    if tensor.is_quantized or tensor.layout is not torch.strided:
        kind = "quantized" if tensor.is_quantized else tensor.layout
        return f"{name} is {kind}, which cannot be made equal on all ranks; do this yourself, and register it afterwards"
    if not tensor.numel():
        return ""
    whole = tensor.resolve_conj().resolve_neg().contiguous().clone()
    flat = whole.reshape(-1).view(torch.uint8).cpu()
    comm.broadcast(flat, root=0)
    whole = flat.to(tensor.device).view(tensor.dtype).view(tensor.shape)
    try:
        tensor.copy_(whole)
    except RuntimeError as error:  # an expanded tensor: several elements share one place
        if not bytes_of(whole).equal(bytes_of(tensor)):
            return f"{name} differs between ranks, and torch cannot write into it ({error}); register a contiguous tensor instead"
    return ""


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def sums_of(params: Sequence[Tuple[str, Tensor]]) -> Tensor:
    """Returns a number for each tensor, which differs if one bit differs."""
    return torch.tensor([sum(int(piece.sum(dtype=torch.int64)) for piece in bytes_of(tensor).view(torch.int16).split(1 << 24))
                         for _, tensor in params], dtype=torch.int64)


def first_difference(comm: Comm, params: Sequence[Tuple[str, Tensor]]) -> Optional[Tuple[str, int]]:
    """Returns the first of the tensors that is not the same on all ranks, and a rank that has another one than rank 0.
    Collective."""
    rows = comm.all_gather(sums_of(params).numpy())
    for column, (name, _) in enumerate(params):
        for rank in range(1, len(rows)):
            if rows[rank][column] != rows[0][column]:
                return name, rank
    return None
