"""What the integrations share: the communicator, and one file of state for each replica."""
from __future__ import annotations

import os
import secrets
from typing import Any, Dict, Mapping, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ..errors import invalid
from ..torch import EDiT

State = Dict[str, Any]


def is_async(options: Mapping[str, Any]) -> bool:
    config = options.get("config")
    return bool(options.get("use_async", config is not None and config.use_async) or options.get("preset") == "a-edit")


def refuse_async(call: str, options: Mapping[str, Any]) -> None:
    """Frameworks gather losses and metrics of all ranks at equal steps, which A-EDiT's replicas do not make."""
    if is_async(options):
        raise invalid(call, "use_async: the framework gathers losses and metrics at equal steps of all replicas, and with A-EDiT they make "
                            "different numbers of steps; start each replica as a job of its own (entrain.integrations.elastic.alone; not "
                            "in torchtitan), or use entrain.torch.AEDiT in a loop of your own")


def finish(edit: EDiT) -> None:
    """Must be called behind the last step. All replicas then have the same model. A second call does nothing. Collective."""
    if edit._async:
        if not edit._left:
            edit.leave()
    else:
        edit.synchronize()


def replica(call: str, model: nn.Module, optimizer: torch.optim.Optimizer, options: Mapping[str, Any],
            state: Optional[State] = None) -> EDiT:
    """Makes EDiT among the processes of torch.distributed, and continues from the result of `state_of`. The processes meet through
    c10d, so that every launcher that the framework knows will do, and no port but its own is needed. Collective."""
    if options.get("comm") is None or dist.is_initialized():  # otherwise each replica is all that the framework knows
        refuse_async(call, options)
    options = dict(options)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not dist.is_initialized():
        raise _unseen(call, started)
    given = options.get("comm") is not None
    if not given and dist.is_initialized():
        options["comm"] = dist.new_group(backend="entrain").comm
    if state is not None and state["replicas"] != dist.get_world_size():
        raise invalid(call, f"the checkpoint is of {state['replicas']} replicas, and this run has {dist.get_world_size()}; each replica "
                            "has an inner optimizer, so start as many")
    if state is not None and state["warmup"]:
        options["local_sgd_warmup_steps"] = state["warmup"]
    edit = EDiT(model, optimizer, **options)
    if not given and not dist.is_initialized() and edit.comm.size > 1:  # the library knows variables of srun and mpirun, too
        started = edit.comm.size
        edit.close()
        raise _unseen(call, started)
    edit._hooks.append(model.register_state_dict_post_hook(_part))
    if state is not None:
        restore(edit, state)
    return edit


def _unseen(call: str, started: int) -> Exception:
    return invalid(call, f"the launcher has started {started} processes, and the framework knows this one alone, so each would train "
                         "on all of the data. On the CPU: TrainingArguments(use_cpu=True), Accelerator(cpu=True). Under srun or mpirun: "
                         "let it start one torchrun on each node, or set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for "
                         "each process")


def _part(module: nn.Module, state: Dict[str, Any], prefix: str, metadata: Any) -> None:
    """Gives the tensors of a state dictionary memory of their own. EDiT's parameters are parts of one array for each layer, and code
    that writes safetensors takes tensors of one array for tied weights: it leaves them out, or refuses them."""
    copies: Dict[Any, torch.Tensor] = {}
    for name, tensor in list(state.items()):
        if name.startswith(prefix) and isinstance(tensor, torch.Tensor):
            same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)  # really tied weights stay so
            state[name] = copies.setdefault(same, tensor.clone())


def to_exchange(edit: EDiT) -> bool:
    """Begins the step, and waits for the exchange if one is due, also with overlap_steps. Returns whether all replicas are at an
    exchange, or in warm-up: their parameters are then equal, and their states can be saved. Collective."""
    info = edit.info
    if info.in_warmup or info.steps == info.last_sync_step:
        return True
    here = edit.begin_step()
    if here and edit._overlaps:
        edit.synchronize()  # ends the exchange here: while it runs behind the next steps, there are no agreed parameters
    edit._wait_all()
    return here


def state_of(edit: EDiT) -> State:
    """Returns this replica's state: EDiT's and the inner optimizer's. In warm-up EDiT has none but the number of steps. The
    framework's own file must keep `token`, too, which is another one in each save. Allowed where to_exchange returns True;
    collective."""
    warmup = edit._anchors_at - edit.info.steps if edit.info.in_warmup else 0
    token = np.array([secrets.randbits(62)], np.int64)
    edit.comm.broadcast(token, 0)
    return {"token": int(token[0]), "replicas": edit.comm.size, "warmup": warmup, "optimizer": edit.optimizer.state_dict(),
            "edit": {} if warmup else edit.state_dict()}


def restore(edit: EDiT, state: State) -> None:
    """Continues from the result of state_of, on all replicas. Collective."""
    if state["edit"]:
        edit.load_state_dict(state["edit"])
    edit.optimizer.load_state_dict(state["optimizer"])


def read(call: str, path: str, token: Optional[int]) -> State:
    """Reads the file of `write`. token: that of the framework's own file. A job that ends while it replaces a checkpoint leaves files of
    two saves."""
    if not os.path.exists(path):
        raise invalid(call, f"{path} is missing: the checkpoint was made without EDiT, or by fewer replicas, or this machine does not see "
                            "the folder of the others")
    found: State = torch.load(path, map_location="cpu", weights_only=True)
    if found.get("token") != token:
        raise invalid(call, f"{path} is of another save than the files beside it: the job ended while it replaced the checkpoint; take "
                            "another checkpoint")
    return found


def write(path: str, state: State) -> None:
    """Writes the file in one move, so that a killed process leaves no half of it."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)
