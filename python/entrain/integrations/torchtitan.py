"""EDiT with torchtitan. A replica is one torchrun, sharded inside by data_parallel_shard_degree:

    def my_config():
        return with_edit(llama3_8b(), local_sgd_sync_interval=100, local_sgd_warmup_steps=1000)

    ENTRAIN_STORE=tcp://HOST:PORT EDIT_REPLICA=0 EDIT_REPLICAS=2 torchrun ... -m torchtitan.train --module my --config my_config

The function stands in a module of your own, here my, which --module and --config name."""
from __future__ import annotations

import dataclasses
import functools
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List

import numpy as np
import torch.distributed as dist
from torchtitan.trainer import Trainer

from ..comm import Comm
from ..errors import invalid
from ..store import Store
from ..torch import EDiT
from . import _replicas, elastic

_CALL = "entrain.integrations.torchtitan"
_NEWEST = 64  # checkpoints of a replica that a resumed run considers


def with_edit(config: Any, **options: Any) -> "EDiTTrainer.Config":
    """Returns the configuration of a torchtitan trainer as one of EDiTTrainer. `options` are those of entrain.torch.EDiT. join, in
    seconds: replicas may be lost and come back within this time."""
    return EDiTTrainer.Config(**{entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}, edit=options)


class EDiTTrainer(Trainer):
    """torchtitan's trainer, whose processes are one replica of EDiT. The environment variables EDIT_REPLICA and EDIT_REPLICAS say
    which of how many, and all replicas meet in the store at ENTRAIN_STORE, a URL of Store.open whose server must run already. All
    replicas have the same number of processes. Each reads its own part of the data, logs its own loss, and has the folder
    `dump_folder`/replica-K, with checkpoints of its own.

    Checkpoints also hold EDiT's state. They are made at exchanges, so checkpoint.interval and the warm-up's steps are multiples of
    local_sgd_sync_interval. After the last step the replicas exchange, and the last checkpoint is the same in all of them. A run that
    resumes does so from the newest checkpoint that all replicas have.

    With join=SECONDS the replicas that are left go on after a loss (entrain.integrations.elastic.torchrun). One that torchrun, or
    a supervisor with ENTRAIN_RESTARTS, starts again loads no checkpoint: it begins at the step of the others, gets the optimizer of one of
    them at its first exchange, and reads its own data from the beginning. EDiT's state in the checkpoints is then the one
    that all replicas have in common, so that another number of replicas could have saved it.

    Refused: data_parallel_replicate_degree and tensor, pipeline, context or expert parallelism, because EDiT knows fully_shard alone."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        edit: Dict[str, Any] = field(default_factory=dict)
        """Options of entrain.torch.EDiT."""

    def __init__(self, config: "EDiTTrainer.Config") -> None:
        self.replica, self.replicas = _number("EDIT_REPLICA"), _number("EDIT_REPLICAS")
        self._check(config)
        options = dict(config.edit)
        join = options.pop("join", None)
        config.dump_folder = os.path.join(config.dump_folder, f"replica-{self.replica}")
        config.dataloader = _Part(config.dataloader, self.replica, self.replicas)
        super().__init__(config)
        if len(self.optimizers.optimizers) != 1:
            raise invalid(_CALL, f"the model has {len(self.optimizers.optimizers)} optimizers; expected one, whose steps are counted")
        optimizer = self.optimizers.optimizers[0]
        if join is None:
            ranks = dist.get_world_size()
            with Store.open(os.environ.get("ENTRAIN_STORE", "env:")) as store:
                options["comm"] = Comm.create(store, self.replica * ranks + dist.get_rank(), self.replicas * ranks, name="torchtitan")
        else:
            options = {"hand_over": {"optimizer": optimizer}, **elastic.torchrun(join=join).options, **options}
        self.comm = options["comm"]
        self.edit = EDiT(self.model_parts[0], optimizer, **options)
        self._joins = options.get("join") is not None
        if self._joins:
            self.step = self.edit.info.steps
            for _ in range(self.step):
                self.lr_schedulers.step()
        if config.checkpoint.enable:
            self.checkpointer.states["entrain"] = self._state = _State(self.edit, exact=join is None)
            self.checkpointer.load = functools.partial(self._load, self.checkpointer.load)

    @staticmethod
    def _check(config: "EDiTTrainer.Config") -> None:
        _replicas.refuse_async(_CALL, config.edit)
        for name in ("data_parallel_replicate_degree", "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree",
                     "expert_parallel_degree"):
            if getattr(config.parallelism, name, 1) != 1:
                raise invalid(_CALL, f"parallelism.{name} is {getattr(config.parallelism, name)}; expected 1: start a torchrun for each "
                                     "replica, and divide it with data_parallel_shard_degree")
        every, warmup = config.edit.get("local_sgd_sync_interval"), config.edit.get("local_sgd_warmup_steps", 0)
        if not every:
            raise invalid(_CALL, "local_sgd_sync_interval is missing")
        if config.checkpoint.enable and (config.checkpoint.interval % every or warmup % every or config.checkpoint.interval < warmup):
            raise invalid(_CALL, f"checkpoint.interval is {config.checkpoint.interval}, the warm-up has {warmup} steps, and an exchange "
                                 f"comes every {every} steps; state can be saved at exchanges only, so both must be multiples of {every}, "
                                 "and the interval no shorter than the warm-up")

    def train(self) -> None:
        super().train()
        made, wanted = self.edit.info.steps, self.config.training.steps
        if made < wanted:  # torchtitan logs a warning, and has no last exchange and no last checkpoint
            raise invalid(_CALL, f"the data ended behind step {made}, and training.steps is {wanted}: the replicas have not exchanged at "
                                 f"the end. Set training.steps to {made} at most, or let the data set begin again (infinite)")

    def train_step(self, data_iterator: Any) -> None:
        super().train_step(data_iterator)
        if self.step == self.config.training.steps:
            self.edit.synchronize()
        elif self.config.checkpoint.enable and self.step % self.config.checkpoint.interval == 0:
            _replicas.to_exchange(self.edit)  # the checkpoint is of the parameters after it

    def _load(self, load: Any, step: int = -1) -> bool:
        if self._joins:
            return False
        if step == -1:
            step = self._newest()
        self._state.loading = True
        try:
            return bool(load(step))
        finally:
            self._state.loading = False

    def _newest(self) -> int:
        """Returns the step of the newest checkpoint that all replicas have; -1: none has one. Collective."""
        folder, mine = self.checkpointer.folder, np.full(_NEWEST, -1, np.int64)
        steps: List[int] = []
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if (match := re.fullmatch(r"step-(\d+)", name)) and os.path.exists(os.path.join(folder, name, ".metadata")):
                steps.append(int(match[1]))
        steps = sorted(steps)[-_NEWEST:]
        mine[:len(steps)] = steps
        found = [{int(step) for step in row if step >= 0} for row in self.comm.all_gather(mine).reshape(-1, _NEWEST)]
        common = set.intersection(*found)
        if not common and any(found):
            newest = [max(row, default=-1) for row in found]
            raise invalid(_CALL, f"no checkpoint is there for all replicas: the newest of each rank are {newest} (-1: none). "
                                 f"Give {folder} of a replica that has one to the others, or remove them all to begin anew")
        return max(common, default=-1)

    def close(self) -> None:
        if getattr(self, "edit", None) is not None:
            self.edit.close()
            self.comm.close()
        super().close()


def _number(name: str) -> int:
    if name not in os.environ:
        raise invalid(_CALL, f"{name} is not set; a replica is one torchrun, which needs EDIT_REPLICA (its number), EDIT_REPLICAS and "
                             "ENTRAIN_STORE")
    return int(os.environ[name])


class _Part:
    """Stands for the configuration of a data loader. Divides the data among the ranks of all replicas, of which torchtitan knows one."""

    def __init__(self, config: Any, replica: int, replicas: int) -> None:
        self._config, self._replica, self._replicas = config, replica, replicas

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def build(self, *, dp_world_size: int, dp_rank: int, **others: Any) -> Any:
        return self._config.build(dp_world_size=dp_world_size * self._replicas, dp_rank=dp_rank + dp_world_size * self._replica, **others)


class _State:
    """EDiT's state for torchtitan's checkpoints, which hold the inner optimizer themselves."""

    def __init__(self, edit: EDiT, exact: bool) -> None:
        self._edit, self._exact, self.loading = edit, exact, False

    def state_dict(self) -> Dict[str, Any]:
        if self.loading:
            return self._edit.empty_state_dict(exact=self._exact)
        return self._edit._state_dict(self._exact, whole=True)  # each replica has a checkpoint of its own

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        state = dict(state)
        for name in sorted(state) if not self._exact else ():
            # Of what replicas have of their own, such as detectors, all take over the first one's.
            if name != "exact" and not name.startswith(("anchor/", "outer/")):
                state[name] = state[name].clone()
                self._edit._sync.broadcast(state[name], root=0)
        self._edit.load_state_dict(state)
