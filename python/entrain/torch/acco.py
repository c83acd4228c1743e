"""ACCO around a PyTorch module: gradients cross the network while the next ones are computed.

    acco = entrain.torch.ACCO(model, "adamw", lr=1e-3, limit=10_000)
    for batch in data:
        loss_of(model, batch).backward()
        if acco.step(batch.tokens):
            break"""
from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..acco import ACCO as Channel
from ..acco import AccoGroup, AccoInfo, AccoKeywords
from ..checkpoints import check_keep, remove_old_checkpoints, resume_from
from ..comm import Comm
from .._library import lib
from ..errors import ErrorRecord, FailedPrecondition, invalid
from ..optim import Optim
from ..training import State, StateEntry
from ._joining import HandOver
from ._layers import check_copies, check_place, host_twin, is_dtensor, local_of, tensor_of
from ._rates import CommitRates, Scheduler
from ._reports import Reports, Sink, announce, span
from ._seams import Frozen, Hook, ddp_around, ddp_inside, make_alike, refuse_fsdp1, refuse_sparse, strangers
from ._unseen import check_unscaled, forget_gradients, watch_gradients

if TYPE_CHECKING:
    from typing_extensions import Unpack

_T = TypeVar("_T", bound="ACCO")

_HAND_OVER = 60.0  # seconds that a member spends on a newcomer's buffers. The other members wait for it in the next round


def _refuse_flags(group: Dict[str, Any], *names: str) -> None:
    for name in names:
        if group.get(name):
            raise invalid("ACCO", f"the optimizer has {name}={group[name]!r}, which the library's optimizers do not have")


def _like(optimizer: torch.optim.Optimizer, group: Dict[str, Any]) -> Optim:
    """Returns the library's optimizer with the options of a parameter group of a torch optimizer."""
    if type(optimizer) is torch.optim.AdamW:
        _refuse_flags(group, "amsgrad", "maximize")
        beta1, beta2 = group["betas"]
        return Optim.adamw(beta1=beta1, beta2=beta2, eps=group["eps"], weight_decay=group["weight_decay"])
    if type(optimizer) is torch.optim.SGD:
        _refuse_flags(group, "dampening", "maximize")
        return Optim.sgd(momentum=group["momentum"], nesterov=group["nesterov"], weight_decay=group["weight_decay"])
    raise invalid("ACCO", f"the optimizer is a {type(optimizer).__name__}; expected torch.optim.AdamW or SGD, an entrain.Optim, or "
                          "\"adamw\", \"sgd\" or \"agd\"")


def _refused(text: str) -> FailedPrecondition:
    return FailedPrecondition(ErrorRecord(code=lib.ENTRAIN_FAILED_PRECONDITION, text=text))


