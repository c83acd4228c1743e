"""EDiT with transformers.Trainer, and the trainers that derive from it.

    trainer = Trainer(model=model, args=args, train_dataset=texts)
    trainer.add_callback(EDiTCallback(trainer, local_sgd_sync_interval=16))
    trainer.train()"""
from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from typing import Any, Mapping, Optional

import numpy as np
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint, has_length

from ..errors import invalid
from ..torch import Checkpoints, EDiT
from ..train import EditInfo
from . import _replicas

_CALL = "EDiTCallback"
_FOLDER = "entrain"  # in a checkpoint


class EDiTCallback(TrainerCallback):
    """Makes each process of `trainer` a replica of EDiT. `options` are those of entrain.torch.EDiT. Make it before trainer.train(), on
    all ranks.

    The trainer gives each process its own part of the data, steps, clips and schedules as usual, and does not wrap the model. Then

        evaluation  sees the parameters on which the replicas have agreed
        saves       wait for the next exchange, so a checkpoint may have a later step than save_steps says. The model in it is the
                    one on which the replicas have agreed. The folder `entrain` in it has EDiT's state, and of each rank the inner
                    optimizer (entrain.torch.Checkpoints). With load_best_model_at_end, save_strategy="best" or overlap_steps,
                    evaluations wait too. With overlap_steps a wait ends the exchange at once, without overlap
        the end     the replicas exchange after the last step, and all of them have the same model
        resume      train(resume_from_checkpoint=...) continues bit for bit with the same replicas. With another number each takes the
                    inner optimizer of one that was there

    With the options of entrain.integrations.elastic each replica is a Trainer of its own, which divides no data. The lowest replica that
    lives saves the model. A replica that joins begins at the others' step, with the optimizer and the schedule of one of them from its
    first exchange on, and with its own part of the data from the beginning.

    average_tokens_across_devices of the arguments becomes False: it would make an all-reduce in every step, and scale a replica's loss
    by the tokens of the others. Thread safety: that of Trainer, one thread."""

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        if not isinstance(trainer, Trainer):
            raise invalid(_CALL, f"the first argument is {trainer!r}; expected the Trainer: "
                                 "trainer.add_callback(EDiTCallback(trainer, ...))")
        if options.get("comm") is None:
            _replicas.refuse_async(_CALL, options)
        _refuse(trainer)
        self._trainer = trainer
        self._options = options
        #: The EDiT object while train() runs.
        self.edit: Optional[EDiT] = None
        #: Its counts when the last train() ended.
        self.info: Optional[EditInfo] = None
        self._inside = contextlib.ExitStack()  # the consensus block that is open
        self._resumed: Optional[str] = None  # the checkpoint from which train() continues
        self._save = self._evaluate = False  # asked for, and to be done at the next exchange
        self._alone = False  # this replica is all that the trainer knows
        self._checkpoints: Optional[Checkpoints] = None
        self._saved = -1  # the last step at which this replica has saved
        trainer.args.average_tokens_across_devices = False
        # The public way to all of prepare_model (device, autocast, compile) but DistributedDataParallel.
        trainer.accelerator.prepare_model = functools.partial(trainer.accelerator.prepare_model, evaluation_mode=True)
        # No event tells a callback from where the run resumes.
        trainer.train = functools.partial(self._train, trainer.train)

    def _train(self, train: Any, resume_from_checkpoint: "str | bool | None" = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = _last_complete(self._trainer.args.output_dir) or True  # the trainer says that there is none
        self._resumed = None if resume_from_checkpoint is True else resume_from_checkpoint or None
        # What other callbacks ask for, at the end of a step, must be known here.
        callbacks = self._trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.append(callbacks.pop(callbacks.index(self)))
        try:
            return train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._inside.close()
            if self.edit is not None:
                self.info = self.edit.info
                self.edit.close()
                self.edit = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        options = dict(self._options)
        joins = options.get("join") is not None
        self._alone = joins or args.world_size == 1 and options.get("comm") is not None
        optimizer, scheduler = kwargs["optimizer"].optimizer, kwargs["lr_scheduler"]
        if self._alone:
            _refuse_alone(args, options)
            options.setdefault("hand_over", {"optimizer": optimizer, "scheduler": scheduler})
        self.edit = _replicas.replica(_CALL, kwargs["model"], optimizer, options)
        if not joins:
            self._check_ends(args, state, kwargs.get("train_dataloader"))
        # Each checkpoint of the trainer has a folder of its own, which a run that begins anew replaces, as the trainer does its files.
        self._checkpoints = Checkpoints(self.edit, args.output_dir, overwrite=True)
        if self._resumed is not None and not joins:
            path = os.path.join(self._resumed, _FOLDER)
            if not os.path.isdir(path):
                raise invalid(_CALL, f"{path} is missing: the checkpoint was made without EDiT, or the job ended while it saved, or this "
                                     "machine does not see the folder of the others")
            self._checkpoints.resume(path)
        if joins:
            state.global_step = self.edit.info.steps
            # The means of the losses that the trainer logs are over its own steps.
            self._trainer._globalstep_last_logged = self._trainer._initial_global_step = state.global_step
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, that the optimizer has made no step
                for _ in range(state.global_step - scheduler.last_epoch):
                    scheduler.step()

    def _check_ends(self, args: TrainingArguments, state: TrainerState, loader: Any) -> None:
        """Refuses replicas that would come to an end, or to a save or an evaluation, at different steps: the first one there would wait
        for the others, in torch.distributed up to half an hour. Collective."""
        ends = [state.max_steps, len(loader) if has_length(loader) else -1]
        found = self._edit.comm.all_gather(np.array(ends, np.int64)).reshape(-1, 2).tolist()
        if len({steps for steps, _ in found}) > 1:
            raise invalid(_CALL, f"the replicas would make {[steps for steps, _ in found]} steps, because their data are of different "
                                 "lengths; set max_steps")
        epochs = [name for name in ("save_strategy", "eval_strategy", "logging_strategy") if getattr(args, name) == "epoch"]
        # Batches that rank 0 reads and sends end on all ranks at once.
        uneven = ends[1] < 0 and self._trainer.accelerator.dispatch_batches is False
        if epochs and not self._alone and (uneven or len({length for _, length in found}) > 1):
            raise invalid(_CALL, f"{epochs[0]} is \"epoch\", and the replicas may end an epoch at different steps, since their data "
                                 "have different lengths, or none: set it to \"steps\"")

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._inside.close()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        self._save |= control.should_save
        if control.should_training_stop or state.global_step >= state.max_steps:
            self._wish()
            _replicas.finish(self._edit)
        return self._place(args, state, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        return self._place(args, state, control)

    def _place(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> TrainerControl:
        """Puts off saves to an exchange, and opens the block in which evaluation and saves see the agreed parameters."""
        self._inside.close()
        # The best model can be kept only where it is evaluated and saved at one step. With overlap_steps there are no agreed
        # parameters while an exchange runs.
        together = args.load_best_model_at_end or args.save_strategy == "best" or self._edit._overlaps
        if self._edit._async:  # which saves nothing, and waits for nobody
            if control.should_evaluate:
                self._inside.enter_context(self._edit.consensus())
            return control
        self._save |= control.should_save
        self._evaluate |= together and control.should_evaluate
        self._wish()
        if self._save or self._evaluate or control.should_evaluate or self._alone:
            here = _replicas.to_exchange(self._edit)
            saves = here and self._save
            if self._alone and not self._edit.info.in_warmup:  # all of them save, newcomers too, or none
                saves = here and self._edit.checkpoint_due and self._saved != state.global_step
            if together:
                control.should_evaluate = here and self._evaluate
            if here:
                self._evaluate = False
                self._save = self._save and not saves and self._alone
            if saves:
                self._saved = state.global_step
                # Before the trainer's part, with which the trainer removes older checkpoints.
                self._save_own(args, state)
            control.should_save = saves and (not self._alone or self._is_first())
            if control.should_save or control.should_evaluate:
                self._inside.enter_context(self._edit.consensus())
        return control

    def _wish(self) -> None:
        """A newcomer does not know what the others are to save at the next exchange, which tells it."""
        if self._save and self._alone and not self._edit.info.in_warmup:
            self._edit.wish_checkpoint()

    def _is_first(self) -> bool:
        return self._edit.comm.rank == 0 if self._edit.info.in_warmup else self._edit.engine.reduce([]).rank == 0

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._inside.close()

    def _save_own(self, args: TrainingArguments, state: TrainerState) -> None:
        """Saves what each replica has of its own. Collective."""
        if not args.save_only_model:
            self._own.save(os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", _FOLDER))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._inside.close()
        if not args.load_best_model_at_end:  # otherwise the best model is there already, and no exchange may follow
            _replicas.finish(self._edit)

    @property
    def _edit(self) -> EDiT:
        assert self.edit is not None
        return self.edit

    @property
    def _own(self) -> Checkpoints:
        assert self._checkpoints is not None
        return self._checkpoints


def _last_complete(directory: str) -> Optional[str]:
    """Returns the newest checkpoint that was written to its end. If there is none, returns what the trainer would take."""
    found = [name for name in os.listdir(directory) if re.fullmatch(PREFIX_CHECKPOINT_DIR + r"-\d+", name)] if os.path.isdir(directory) else []
    for name in sorted(found, key=lambda name: -int(name.rpartition("-")[2])):
        path = os.path.join(directory, name)
        if os.path.isdir(os.path.join(path, _FOLDER)) and os.path.isfile(os.path.join(path, TRAINER_STATE_NAME)):
            return path
        warnings.warn(f"{_CALL}: {path} is not complete: the job ended while it saved, or the checkpoint was made without EDiT", stacklevel=3)
    return get_last_checkpoint(directory) if found else None


def _refuse(trainer: Trainer) -> None:
    args = trainer.args
    if getattr(args, "enable_jit_checkpoint", False):
        raise invalid(_CALL, "enable_jit_checkpoint saves on SIGTERM, at steps at which the replicas have no agreed model; set save_steps, "
                             "and resume from the last checkpoint")
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or getattr(trainer.accelerator, "parallelism_config", None) is not None:
        raise invalid(_CALL, "the arguments have fsdp, deepspeed or a parallelism_config, which divides the model among all processes; "
                             "leave it out, so that each process has a whole replica, or make entrain.torch.EDiT around fully_shard in a "
                             "loop of your own")
    if args.n_gpu > 1:
        raise invalid(_CALL, f"one process uses {args.n_gpu} devices (nn.DataParallel); start a process for each device, with torchrun")
    if args.auto_find_batch_size:
        raise invalid(_CALL, "auto_find_batch_size: a replica that finds a smaller batch begins anew, and the others wait for it; set "
                             "per_device_train_batch_size")


def _refuse_alone(args: TrainingArguments, options: Mapping[str, Any]) -> None:
    config = options.get("config")
    if args.load_best_model_at_end or args.save_strategy == "best":
        raise invalid(_CALL, "load_best_model_at_end, or save_strategy=\"best\": a replica that joins does not know the best model so far; "
                             "load it from the checkpoints after the run")
    if options.get("overlap_steps", config is not None and config.overlap_steps):
        raise invalid(_CALL, "overlap_steps, with replicas that come back: newcomers meet the others where all wait for an exchange; leave "
                             "it out")
    if _replicas.is_async(options) and args.save_strategy != "no":
        raise invalid(_CALL, f"A-EDiT, and save_strategy is {str(args.save_strategy)!r}: replicas make different numbers of steps, after "
                             "which the trainer names its checkpoints; set save_strategy=\"no\", and save the model after train()")
