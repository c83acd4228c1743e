"""EDiT with lightning.Trainer.

    trainer = Trainer(strategy=EDiTStrategy(local_sgd_sync_interval=16), accelerator="cpu", devices=2)
    trainer.fit(module, loader)"""
from __future__ import annotations

import contextlib
import math
import os
import warnings
from typing import Any, Dict, Optional

import numpy as np
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ..errors import invalid
from ..torch import EDiT
from ..train import EditInfo
from . import _replicas

_CALL = "EDiTStrategy"


class EDiTStrategy(DDPStrategy):
    """Makes each process a replica of EDiT. Processes, devices, samplers and reductions of metrics are those of DDPStrategy, and the
    module is not wrapped. `options` are those of entrain.torch.EDiT, `strategy` those of DDPStrategy (process_group_backend, ...).

        optimizers   configure_optimizers returns one
        validation   while fitting sees the parameters on which the replicas have agreed. With a ModelCheckpoint that has a monitor it
                     makes an exchange, so that the model that is saved is the one that was judged
        saves        a save between two exchanges makes an exchange, as edit.synchronize does; to have none, save at the steps where
                     one is due. The model in the checkpoint is the one on which the replicas have agreed. Each rank adds a file
                     PATH.entrain-RANK: its inner optimizer, and EDiT's state
        the end      the replicas exchange after the last step, and all of them have the same model
        ckpt_path    fit(ckpt_path=...) continues bit for bit with the same number of replicas, if Lightning gives it the same data: at
                     the end of an epoch, or with a loader that has a state

    With the options of entrain.integrations.elastic each replica is a Trainer of its own (devices=1), without torch.distributed. Give
    all of them max_steps, and each its own part of the data. The lowest replica that lives is rank zero: it saves, the model as of the
    last exchange, without making one, and no file of its own; ckpt_path is refused. Give ModelCheckpoint a dirpath, because loggers give
    each replica a folder of its own. A replica that joins begins at the others' step,
    with the optimizer and the schedules of one of them from its first exchange on, and with its own data and epoch 0 from the
    beginning.

    A SIGTERM ends the rank that gets it: Lightning's message about it to all ranks, before each batch, is left out, because with it
    every replica would wait for rank 0 in every step.

    Thread safety: that of Lightning, one thread."""

    strategy_name = "entrain"

    def __init__(self, *, strategy: Optional[Dict[str, Any]] = None, **options: Any) -> None:
        super().__init__(**(strategy or {}))
        if options.get("comm") is None:
            _replicas.refuse_async(_CALL, options)
        self._options = options
        #: The EDiT object while fit runs.
        self.edit: Optional[EDiT] = None
        #: Its counts when the last fit ended.
        self.info: Optional[EditInfo] = None
        self._resumed: Optional[_replicas.State] = None  # what load_checkpoint has read
        self._inside = contextlib.ExitStack()  # the consensus block that is open
        self._first = options.get("join") is None and (options.get("comm") is None or options["comm"].rank == 0)

    # ---- replicas that come back: each is all that its Trainer knows ----------------------------------------------------------

    @property
    def _alone(self) -> bool:
        return self._options.get("comm") is not None and self.num_nodes * self.num_processes == 1

    def setup_distributed(self) -> None:
        if not self._alone:
            if self._options.get("join") is not None:
                raise invalid(_CALL, f"join, and {self.num_nodes * self.num_processes} processes; a replica that comes back is one: "
                                     "Trainer(devices=1, num_nodes=1)")
            super().setup_distributed()
            return
        # The launcher's MASTER_PORT is that of all replicas, so a torch.distributed of each would not begin.
        reset_seed()
        self.set_world_ranks()

    @property
    def is_global_zero(self) -> bool:
        if not self._alone:
            return bool(super().is_global_zero)
        if self.edit is not None:
            self._first = self.edit._is_lowest()
        return self._first

    def _take_place(self, trainer: Trainer, edit: EDiT) -> None:
        """Lets a newcomer begin at the step of the others."""
        steps = edit.info.steps
        loop = trainer.fit_loop.epoch_loop
        loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps
        loop.manual_optimization.optim_step_progress.total.completed = steps
        loop._batches_that_stepped = steps  # the step of what is logged
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, that the optimizer has made no step
            for config in self.lr_scheduler_configs:
                if config.interval == "step" and isinstance(config.scheduler, LRScheduler):
                    for _ in range(steps // config.frequency):
                        config.scheduler.step()

    # ---- the model -----------------------------------------------------------------------------------------------------------

    def _setup_model(self, model: nn.Module) -> nn.Module:
        return model  # DDPStrategy would wrap it

    def _register_ddp_hooks(self) -> None:
        """There is no wrapper to have hooks."""

    def setup(self, trainer: Trainer) -> None:
        if self._alone and trainer.state.fn != TrainerFn.FITTING:
            super(DDPStrategy, self).setup(trainer)  # DDPStrategy would compare the model with that of other processes
            return
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            if len(self.optimizers) != 1:
                raise invalid(_CALL, f"configure_optimizers returned {len(self.optimizers)} optimizers; expected one, whose steps "
                                     "are counted")
            assert self.lightning_module is not None
            options = dict(self._options)
            if self._alone:
                if trainer.max_steps < 0:
                    raise invalid(_CALL, "max_steps is missing: a replica that comes back begins with epoch 0, so only a number of steps "
                                         "says where all of them end")
                schedules = {f"scheduler {index}": config.scheduler for index, config in enumerate(self.lr_scheduler_configs)}
                options.setdefault("hand_over", {"optimizer": self.optimizers[0], **schedules})
            self.edit = _replicas.replica(_CALL, self.lightning_module, self.optimizers[0], options, self._resumed)
            self._resumed = None
            if options.get("join") is not None:
                self._take_place(trainer, self.edit)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Runs training_step inside the module's own forward pass, as for wrapped modules, so that EDiT sees its beginning."""
        assert self.lightning_module is not None
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(self.lightning_module, self.lightning_module, "training_step", *args, **kwargs)

    # ---- validation ------------------------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Refuses replicas that would end at different steps: torch.distributed would wait for the last one up to half an hour."""
        super().on_train_start()
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        # Lightning tells all ranks before each batch whether rank 0 has got a SIGTERM, so every replica would wait for rank 0 in
        # every step. Without this each rank ends for its own SIGTERM, at the end of the batch.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
        if self.edit is None or self._alone or trainer.max_steps >= 0:
            return
        batches = trainer.num_training_batches
        mine = np.array([batches if math.isfinite(batches) else -1], np.int64)
        found = self.edit.comm.all_gather(mine).ravel().tolist()
        if min(found) < 0 or len(set(found)) > 1:
            raise invalid(_CALL, f"the replicas have {found} batches in an epoch (-1: a loader without a length), so they may end at "
                                 "different steps; set max_steps")

    def on_validation_start(self) -> None:
        if self.edit is not None:
            assert self.lightning_module is not None
            trainer = self.lightning_module.trainer
            watched = any(isinstance(one, ModelCheckpoint) and one.monitor is not None for one in trainer.callbacks)
            # Otherwise the save that follows would be of another model than the one that is judged. And with overlap_steps there are no
            # agreed parameters while an exchange runs.
            if not self.edit.info.in_warmup and (self._is_over() if self._alone else watched or self.edit._overlaps):
                _replicas.finish(self.edit)
            self._inside.enter_context(self.edit.consensus())
        super().on_validation_start()

    def on_validation_end(self) -> None:
        super().on_validation_end()
        self._inside.close()

    # ---- checkpoints -----------------------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> Dict[str, Any]:
        """Called on all ranks at the beginning of a save."""
        self._inside.close()  # a callback saves at the end of validation
        with contextlib.ExitStack() as stack:
            if self.edit is not None and not self.edit.info.in_warmup:
                if not self._alone or self._is_over():
                    _replicas.finish(self.edit)
                else:
                    # A newcomer does not know at which steps the others have saved, so a save makes no exchange.
                    stack.enter_context(self.edit.consensus())
            state: Dict[str, Any] = super().lightning_module_state_dict()
        return state

    def _is_over(self) -> bool:
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        return bool(0 <= trainer.max_steps <= trainer.global_step)

    def save_checkpoint(self, checkpoint: Dict[str, Any], filepath: Any, storage_options: Optional[Any] = None) -> None:
        own = None
        if self.edit is not None and "optimizer_states" in checkpoint and not self._alone:
            if "://" in os.fspath(filepath):
                raise invalid("save_checkpoint", f"{filepath}: EDiT's part of a checkpoint needs a folder; save into one, and copy it from "
                                                 "there")
            own = _replicas.state_of(self.edit)
            checkpoint["entrain"] = own["token"]
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if own is not None:
            _replicas.write(self._own(filepath), own)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Optional[bool] = None) -> Dict[str, Any]:
        """Called before `setup`, which continues from what it reads."""
        if self._alone and self.lightning_module is not None and self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            raise invalid(_CALL, "ckpt_path, with replicas that come back: the checkpoint has the model alone; load it into the module "
                                 "before fit, and all replicas begin anew from it")
        checkpoint: Dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        module: Optional[LightningModule] = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING and "optimizer_states" in checkpoint:
            own = self._own(checkpoint_path)
            if not os.path.exists(own):  # with save_last="link"
                own = self._own(os.path.realpath(checkpoint_path))
            self._resumed = _replicas.read(_CALL, own, checkpoint.get("entrain"))
            checkpoint["optimizer_states"] = [self._resumed["optimizer"]]  # Lightning loads it after `setup`
        return checkpoint

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._own(filepath))

    def _own(self, filepath: Any) -> str:
        return f"{os.fspath(filepath)}.entrain-{self.global_rank}"

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def on_train_end(self) -> None:
        if self.edit is not None:
            _replicas.finish(self.edit)
        super().on_train_end()

    def teardown(self) -> None:
        self._inside.close()
        if self.edit is not None:
            self.info = self.edit.info
            self._first = self.is_global_zero
            self.edit.close()
            self.edit = None
        super().teardown()