class ACCO:
    """ACCO (arXiv 2406.02613) around a module; `method` also takes "dpu", "wp" and "zero1". The optimizer's state and f32 masters are
    sharded over the ranks, and the library's optimizer makes the steps.

    The constructor is collective over `comm`. It moves the parameters that require gradients into one flat array for each of their
    types; the Parameter objects, their names and shapes stay. It copies the parameters and buffers of rank 0 to all ranks. From then
    on a backward pass adds gradients to the channel's accumulator and leaves `param.grad` at None.

    model      a module on one device, without DTensors among its trained parameters. If the trained parameters are all f32 or all
               bf16, the channel has their type. If they have several types, or are f16, the channel has a copy of them in f32 in host
               memory, the twin: gradients are added in f32, and an install rounds each value to its parameter's type. On an
               accelerator the exchange and the optimizer work on the host: each round costs one copy of the gradients and one of the
               parameters
    optimizer  "adamw", "sgd" or "agd", an entrain.Optim, or a torch.optim.AdamW or SGD. A torch optimizer gives its options and
               parameter groups: weight decay, betas and relative learning rates may differ by group. It is not used afterwards, and
               its own step is refused. The lr of its first group is then the default of `lr`. Gradients never lie in param.grad. So
               torch's clip_grad_norm_ and clip_grad_value_ are refused while ACCO has the parameters: set clip_norm, and read
               acco.info.grad_norm. A torch.amp.GradScaler is refused, too
    scheduler  a scheduler of torch.optim.lr_scheduler that was made on `optimizer` and has made no step, or a function that makes one
               on the optimizer that it is given. ACCO makes the scheduler's steps, one for each commit, so its own step is refused. A
               rate follows from the number of the commit. So acco.load restores the rate, and the scheduler needs no checkpoint;
               get_last_lr() and the groups' lr tell the next commit's rate. The scheduler must keep the ratios between the groups'
               rates. It replaces lr, min_lr and the schedule options
    comm       all ranks; None: Comm.from_env(), which close() then closes. With join: None, or a communicator of this
               process alone
    staging    True: makes such a copy also for parameters on the CPU; None: makes it only where it is needed
    options    those of entrain.ACCO: method, lr, min_lr, schedule_*, limit, clip_norm, warmup_rounds, ... With join the model must
               have the same frozen parameters as on the other ranks, because these do not send them. After the joining rank's first
               round, one of the other ranks sends it its buffers, for at most 60 s, and at most half of `timeout`. If that fails, both
               ranks continue, and a warning says so

    The loss of a micro-batch must be a mean over the micro-batch. A step's gradient is the mean over the micro-batches
    of all ranks. Thread safety: one thread at a time. `step` raises the failures of other ranks."""

    def __init__(self, model: nn.Module, optimizer: Union[str, Optim, torch.optim.Optimizer] = "adamw", *,
                 comm: Optional[Comm] = None, scheduler: Optional[Scheduler] = None, staging: Optional[bool] = None,
                 **options: "Unpack[AccoKeywords]") -> None:
        settings: Dict[str, Any] = dict(options)
        refuse_fsdp1("ACCO", model)
        groups = self._groups_of(model, optimizer)
        params = [param for group in groups for param in group]
        device = params[0].device
        kinds = {param.dtype for param in params}
        for name, param in model.named_parameters():
            if param.requires_grad and (is_dtensor(param) or param.device != device):
                raise invalid("ACCO", f"the parameter {name} is {'a DTensor' if is_dtensor(param) else param.dtype} on "
                                      f"{param.device}; expected plain tensors on one device")
            if param.requires_grad and param.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                raise invalid("ACCO", f"the parameter {name} is {param.dtype}; expected torch.float32, torch.bfloat16 or torch.float16")
            if param.requires_grad:
                check_place("ACCO", name, param)
        refuse_sparse("ACCO", model, params, "; set sparse=False")
        check_copies("ACCO", device)
        alike = len(kinds) == 1 and torch.float16 not in kinds
        dtype = params[0].dtype if alike else torch.float32
        copies = device.type != "cpu" if staging is None else staging
        if staging is False and (device.type != "cpu" or not alike):
            raise invalid("ACCO", "staging is False, and the parameters are " + (
                f"on {device}, which the library does not see" if device.type != "cpu" else
                "of several types, or float16, which needs a twin in float32"))
        self._staging = copies or not alike
        given = {name: tensor for name, tensor in model.named_parameters() if not tensor.requires_grad}
        given.update(model.named_buffers())
        if ddp_inside(model) is not None:
            raise invalid("ACCO", "the model is, or has inside, DistributedDataParallel: ACCO averages the gradients itself; give it the "
                                  "model without it")
        self._rates = self._rates_of(scheduler, optimizer, settings)
        if self._rates is None and isinstance(optimizer, torch.optim.Optimizer):
            self._ratios_of(optimizer)
        self.model = model
        self._own_comm = comm is None
        self._mesh: Optional[DeviceMesh] = None
        joins = settings.get("join") is not None
        self.comm = comm if comm is not None else Comm.alone(settings.get("admit_store")) if joins else Comm.from_env()
        ends = self._bind(groups, device)
        optim: Optional[Optim] = None
        if isinstance(optimizer, torch.optim.Optimizer):
            ratios = self._rates.ratios if self._rates is not None else self._ratios_of(optimizer)
            if self._rates is None:
                settings.setdefault("lr", float(optimizer.param_groups[0]["lr"]))
            settings["groups"] = [AccoGroup(first, last - first, _like(optimizer, group), ratio)
                                  for first, last, group, ratio in zip(ends, ends[1:], optimizer.param_groups, ratios)]
        else:
            optim = Optim(optimizer) if isinstance(optimizer, str) else optimizer
        with torch.no_grad():
            make_alike("ACCO", self.comm, ((name, tensor.detach()) for name, tensor in given.items()))
        buffers = sorted(name for name, buffer in model.named_buffers() if buffer.numel())
        self._frozen = Frozen(model)
        if settings.get("admit") == "exchange":
            # All ranks take part in the hand-over of buffers, or none.
            settings["identity"] = {**self._frozen.identity(settings.get("identity")), "buffers": " ".join(buffers) or "none"}
        if self._rates is not None:
            settings["identity"] = {**(settings.get("identity") or {}), **self._rates.identity}
        # What the library sees of the parameters.
        self._host = host_twin(ends[-1], dtype, device) if self._staging else self._flats[0]
        self._fetch()
        self._channel = Channel(self.comm, self._host, optim, **settings)
        self._frozen.join_state(self._channel)
        self._reports = Reports("ACCO", "rounds", "commits", self._channel.losses)
        self._reports.see(self._channel.info())
        self._store()
        self._hand_over: Optional[HandOver] = None
        if settings.get("admit") == "exchange" and buffers:
            limit = min(_HAND_OVER, (settings.get("timeout") or math.inf) / 2)
            self._hand_over = HandOver("ACCO", model, None, settings.get("admit_store"), 0, of="rank", limit=limit)
        self._joining = joins  # until it has the others' buffers
        self._joins = self._channel.info().joins
        # Gradients are in the library's memory, which lives as long as the channel, so the hooks are removed first.
        kind = settings.get("grads_dtype") or ("f32" if dtype == torch.float32 else "bf16")
        self._accumulator = _tensor(self._channel.gradients, kind)
        # Where the backward pass adds gradients. On a device it is another array, which `step` hands over.
        self._gradients = self._accumulator
        self._copies = copies
        if copies:
            self._gradients = torch.zeros(self._accumulator.shape, dtype=self._accumulator.dtype, device=device)
        self._hooks = [param.register_post_accumulate_grad_hook(self._adder(first)) for param, first, _ in self._places]
        self._hooks.append(model.register_forward_pre_hook(Hook(self._before_forward), prepend=True))
        self._optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        if self._optimizer is not None:
            self._hooks.append(self._optimizer.register_step_pre_hook(self._refuse_step))
        if self._rates is not None:
            self._rates.refuse_steps(self._refuse_scheduler)
        watch_gradients(self, params)
        self._shown: List[Tuple[float, Dict[str, Any]]] = []  # of each group of the optimizer: its lr, and its other options
        self._show_rates()
        #: Whether the run is over. The parameters are then equal on all ranks.
        self.finished = False
        announce(self)

    @staticmethod
    def _groups_of(model: nn.Module, optimizer: Any) -> List[List[nn.Parameter]]:
        own = {id(param): name for name, param in model.named_parameters() if param.requires_grad}
        if not own:
            raise invalid("ACCO", "the model has no parameters that require gradients")
        if not isinstance(optimizer, torch.optim.Optimizer):
            return [[param for param in model.parameters() if param.requires_grad]]
        groups = [[param for param in group["params"] if id(param) in own] for group in optimizer.param_groups]
        others = strangers(optimizer, [model])
        if others:
            raise invalid("ACCO", f"the optimizer has {others} parameters that the model does not have (of a criterion?), and ACCO would not "
                                  "step them; put them into the model that ACCO gets (nn.ModuleDict)")
        missing = sorted(set(own) - {id(param) for group in groups for param in group}, key=lambda key: own[key])
        if missing or not all(groups):
            raise invalid("ACCO", f"the optimizer does not step the parameter {own[missing[0]]}" if missing else
                          "the optimizer has a group without parameters of the model that require gradients")
        for group in optimizer.param_groups:
            _like(optimizer, group)
        return groups

    @staticmethod
    def _rates_of(scheduler: Optional[Scheduler], optimizer: Any, settings: Dict[str, Any]) -> Optional[CommitRates]:
        """Makes the rates of the scheduler the channel's schedule."""
        if scheduler is None:
            return None
        torchs = isinstance(optimizer, torch.optim.Optimizer)
        others = [name for name in ("lr", "min_lr", "schedule", "schedule_warmup", "schedule_total", "schedule_unit")
                  if settings.get(name) is not None and (torchs or name != "lr")]
        if others:
            raise invalid("ACCO", f"scheduler and {others[0]} both say the rates; expected one of them")
        limit = settings.get("limit", 0) if settings.get("limit_unit", "commits") == "commits" else 0
        rates = CommitRates(scheduler, optimizer if torchs else None, settings.get("lr", 1e-3), limit)
        settings["schedule"] = lambda progress: rates.of(progress + 1)
        return rates

    @staticmethod
    def _ratios_of(optimizer: torch.optim.Optimizer) -> List[float]:
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if min(rates) <= 0:
            index = next(index for index, rate in enumerate(rates) if rate <= 0)
            raise invalid("ACCO", f"group {index} of the optimizer has lr={rates[index]:g}. If a scheduler of torch has set it, give the "
                                  "scheduler, too: scheduler=...")
        return [rate / rates[0] for rate in rates]

    def _bind(self, groups: List[List[nn.Parameter]], device: torch.device) -> List[int]:
        """Moves the parameters into one flat array for each of their types. Returns where the groups end in the channel's array."""
        params = [param for group in groups for param in group]
        #: Each parameter with its first element in the channel's array and its part of its flat array.
        self._places: List[Tuple[nn.Parameter, int, Tensor]] = []
        flats = {kind: torch.empty(sum(param.numel() for param in params if param.dtype == kind), dtype=kind, device=device)
                 for kind in dict.fromkeys(param.dtype for param in params)}
        self._flats = list(flats.values())
        self._at = [flat.data_ptr() for flat in self._flats]
        filled, first, ends = {kind: 0 for kind in flats}, 0, [0]
        for group in groups:
            for param in group:
                begin = filled[param.dtype]
                part = flats[param.dtype][begin:begin + param.numel()]
                part.view(param.shape).copy_(param.detach())
                param.data = part.view(param.shape)
                self._places.append((param, first, part))
                filled[param.dtype] += param.numel()
                first += param.numel()
            ends.append(first)
        return ends

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if ddp_around() is not None:
            raise _refused("DistributedDataParallel is around the model: ACCO averages the gradients itself; use the model without it")

    def _check_model(self) -> None:
        """Refuses what would train beside the channel, or not at all."""
        bound = {id(param) for param, _, _ in self._places}
        for name, param in self.model.named_parameters():
            if param.requires_grad and param.numel() and id(param) not in bound:
                raise _refused(f"the parameter {name} requires gradients now, and did not, or was not there, when ACCO was made: nobody "
                               "would step it. Let it require gradients when ACCO is made, and let .to() come before, which may make new "
                               "parameters; or make another ACCO object")
        if [flat.data_ptr() for flat in self._flats] != self._at:
            raise _refused("the parameters were moved into shared memory after ACCO was made: share_memory(), and queues and processes of "
                           "torch.multiprocessing do this; call share_memory() before, or give away a copy")
        for param, _, part in self._places:
            if param.numel() and param.data_ptr() != part.data_ptr():
                name = next((name for name, own in self.model.named_parameters() if own is param), "of the model")
                raise _refused(f"the parameter {name} no longer lies where ACCO has bound it; load_state_dict(assign=True), .to() and "
                               "assignments to .data after the ACCO object was made do this; copy into the parameter instead")

    def _refuse_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        raise _refused("optimizer.step: ACCO makes the steps with the options of this optimizer; call acco.step(tokens) after the "
                       "backward pass instead")

    def _refuse_scheduler(self) -> None:
        raise _refused("scheduler.step: ACCO makes the steps of the scheduler that it was given, one for each commit; leave the call out "
                       "(Lightning: return the optimizer alone from configure_optimizers; accelerate: do not prepare the scheduler)")

    def _check_rates(self) -> None:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        if len(groups) != len(self._shown):
            raise _refused(f"the optimizer had {len(self._shown)} groups when ACCO took it, and has {len(groups)} now, which has no effect; "
                           "make another ACCO object")
        for group, (rate, others) in zip(groups, self._shown):
            for option, value in others.items():
                if group.get(option) != value:
                    raise _refused(f"the optimizer's {option} was {value} when ACCO took it, and is {group.get(option)} now, which has no "
                                   "effect: ACCO takes it once; make another ACCO object")
            if float(group["lr"]) != rate:
                raise _refused(f"the optimizer's lr was {rate:g} when ACCO took it, and is {float(group['lr']):g} now (a scheduler of "
                               "torch?), which has no effect; give ACCO the scheduler, of which it makes the steps: scheduler=...; or "
                               "schedule_warmup, schedule_total and min_lr, or schedule")

    def _show_rates(self) -> None:
        """Must be called when the number of commits may have changed."""
        if self._rates is not None:
            self._rates.show(self._channel.info().commits + 1)
        if self._optimizer is not None:
            self._shown = [(float(group["lr"]), {name: value for name, value in group.items() if name != "lr" and isinstance(
                value, (bool, int, float, str, tuple))}) for group in self._optimizer.param_groups]

    def _adder(self, first: int) -> Any:
        def add(param: Tensor) -> None:
            gradient = param.grad
            assert gradient is not None
            param.grad = None
            check_unscaled()
            if gradient.device != self._gradients.device:
                self._check_model()
            self._gradients[first:first + param.numel()].add_(gradient.reshape(-1))

        return add

    def step(self, tokens: int = 0, microbatches: int = 1) -> bool:
        """Must be called after the backward pass of a micro-batch. Counts the micro-batch and its tokens. If the
        current round is over, installs the parameters of the round and starts the exchange of the added gradients.
        Waits for other ranks only if the method must. Returns True if the run is over. After that the run cannot
        continue, and later backward passes have no effect."""
        self._check_rates()
        for param, _, _ in self._places:
            if param.grad is not None:  # a backward pass takes the gradient away
                raise _refused("step: a parameter has a gradient that no backward pass has made (torch.autograd.grad, or an assignment to "
                               ".grad), and ACCO adds those of backward passes alone; let a backward pass make it")
        self._channel.add(microbatches, tokens)
        if self._channel.poll():
            self._check_model()
            if self._copies:
                self._accumulator.add_(self._gradients.cpu())
                self._gradients.zero_()
            with span("install"):
                self.finished = self._channel.install()
            if self._reports.wanted:
                self._reports.see(self._channel.info())
            self._store()
            self._show_rates()
            if self._hand_over is not None:
                self._meet_newcomers(self._hand_over)
        return self.finished

    def _meet_newcomers(self, hand_over: HandOver) -> None:
        """Hands the buffers over if the round that was installed is the first one of a newcomer. All ranks, also the newcomer, install
        this round, and see the number of newcomers grow."""
        joins = self._channel.info().joins
        if joins > self._joins and not self.finished:
            here = self._channel.reduce([])
            hand_over.meet(lambda values: self._channel.reduce(values).values, here.rank, here.ranks, self._joining)
            self._joining = False
        self._joins = joins

    def _continue(self) -> None:
        """Must be called when the state was replaced."""
        self._store()
        self._show_rates()
        if self._copies:
            self._gradients.zero_()

    @torch.no_grad()
    def _fetch(self) -> None:
        """Copies the parameters to the library's twin."""
        for mine, theirs in self._pairs():
            theirs.copy_(mine)

    @torch.no_grad()
    def _store(self) -> None:
        """Copies what the library has changed to the parameters, rounded to their types."""
        for mine, theirs in self._pairs():
            mine.copy_(theirs)

    def _pairs(self) -> List[Tuple[Tensor, Tensor]]:
        if not self._staging:
            return []
        if len(self._flats) == 1:
            return [(self._flats[0], self._host)]
        return [(part, self._host[first:first + part.numel()]) for _, first, part in self._places]

    def report_to(self, sink: Sink) -> None:
        """Reports the figures of `info` (as_dict) after each round. `sink` is a SummaryWriter of torch.utils.tensorboard, a run of W&B
        (wandb.init()), or a function that gets the figures and the commit. Names begin with "entrain/". Local. Without this call, the
        logger "entrain" also has rounds and joins (INFO) and losses (WARNING), and torch.profiler shows the range entrain::install."""
        self._reports.add(sink)

    def stop(self) -> None:
        """Ends the run at the first commit that learns of this call. Local; any rank may call it."""
        self._channel.stop()

    def save(self, directory: "str | os.PathLike[str]", name: str = "local_sgd_ckpt", *, exact: bool = True,
             one_file: bool = True, keep: Optional[int] = None, overwrite: bool = False) -> None:
        """Saves `directory`/`name`.ckpt: masters, the optimizer's arrays and counts. If `exact`, the checkpoint also has the gradients
        that were added and not committed, so that the run continues bit for bit with the same ranks. Otherwise another number of ranks
        can continue from it. If `one_file`, rank 0 writes everything. Otherwise each rank writes a file of its own. `keep`: after the
        save, only this number of newest checkpoints stays in the directory (see entrain.checkpoints_in). A run that has begun anew
        never replaces a checkpoint of a later commit (FailedPrecondition), unless `overwrite` is set. Buffers, positions in the data
        and random numbers belong to the program: channel.add_state puts them into the same file. Call `save` between a `step` that
        installed and the next backward pass, on all ranks at the same commit. Collective; blocks."""
        check_keep("save", keep)
        self._frozen.before_save()
        self._channel.save(os.fspath(directory), name, kind="exact" if exact else "portable", one_file=one_file, overwrite=overwrite)
        if keep is not None and self._channel.reduce([]).rank == 0:
            remove_old_checkpoints(directory, keep, name)

    def load(self, directory: "str | os.PathLike[str]", name: str = "local_sgd_ckpt", *, exact: bool = True) -> None:
        """Continues from a checkpoint of `save`; only rank 0 reads. On an error nothing has changed, except that a model with
        other frozen parameters is noticed when the rest has been loaded. Collective; blocks."""
        self._channel.load(os.fspath(directory), name, kind="exact" if exact else "portable")
        self._frozen.after_load("ACCO.load")
        self._continue()
        self.finished = bool(self._channel.info().finished)

    def resume(self, directory: "str | os.PathLike[str]", *, exact: bool = True) -> Optional[str]:
        """Continues from the newest whole checkpoint of `save` in the directory, and returns its name. Returns None if there is none;
        the run then begins. See EDiT.resume. Collective; blocks."""
        return resume_from(self.comm, directory, lambda name: self.load(directory, name, exact=exact))

    def state_dict(self, *, exact: bool = True) -> Dict[str, Tensor]:
        """Returns copies of the state as tensors by name: the parameters' masters, the optimizer's arrays, and counts.
        Masters and arrays are flat, in the order of the optimizer's groups. If exact, the state also has the gradients
        that were added and not committed. Masters are sharded over the ranks. If torch.distributed has the same ranks,
        masters are DTensors, for torch.distributed.checkpoint, and with exact=False another number of ranks can load
        them. Otherwise their names include their position, and only a run with the same number of ranks can load them.
        Call it between a `step` that installed and the next backward pass. Local."""
        self._frozen.before_save()
        with self._channel.open_state("exact" if exact else "portable") as opened:
            return self._tensors(opened, exact, {entry.key: opened.get(entry) for entry in opened.entries})

    def empty_state_dict(self, *, exact: bool = True) -> Dict[str, Tensor]:
        """Returns tensors with the names and shapes of `state_dict`, filled with zeros.
        torch.distributed.checkpoint.load can fill them before load_state_dict. Local."""
        with self._channel.open_state("exact" if exact else "portable") as opened:
            return self._tensors(opened, exact, {entry.key: np.zeros(entry.count, entry.numpy_dtype) for entry in opened.entries})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continues from the result of `state_dict`, with equal bits if it was exact. A KeyError names a missing
        tensor. Collective; blocks. All ranks load it, or none."""
        with self._channel.open_state("exact" if bool(state["exact"]) else "portable") as opened:
            for entry in opened.entries:
                if entry.count:
                    opened.set(entry, local_of(state[self._name(entry)]).reshape(-1).cpu())
            opened.commit()
        self._frozen.after_load("ACCO.load_state_dict")
        self._continue()
        self.finished = bool(self._channel.info().finished)

    def _name(self, entry: StateEntry) -> str:
        if entry.holder != "layer":
            return f"{entry.name}/rank{entry.rank}" if entry.rank >= 0 else entry.name
        return entry.name if self._ranks_mesh() is not None or self.comm.size == 1 else entry.key

    def _tensors(self, opened: State, exact: bool, arrays: Mapping[str, Any]) -> Dict[str, Tensor]:
        state = {"exact": torch.tensor(int(exact))}
        mesh = self._ranks_mesh()
        for entry in opened.entries:
            tensor = tensor_of(arrays[entry.key], entry.dtype)
            if entry.holder == "layer" and mesh is not None:
                from torch.distributed.tensor import DTensor, Shard
                tensor = DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False, shape=torch.Size([entry.whole_count]),
                                            stride=(1,))
            state[self._name(entry)] = tensor
        return state

    def _ranks_mesh(self) -> Optional[DeviceMesh]:
        """Returns all ranks of `comm` as a mesh, if torch.distributed has the same ranks in the same order."""
        here = torch.distributed.is_available() and torch.distributed.is_initialized()
        if self._mesh is None and here and self._same_ranks():
            self._mesh = init_device_mesh("cpu", (self.comm.size,))
        return self._mesh

    def _same_ranks(self) -> bool:
        return (torch.distributed.get_world_size(), torch.distributed.get_rank()) == (self.comm.size, self.comm.rank)

    @property
    def channel(self) -> Channel:
        """The library's object: for add_state, save and load, between a `step` that installed and the next backward
        pass."""
        return self._channel

    @property
    def info(self) -> AccoInfo:
        """The state after the last installed round. Local."""
        return self._channel.info()

    def close(self) -> None:
        """Removes the hooks, waits for a round under way (at most 10 s, since the other ranks need this rank's part of it), and
        frees the memory. The model keeps its parameters. A second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        forget_gradients(self)
        if self._rates is not None:
            self._rates.close()
        self._accumulator = torch.empty(0)
        self._channel.close()
        if self._own_comm:
            self.comm.close()

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Any) -> None:
        self.close()


def _tensor(array: Any, kind: str) -> Tensor:
    """Returns the channel's accumulator as a tensor on the same memory."""
    return torch.from_numpy(array) if kind == "f32" else torch.from_numpy(array.view("int16")).view(torch.bfloat16)
