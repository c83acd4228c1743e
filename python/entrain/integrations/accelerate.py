"""EDiT with accelerate.Accelerator.

    edit, model, optimizer, loader = prepare(accelerator, model, optimizer, loader, local_sgd_sync_interval=16)

`prepare` stands in place of accelerator.prepare. The rest of the program stays: accumulate, backward, clip_grad_norm_, save_state."""
from __future__ import annotations

import os
from typing import Any, Dict, Optional, Tuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn

from ..errors import invalid
from ..torch import EDiT
from . import _replicas

_CALL = "entrain.integrations.accelerate.prepare"


def prepare(accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer, *others: Any,
            **options: Any) -> Tuple[Any, ...]:
    """Makes each process a replica. Returns the EDiT object, then what accelerator.prepare returns for model, optimizer and `others`
    (loaders, schedulers). The loaders give each process its own part of the data. `options` are those of entrain.torch.EDiT.

    accelerator.save_state also saves each replica's EDiT and inner optimizer, in a file `entrain-RANK.pt`, and load_state loads them.
    Call save_state on all ranks, where edit.begin_step() returns True (FailedPrecondition otherwise). Evaluate within
    edit.consensus(), and call edit.synchronize() after the last step (with A-EDiT edit.leave()). A scheduler among `others` steps once for
    each process, unless the accelerator has step_scheduler_with_optimizer=False. Collective."""
    kinds = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)
    if accelerator.distributed_type in kinds or getattr(accelerator, "parallelism_config", None) is not None:
        raise invalid(_CALL, f"the accelerator has {accelerator.distributed_type} or a parallelism_config, which divides the model among "
                             "all processes; give each process a whole replica, or make entrain.torch.EDiT around fully_shard yourself")
    # The public way to all of prepare_model (device, autocast, compile) but DistributedDataParallel.
    model = accelerator.prepare_model(model, evaluation_mode=True)
    prepared = accelerator.prepare(optimizer, *others)
    wrapped, *rest = prepared if others else [prepared]
    edit = _replicas.replica(_CALL, model, wrapped.optimizer, options)
    _State(accelerator, edit)
    return (edit, model, wrapped, *rest)


class _State:
    """accelerate saves registered objects on rank 0 alone, and calls hooks on all ranks before it saves or loads. It loads registered
    objects last, behind rank 0's optimizer."""

    def __init__(self, accelerator: Accelerator, edit: EDiT) -> None:
        self._edit, self._rank, self._processes, self._directory = edit, accelerator.process_index, accelerator.num_processes, ""
        self._token: Optional[int] = None  # of the last save
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._note)
        accelerator.register_for_checkpointing(self)

    def _path(self, directory: "str | os.PathLike[str]") -> str:
        return os.path.join(directory, f"entrain-{self._rank}.pt")

    def _save(self, models: Any, weights: Any, directory: str) -> None:
        self._check("save_state")
        state = _replicas.state_of(self._edit)
        self._token = state["token"]
        _replicas.write(self._path(directory), state)

    def _check(self, call: str) -> None:
        """With replicas that come back, each accelerator is rank 0, and all would write the same files."""
        if self._processes != self._edit.comm.size:
            raise invalid(call, f"the accelerator knows {self._processes} of {self._edit.comm.size} processes (entrain.integrations."
                                "elastic), so all replicas would use the same files; use entrain.torch.Checkpoints(edit, directory)")

    def _note(self, models: Any, directory: str) -> None:
        self._check("load_state")
        self._directory = directory

    def state_dict(self) -> Dict[str, Any]:
        return {"replicas": self._edit.comm.size, "token": self._token}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if state["replicas"] != self._edit.comm.size:
            raise invalid("load_state", f"the checkpoint is of {state['replicas']} replicas, and this run has {self._edit.comm.size}")
        found = _replicas.read("load_state", self._path(self._directory), state.get("token"))
        if found["warmup"]:
            raise invalid("load_state", f"the checkpoint was made in warm-up, {found['warmup']} steps before its end; make EDiT anew with "
                                        f"local_sgd_warmup_steps={found['warmup']}, or save after warm-up")
        _replicas.restore(self._edit, found)
