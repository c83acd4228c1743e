"""EDiT with transformers.Trainer, and the trainers that derive from it.

    trainer = Trainer(model=model, args=args, train_dataset=texts)
    trainer.add_callback(EDiTCallback(trainer, local_sgd_sync_interval=16))
    trainer.train()"""
from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Optional

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ..errors import invalid
from ..torch import EDiT
from ..train import EditInfo
from . import _replicas

_CALL = "EDiTCallback"


class EDiTCallback(TrainerCallback):
    """Makes each process of `trainer` a replica of EDiT. `options` are those of entrain.torch.EDiT. Make it before trainer.train(), on
    all ranks.

    The trainer gives each process its own part of the data, steps, clips and schedules as usual, and does not wrap the model. Then

        evaluation  sees the parameters on which the replicas have agreed
        saves       wait for the next exchange, so a checkpoint may have a later step than save_steps says. The model in it is the
                    one on which the replicas have agreed. Each rank adds `entrain-RANK.pt`: its inner optimizer, and EDiT's state.
                    With load_best_model_at_end, save_strategy="best" or overlap_steps, evaluations wait too. With
                    overlap_steps a wait ends the exchange at once, without overlap
        the end     the replicas exchange after the last step, and all of them have the same model
        resume      train(resume_from_checkpoint=...) continues bit for bit with the same number of replicas

    average_tokens_across_devices of the arguments becomes False: it would make an all-reduce in every step, and scale a replica's loss
    by the tokens of the others. Thread safety: that of Trainer, one thread."""

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        if not isinstance(trainer, Trainer):
            raise invalid(_CALL, f"the first argument is {trainer!r}; expected the Trainer: "
                                 "trainer.add_callback(EDiTCallback(trainer, ...))")
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
        trainer.args.average_tokens_across_devices = False
        # The public way to all of prepare_model (device, autocast, compile) but DistributedDataParallel.
        trainer.accelerator.prepare_model = functools.partial(trainer.accelerator.prepare_model, evaluation_mode=True)
        # No event tells a callback from where the run resumes.
        trainer.train = functools.partial(self._train, trainer.train)

    def _train(self, train: Any, resume_from_checkpoint: "str | bool | None" = None, *args: Any, **kwargs: Any) -> Any:
        path = resume_from_checkpoint
        self._resumed = get_last_checkpoint(self._trainer.args.output_dir) if path is True else path or None
        try:
            return train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._inside.close()
            if self.edit is not None:
                self.info = self.edit.info
                self.edit.close()
                self.edit = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        path = None if self._resumed is None else os.path.join(self._resumed, f"entrain-{args.process_index}.pt")
        found = None if path is None else _replicas.read(_CALL, path)
        self.edit = _replicas.replica(_CALL, kwargs["model"], kwargs["optimizer"].optimizer, self._options, found)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._inside.close()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if control.should_training_stop or state.global_step >= state.max_steps:
            self._edit.synchronize()
        return self._place(args, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        return self._place(args, control)

    def _place(self, args: TrainingArguments, control: TrainerControl) -> TrainerControl:
        """Puts off saves to an exchange, and opens the block in which evaluation and saves see the agreed parameters."""
        self._inside.close()
        # The best model can be kept only where it is evaluated and saved at one step. With overlap_steps there are no agreed
        # parameters while an exchange runs.
        together = args.load_best_model_at_end or args.save_strategy == "best" or self._edit._overlaps
        self._save |= control.should_save
        self._evaluate |= together and control.should_evaluate
        if self._save or self._evaluate or control.should_evaluate:
            here = _replicas.to_exchange(self._edit)
            control.should_save = here and self._save
            if together:
                control.should_evaluate = here and self._evaluate
            if here:
                self._save = self._evaluate = False
            if control.should_save or control.should_evaluate:
                self._inside.enter_context(self._edit.consensus())
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._inside.close()
        if not args.save_only_model:
            directory = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            _replicas.write(os.path.join(directory, f"entrain-{args.process_index}.pt"), _replicas.state_of(self._edit))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._inside.close()
        if not args.load_best_model_at_end:  # otherwise the best model is there already, and no exchange may follow
            self._edit.synchronize()

    @property
    def _edit(self) -> EDiT:
        assert self.edit is not None
        return self.edit


def _refuse(trainer: Trainer) -> None:
    args = trainer.args
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or getattr(trainer.accelerator, "parallelism_config", None) is not None:
        raise invalid(_CALL, "the arguments have fsdp, deepspeed or a parallelism_config, which divides the model among all processes; "
                             "leave it out, so that each process has a whole replica, or make entrain.torch.EDiT around fully_shard in a "
                             "loop of your own")
    if args.n_gpu > 1:
        raise invalid(_CALL, f"one process uses {args.n_gpu} devices (nn.DataParallel); start a process for each device, with torchrun")
    if args.auto_find_batch_size:
        raise invalid(_CALL, "auto_find_batch_size: a replica that finds a smaller batch begins anew, and the others wait for it; set "
                             "per_device_train_batch_size")
