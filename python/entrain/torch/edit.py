"""EDiT and A-EDiT around a PyTorch module: replicas train alone and exchange their progress.

    edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=16, local_sgd_warmup_steps=100)
    diloco = entrain.torch.DiLoCo(model, optimizer, local_sgd_sync_interval=16)

After that, write an ordinary loop: forward, backward, optimizer.step(). See entrain/train.h for the method and its
options."""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import time
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoints import check_keep, remove_old_checkpoints, resume_from
from ..comm import Comm
from .._library import lib
from ..errors import Error, ErrorRecord, FailedPrecondition, invalid
from ..train import EDiT as Engine
from ..train import EditConfig, EditInfo, Mesh, Shard, with_preset
from ..training import Reduced, State, StateEntry
from ._gradients import GradientMean
from ._joining import HandOver
from ._layers import Stream, device_of, dtype_of, is_dtensor, is_fsdp, layers_of, like, local_of, sharding_of, tensor_of
from ._options import TorchKeywords, config_of, scheduled
from ._outer import OuterScheduler, TorchOuter
from ._reports import Reports, Sink, announce, span
from ._seams import Frozen, Hook, check_ddp, ddp_around, ddp_inside, edits_of, first_difference, forget_scalers, make_alike, rank_in_torch, \
    refuse_fsdp1, refuse_sparse, strangers, watch_scalers

if TYPE_CHECKING:
    from typing_extensions import Unpack

_T = TypeVar("_T", bound="EDiT")
_LAST_ROUND = 10.0  # seconds for which `close` waits, as entrain_edit_destroy does for rounds behind steps


class EDiT:
    """EDiT (arXiv 2412.07210) around a module and its optimizer. A replica is one process, or, for a model that
    fully_shard has sharded, the processes of fully_shard's mesh.

    The constructor is collective over `comm`. It moves the parameters into one flat array per layer; the Parameter objects, their
    names and shapes stay. It copies the parameters, buffers and frozen parameters of replica 0 to all replicas. From then on

    - the first forward pass of a step, in training mode with gradients enabled, begins an exchange when one is due. Each layer waits
      for its part of the exchange before its own forward pass. A layer waits at the beginning of the model's forward pass if its
      module had no forward pass of its own in some earlier pass. With fully_shard all layers wait at the beginning, because
      fully_shard gathers layers ahead of their forward passes;
    - a backward pass averages gradients over all replicas while warm-up lasts, layer by layer during the rest of the pass;
    - optimizer.step() counts a step, whatever the number of forward and backward passes before it. All replicas must count the same
      steps. So a step that torch.amp.GradScaler skips counts, too, and so does a step whose gradients the program clears (to None)
      before the next forward pass. Do not `record` tokens for such steps.

    Gradients may come without a forward pass of `model` in training mode (after model.eval(), from another method than forward, from a
    part of the model). Then optimizer.step() begins the exchange of the next step, and waits for it.

    What cannot be right is refused by name: FSDP1; DistributedDataParallel over several replicas; parameters that require gradients
    only after the object was made, or have moved to other memory since; replicas that differ when the anchors are made.

    model         a module on any one device, f32, bf16, f16, or of several of these types. If it uses fully_shard, before its first
                  forward pass. On an accelerator the exchange works on a copy of the parameters in pinned host memory, the twin;
                  anchors and outer state are in host memory, too. An exchange costs one copy of the parameters each way, and 8 bytes
                  of host memory for each parameter. Parameters of several types, and f16, have such a twin in f32 on the CPU too; new
                  values are rounded to each parameter's type
    optimizer     steps the model's parameters; any optimizer
    config, options
                  entrain.EditConfig, and its fields by keyword, which override those in `config`. outer_optim_class and
                  outer_optim_kwargs: a class of torch.optim and its arguments, instead of outer_optimizer and outer_*. The library's
                  own kernels make the steps of SGD and AdamW if the library has all the given options. torch makes all other steps,
                  one layer at a time, on tensors of the parameters' shapes. These tensors are this rank's part, so for a replica of
                  several ranks the optimizer must be element-wise. torch must then give equal bits on all machines, and only
                  state_dict saves the optimizer's state
    outer_scheduler
                  a function that makes a scheduler of torch.optim.lr_scheduler on the outer optimizer that it is given: lambda outer:
                  CosineAnnealingLR(outer, 100). The given optimizer may be that of any layer, and has none of the model's parameters.
                  The scheduler steps with the outer optimizer, so its unit is exchanges. Its rates follow from the number of the outer
                  step alone, also after a load and on a newcomer. For other rules see outer_schedule and interval_schedule of
                  EditConfig
    min_replicas  with on_loss="finish": if fewer replicas are left, the next step raises FailedPrecondition, instead of continuing
    comm          all processes; None: Comm.from_env(), which close() then closes. The first M ranks are replica 0 and so on
    mesh          a Mesh over `comm` for a model that is also split by tensor or pipeline stage; the caller closes it. All stages have
                  the same number of layers, and layer l of all stages is judged and weighted as one. With stages call begin_step at
                  the beginning of each step. None: there are only replicas, and each is sharded as fully_shard says
    replicated    with `mesh`: the parameters that the tensor ranks hold alike, such as norms. The caller sums their
                  gradients. The replicated parameters of a module form a layer of their own
    layers        the modules whose parameters are exchanged together, in the order of the forward pass; None: the modules
                  given to fully_shard, or the children of the largest ModuleList or Sequential. The rest is a layer of its own
    preset        the published method that gives the options which are not given here: "edit" (the default of this class), "diloco",
                  "streaming-diloco", "decoupled-diloco", "post-local-sgd", "co2", "sparseloco" (entrain_edit_config_preset in
                  entrain/train.h says what each is), or "published": the defaults of the published code, which are plain averaging.
                  With `config` no preset applies unless this argument names one
    staging       True: makes such a twin for all parameters; None: makes it only where it is needed
    exchange_state
                  names of tensors in the optimizer's state that have the parameters' shapes and are models of their own, such as ["z"]
                  of schedule-free optimizers. They are exchanged together with their parameters: weights and the clip factor
                  are those of both together. All other states stay with their replica
    join          seconds. This replica joins replicas that train with admit="exchange", for example when it is started again after a
                  loss. The constructor waits at most this time until these replicas take it in. It then has their parameters, and
                  `info.steps` says at which step they are. At its first exchange it also gets the buffers of a member, and the objects
                  that hand_over names. Nobody sends frozen parameters: give the model the ones that the members have; a replica with
                  other ones is refused. `comm` and `mesh` then have the processes of this replica alone. With comm None this process
                  is a replica
    hand_over     with admit: objects with state_dict and load_state_dict, by name, the same names on all replicas: {"optimizer":
                  optimizer, "scheduler": scheduler}. A newcomer with other names is refused. At its first exchange a newcomer loads
                  the state of one member. Both wait for the transfer, at most 20 s for each 4 MiB. Until then the newcomer's optimizer
                  has no state of the members. If the transfer fails, both warn, and the newcomer continues without it. None: the
                  newcomer's optimizer begins anew, and is not replaced. Not with overlap_steps, quorum or round_deadline; with these
                  options newcomers also keep their own buffers

    Thread safety: one thread at a time. The forward pass raises failures of other ranks as entrain.Error. Code that rewrites
    parameters must write into them (`param.copy_`, load_state_dict without assign). If .to() or an assignment to .data moves them
    after construction, the next exchange raises an error. Buffers, such as the statistics of a batch norm, are not exchanged."""

    _preset = "edit"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: Optional[EditConfig] = None, *,
                 comm: Optional[Comm] = None, mesh: Optional[Mesh] = None, replicated: Iterable[nn.Parameter] = (),
                 layers: Optional[Sequence[nn.Module]] = None, staging: Optional[bool] = None, preset: Optional[str] = None,
                 exchange_state: Sequence[str] = (), join: Optional[float] = None, hand_over: Optional[Mapping[str, Any]] = None,
                 outer_scheduler: Optional[OuterScheduler] = None, min_replicas: int = 1, **options: "Unpack[TorchKeywords]") -> None:
        settings, given = config_of(config, options)
        if mesh is not None and comm is None:
            raise invalid("EDiT", "a mesh without comm, the communicator that it was made of")
        if comm is not None and not comm._owned:
            raise invalid("EDiT", "comm belongs to a mesh and ends with it; give the communicator that the mesh was made of")
        if min_replicas > 1 and settings.on_loss != "finish":
            raise invalid("EDiT", f"min_replicas is {min_replicas}, and on_loss is {settings.on_loss!r}, with which a loss ends the run "
                                  "whatever their number; set on_loss=\"finish\", or leave it out")
        if hand_over is not None and (settings.admit == "none" or settings.overlap_steps or settings.quorum or settings.round_deadline):
            raise invalid("EDiT", "hand_over needs admit=\"exchange\", and exchanges for which all replicas wait: neither overlap_steps "
                                  "nor quorum nor round_deadline")
        self._min_replicas = min_replicas
        refuse_fsdp1("EDiT", model)
        self.model = model
        self.optimizer = optimizer
        self._layers = layers_of(model, layers, replicated)
        if isinstance(exchange_state, str) or len(set(exchange_state)) != len(exchange_state):
            raise invalid("EDiT", f"exchange_state is {exchange_state!r}; expected a list of different names, such as [\"z\"]")
        for layer in self._layers:
            layer.states = tuple(exchange_state)
        self._pending = [False] * len(self._layers)
        # Layers that wait before the model's forward pass: the forward pass of their module has not run in some training pass (a
        # ModuleList, a module whose parts or parameters others use), so nothing says when they are used. Before the first pass: all.
        self._early, self._ran = [True] * len(self._layers), [False] * len(self._layers)
        self._known = 0  # training passes, the one that runs included
        if preset is None and config is None:
            preset = self._preset
        if preset is not None:
            settings = with_preset(settings, preset, len(self._layers), given)
        if outer_scheduler is not None:
            settings = scheduled(settings, outer_scheduler)
        (dtype, alike), device = dtype_of(self._layers), device_of(self._layers)
        if staging is False and (device.type != "cpu" or not alike):
            raise invalid("EDiT", "staging is False, and the parameters are " + (
                f"on {device}, which the library does not see" if alike else "float16 or of several types, which needs a twin in float32"))
        self._staging = (device.type != "cpu" or not alike) if staging is None else staging
        self._stream, self._fetched = Stream(device), False
        sharding = sharding_of(model, self._layers)
        self._fsdp = [module for module in model.modules() if is_fsdp(module)]
        self._own_comm = comm is None
        self.comm = comm if comm is not None else Comm.from_env() if join is None else Comm.alone(settings.admit_store)
        self._own_mesh = mesh is None
        self._mesh = Mesh(self.comm, shard=sharding.size) if mesh is None else mesh
        self._check_mesh(sharding.size)
        if self._mesh.coordinate("pipeline")[1] > 1:
            # A stage waits for the layers of other stages before its own, so all layers are prefetched.
            settings = dataclasses.replace(settings, prefetch=max(settings.prefetch, len(self._layers)))
        self._sync = self._mesh.comm("sync")
        self._check_sharding(sharding.ranks)
        for layer in self._layers:
            layer.bind(dtype, sharding.size, self._staging, self._stream.known)
        self._outer = settings.outer_step if isinstance(settings.outer_step, TorchOuter) else None
        if self._outer is not None and exchange_state:
            raise invalid("EDiT", f"exchange_state with the outer {self._outer.name} of torch, which knows the parameters alone; take an "
                                  "outer optimizer of the library (SGD, AdamW)")
        if self._outer is not None:
            self._outer.bind(self._layers, whole=self._mesh.coordinate("model")[1] == 1)
        kind = "f32" if dtype == torch.float32 else "bf16"
        self._shard = Shard(self._mesh, [layer.count for layer in self._layers], param_dtype=kind,
                            grad_dtype=kind, segments=[layer.segments for layer in self._layers],
                            replicated=[layer.replicated for layer in self._layers])
        self._shard.bind_layers([layer.host if layer.host.numel() else None for layer in self._layers])
        self._accumulation = settings.gradient_accumulation_steps
        self._check_gradients(settings)
        self._start_alike()
        self._frozen = Frozen(model, self._mesh.comm("model"))
        if settings.admit == "exchange":
            identity = {**self._frozen.identity(settings.identity),
                        "hand_over": " ".join(sorted(hand_over or ())) or "nothing"}
            settings = dataclasses.replace(settings, identity=identity)
        # A step is one forward pass for the library, whatever the number of micro-batches.
        self._edit = Engine(self._mesh, self._shard, dataclasses.replace(settings, gradient_accumulation_steps=1), join=join,
                            fetch=self._fetch if self._staging else None)
        self._frozen.join_state(self._edit)
        if join is not None:  # they are the others' now
            self._store()
            self._keep_states()
        self._joined = self._joining = join is not None  # _joining: until its first exchange
        self._joins = self._edit.info().joins  # that have met this replica
        self._reports = Reports(type(self).__name__, "syncs", "steps", self._edit.losses)
        #: This process's replica.
        self.replica = self._edit.info().replica
        self._async, self._overlaps = settings.use_async, bool(settings.overlap_steps)
        self._closes_early = settings.quorum > 0 or settings.round_deadline > 0
        self._merges = self._overlaps or self._closes_early
        self._admits = settings.admit != "none"
        self._hand_over = HandOver(type(self).__name__, model, hand_over, settings.admit_store, self._mesh.comm("model").rank)
        self._has_anchors = settings.outer_optimizer != "none" or settings.reducer != "none"
        self._anchors_at = settings.local_sgd_warmup_steps
        self._compared = join is not None  # replicas were equal when the anchors were made
        self._open = False  # a step has begun
        self._passes = 0  # forward passes of the open step, in training mode
        self._computed = False  # gradients were computed since the last counted step
        self._stepping = False  # inside optimizer.step(), whose closure may run forward passes
        self._stepped = False  # optimizer.step() was called since GradScaler has unscaled the gradients
        self._unseen = False  # a step had gradients, and no forward pass of the model in training mode
        self._elsewhere = False  # inside `aside`
        self._left = False  # `leave` is over
        self._skipped = 0  # steps that the program has given up
        self._exchanging = False  # some layer is in an exchange
        self._exchanged = False  # an exchange began at the start of the current step
        self._wishes_checkpoint = False  # this rank wishes one, and no exchange has told the other ranks yet
        self._checked = False  # whether the replicas made the same steps up to the first exchange
        self._ddp: Optional[nn.Module] = None  # the last DistributedDataParallel that was seen, around or inside the model
        self._torch_ranks = [-1]
        if join is None and self._sync.size > 1:
            self._torch_ranks = self._sync.all_gather(np.array([rank_in_torch()], np.int64)).ravel().tolist()
        self._warm = False
        self._mean: Optional[GradientMean] = None
        self._hooks: List[Any] = []
        inside = ddp_inside(model)
        if inside is not None:
            check_ddp(inside, self._torch_ranks)
            self._ddp = inside
        if self.replicas == 1 and self._edit.info().most_replicas == 1:
            warnings.warn(f"{type(self).__name__} has one replica, so nothing is exchanged. Should there be others, check that the "
                          "launcher passes RANK and WORLD_SIZE on", stacklevel=2)
        self._warn_of_others()
        self._attach()
        announce(self)

    def _warn_of_others(self) -> None:
        """Warns of parameters that the optimizer steps and the model does not have. (Two EDiT objects may share an optimizer.)"""
        others = strangers(self.optimizer, [self.model, *(edit.model for edit in edits_of(self.optimizer))])
        if others and self.replicas > 1:
            warnings.warn(f"the optimizer steps {others} parameters that the model does not have (of a criterion?): they are neither "
                          "exchanged nor saved, and differ between replicas. Put them into the model that EDiT gets (nn.ModuleDict), if no "
                          "other EDiT object gets them",
                          stacklevel=3)

    # ---- making ----------------------------------------------------------------------------------------------------------

    def _check_mesh(self, ranks: int) -> None:
        shard, context = self._mesh.coordinate("shard")[1], self._mesh.coordinate("context")[1]
        if shard != ranks:
            raise invalid("EDiT", f"mesh has {shard} ranks along \"shard\", and fully_shard has cut the model for {ranks}")
        if context > 1:
            raise invalid("EDiT", f"mesh has {context} ranks along \"context\"; expected 1: this class averages gradients over "
                                  "replicas alone")
        tensor = self._mesh.coordinate("tensor")[1]
        if tensor == 1 and any(layer.replicated for layer in self._layers):
            raise invalid("EDiT", "replicated is given, and no mesh with more than one rank along \"tensor\"")

    def _check_sharding(self, ranks: Tuple[int, ...]) -> None:
        if not ranks:
            return
        mine = np.array([torch.distributed.get_rank()], np.int64)
        found = self._mesh.comm("shard").all_gather(mine).ravel().tolist()
        if tuple(found) != ranks:
            raise invalid("EDiT", f"fully_shard's mesh has the ranks {list(ranks)} of torch.distributed, and the replica of this rank "
                                  f"in `comm` consists of {found}; expected the same ranks in the same order")

    def _check_gradients(self, settings: EditConfig) -> None:
        if settings.local_sgd_warmup_steps == 0 or self._mesh.coordinate("sync")[1] == 1:
            return
        refuse_sparse("EDiT", self.model, (param for layer in self._layers for _, param in layer.params),
                      " in warm-up; set sparse=False, or local_sgd_warmup_steps=0")

    @torch.no_grad()
    def _start_alike(self) -> None:
        self._bind_states()
        self._stream.note()
        self._fetch()
        self._shard.broadcast()
        self._store()
        self._stream.wait()  # to join, the library writes the twins again
        others = [(f"the parameter {name}", param.detach()) for name, param in self.model.named_parameters() if not param.requires_grad]
        others += [(f"the buffer {name}", buffer) for name, buffer in self.model.named_buffers()]
        make_alike("EDiT", self._sync, ((name, local_of(tensor)) for name, tensor in others))
        self._reshard()

    def _attach(self) -> None:
        hooks = self._hooks
        for index, layer in enumerate(self._layers):
            if layer.module is not self.model and not self._fsdp:
                hooks.append(layer.module.register_forward_pre_hook(Hook(functools.partial(self._before_layer, index)), prepend=True))
        hooks.append(self.model.register_forward_pre_hook(Hook(self._before_forward), prepend=True))
        # An exchange that has begun (begin_step) still writes parameters.
        hooks.append(self.model.register_state_dict_pre_hook(Hook(lambda *unused: self._wait_all())))
        for index, module in enumerate(self._fsdp):
            module.set_all_reduce_hook(functools.partial(self._reduced, index))
        if not self._fsdp:
            hooks += [param.register_post_accumulate_grad_hook(functools.partial(self._added, index))
                      for index, layer in enumerate(self._layers) for _, param in layer.params]
        watch_scalers(self)
        hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
        hooks.append(self.optimizer.register_step_post_hook(self._after_step))

    # ---- parameters on a device ----------------------------------------------------------------------------------------------

    # The library works on the host twins. It asks for the parameters (_fetch) when it is about to read or change them. What it
    # has changed is copied back before anybody else reads the parameters.

    def _fetch(self) -> None:
        self._fetched = True
        with self._stream:
            for layer in self._layers:
                layer.fetch()
            self._stream.wait()

    def _store(self) -> None:
        for layer, pending in zip(self._layers, self._pending):
            if not pending:  # a layer whose exchange is under way is stored when it is over
                layer.store()

    def _keep_states(self) -> None:
        """Must be called when the library has replaced the state."""
        for layer in self._layers:
            layer.keeps_states = bool(layer.states)

    def _bind_states(self) -> None:
        for layer in self._layers:
            if layer.states and not any(self._pending):
                layer.bind_states(self.optimizer)

    def _fetch_now(self) -> None:
        """Must be called before the library reads the parameters without asking for them."""
        for layer in self._layers:
            layer.check_memory()
        self._bind_states()
        if self._staging:
            self._stream.note()
            self._fetch()

    # ---- the hooks of a step -----------------------------------------------------------------------------------------------

    def _before_layer(self, index: int, module: nn.Module, args: Any) -> None:
        self._ran[index] |= module.training
        if self._exchanging:
            self._wait(index)

    def _wait(self, index: int, timeout: Optional[float] = None) -> bool:
        if self._pending[index]:
            with span("wait", self._layers[index].name):
                if not self._edit.wait_layer(index, timeout):
                    return False
            self._pending[index] = False
            self._layers[index].store()
        self._exchanging = any(self._pending)
        return True

    def _wait_all(self) -> None:
        if self._exchanging:
            for index in range(len(self._layers)):
                self._wait(index)

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._see_ddp()
        if module.training and torch.is_grad_enabled() and not self._elsewhere:
            self._end_skipped_step()
            self._note_layers()
            if self._mean is not None and not self._stepping:
                self._mean.begin_pass()
            # If an optimizer's closure runs several times, the model has the replica's own parameters only in the
            # first run. The step is open in the others.
            if not self._open:
                self._begin()
            self._passes += 1
            if self._passes == max(64, 4 * self._accumulation):
                warnings.warn(f"{self._passes} forward passes in training mode since the last step of the optimizer that EDiT was given. Was "
                              "this optimizer replaced? Its steps are counted, and without them nothing is exchanged: make EDiT anew with "
                              "the other optimizer", stacklevel=4)
        if self._fsdp:
            self._wait_all()  # fully_shard gathers layers ahead of their own forward passes
        else:
            self._wait_root()

    def _see_ddp(self) -> None:
        ddp = ddp_around()
        if ddp is not None and ddp is not self._ddp:
            check_ddp(ddp, self._torch_ranks)
            self._ddp = ddp

    def begin_step(self) -> bool:
        """Begins the exchange that is due. Without this call the forward pass begins it. Returns True if state can be saved here,
        before the forward pass: replicas exchange, or have made their first anchors. A model with pipeline stages needs this call: at
        each step, every stage must make it before it waits for activations. Otherwise a stage waits in its forward pass for the other
        stages' part of the exchange. Call it between a step and the next forward pass in training mode. Collective; blocks only with
        A-EDiT, and with overlap_steps at the end of an exchange."""
        self._end_skipped_step()
        if self._open and (self._passes or self._computed):
            raise _misplaced("begin_step: the step has begun; it is to come before its first forward pass")
        if not self._open:
            self._begin()
        return self._exchanged or self._is_at_exchange()

    def _wait_root(self) -> None:
        if self._exchanging:
            for index in range(len(self._layers)):
                if self._early[index]:
                    self._wait(index)

    def _note_layers(self) -> None:
        """Must be called before a training pass: takes over which layers have run in the one before it, if there was one."""
        if self._known >= 1:
            self._early = [not ran or early and self._known > 1 for early, ran in zip(self._early, self._ran)]
        self._known += 1
        self._ran = [False] * len(self._layers)

    def _begin(self) -> None:
        self._check_trained(self._frozen.params)
        for layer in self._layers:
            layer.check_memory()
        if self._exchanged and not self._checked and not self._merges:
            self._check_equal_steps()
        if not self._compared and self._edit.info().steps == self._anchors_at:
            self._compare()
        sent = self._wishes_checkpoint  # a signal handler may wish one while begin_forward waits
        if sent:
            self._edit.wish(checkpoint=True)
        self._bind_states()
        self._stream.note()
        self._fetched = False
        if self._reports.wanted or self._min_replicas > 1:
            info = self._edit.info()
            self._reports.see(info)
            if info.replicas < self._min_replicas:
                raise _misplaced(f"{info.replicas} replicas are left at step {info.steps}, and min_replicas is {self._min_replicas}. Start "
                                 "the job again from its last checkpoint (resume), or let replicas join (admit=\"exchange\") and allow "
                                 "fewer")
        met = self._edit.info().rendezvous
        with span("begin"):
            syncing = self._exchanged = self._edit.begin_forward()
        if self._merges:
            if self._fetched and not syncing:  # otherwise each layer is stored when it is waited for
                self._store()
            self._reshard()
        self._open, self._passes = True, 0
        warm = self.replicas > 1 and self._edit.gradient_scope() == "global"
        if warm != self._warm:
            self._set_warm(warm)
        if self._mean is not None:
            self._mean.begin_step()
        if syncing:
            self._check_trained(self.model.named_parameters())
            for layer in self._layers:
                layer.check_bound()
            self._reshard()
            self._pending = [True] * len(self._layers)
            self._exchanging = True
            self._wishes_checkpoint = self._wishes_checkpoint and not sent
            if self._admits and not self._merges:
                self._meet_newcomers(met)

    def _meet_newcomers(self, met: int) -> None:
        """Hands the state over if this is the first exchange of a newcomer. `met`: the number of rendezvous before it."""
        for index in range(len(self._layers)):
            if self._edit.info().rendezvous > met:
                break
            self._wait(index)  # the rendezvous comes before the first layer that takes part
        info = self._edit.info()
        if (self._joining or info.joins > self._joins) and not any(self._leaves(replica) for replica in range(info.most_replicas)):
            self._wait_all()
            self._hand_over.meet(lambda values: self._edit.reduce(values).values, self.replica, info.most_replicas, self._joining)
            self._joining = False
        self._joins = info.joins

    def _check_trained(self, params: Iterable[Tuple[str, Tensor]]) -> None:
        """Refuses parameters that require gradients and are in no layer: replicas would drift apart."""
        if params is self._frozen.params and not any(param.requires_grad for _, param in params):
            return
        bound = {id(param) for layer in self._layers for _, param in layer.params}
        for name, param in params:
            if param.requires_grad and param.numel() and id(param) not in bound:
                raise _misplaced(f"the parameter {name} requires gradients now, and did not, or was not there, when EDiT was made: it "
                                 "would train without being exchanged. Let it require gradients when EDiT is made (one that gets none "
                                 "costs only its exchange), and let .to() come before, which may make new parameters; or close this "
                                 "EDiT object and make another one")

    def _compare(self) -> None:
        self._compared = True
        if self._sync.size > 1:
            params = [(name, local_of(param.detach())) for layer in self._layers for name, param in layer.params]
            differs = first_difference(self._sync, params)
            if differs is not None:
                when = "after warm-up, " if self._anchors_at else ""
                raise _misplaced(f"replicas differ {when}at step {self._anchors_at}, where EDiT makes their anchors: the parameter "
                                 f"{differs[0]} has other values on replica {differs[1]} than on replica 0. Was it changed on some "
                                 "replicas after EDiT was made (load_state_dict), or do gradients go past EDiT (an optimizer inside the "
                                 "backward pass)?")

    def _check_equal_steps(self) -> None:
        """Warns once if all replicas had moved by the same length in every layer at the last exchange."""
        norms = []
        for index in range(len(self._layers)):
            try:
                norms.append([norm for norm in self._edit.layer_report(index)[0] if norm > 0])
            except FailedPrecondition:  # the exchange of this layer is not over
                return
        self._checked = True
        if self.replicas > 1 and all(len(row) == self.replicas and len(set(row)) == 1 for row in norms):
            warnings.warn("all replicas have made the same steps: do they all see the same data, or does something else average their "
                          "gradients? Then an exchange has no effect", stacklevel=5)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._computed and not self._open and not self._stepping:
            self._unseen = True
            self._begin()
        self._wait_all()  # for modules that took no part in the forward pass
        closure = kwargs.get("closure") if len(args) < 2 else args[1]  # args[0] is the optimizer
        if closure is not None and not self._open and not self._stepping:
            self._begin()
            # The closure may use parameters of the model itself, or of fully_shard's groups, without the model's forward pass.
            if self._fsdp:
                self._wait_all()
            else:
                self._wait_root()
        if closure is None:
            self._average_rest()
        self._stepping, self._stepped = True, True

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = False
        if self._open:  # otherwise somebody lets the optimizer make its state, without gradients
            self._end_step()
            if self._unseen:
                self._begin()
                self._wait_all()

    def _end_step(self) -> None:
        self._edit.end_step()
        self._restart()

    def _average_rest(self) -> None:
        """Averages gradients of warm-up that no backward pass has averaged: there were fewer passes than announced, or backward()
        has not made the gradients."""
        if self._open and self._mean is not None and not self._mean.averaged:
            self._mean.average()

    # Called around the methods of GradScaler (watch_scalers), which calls optimizer.step() or not.

    def before_unscale(self) -> None:
        self._average_rest()  # so that all replicas skip the same steps in warm-up

    def before_scaler(self) -> None:
        self._stepped = False

    def after_scaler(self) -> None:
        """Counts a step that GradScaler has skipped, so that all replicas count the same steps."""
        if not self._stepped and self._computed:
            if not self._open:
                self._unseen = True
                self._begin()
            self._wait_all()
            self._after_step(self.optimizer, (), {})

    def _end_skipped_step(self) -> None:
        """Counts a step that the program has given up: it has cleared its gradients."""
        self._wait_all()
        if self._open and self._computed and not self._stepping and all(
                param.grad is None for layer in self._layers for _, param in layer.params):
            self._end_step()
            self._skipped += 1
            if self._skipped == 8 and self._skipped * 3 >= self._edit.info().steps:
                warnings.warn(f"{self._skipped} of {self._edit.info().steps} steps had gradients that the program has cleared without "
                              "optimizer.step(); they count as steps, so that all replicas count alike. If these gradients belong to the "
                              "step of another optimizer (the discriminator's in the generator's step), compute them within `with "
                              "edit.aside():`", stacklevel=4)

    def _gradients(self) -> List[Tensor]:
        """Returns this rank's parts of the gradients. A shard may have none."""
        parts = [local_of(param.grad) for layer in self._layers for _, param in layer.params if param.grad is not None]
        return [part for part in parts if part.numel()]

    def _largest_gradient(self) -> float:
        """Returns the largest element on any rank of this replica; infinity also for NaN."""
        norm = torch.nn.utils.get_total_norm(self._gradients(), math.inf).cpu().double()
        largest = norm.nan_to_num(nan=math.inf, posinf=math.inf).reshape(1)
        model = self._mesh.comm("model")
        if model.size > 1:
            model.all_reduce(largest, op="max")
        return float(largest)

    def _reshard(self) -> None:
        """Releases parameters that fully_shard may still hold from a pass without gradients, since they must be
        gathered anew."""
        for module in self._fsdp:
            module.reshard()

    # ---- gradients during warm-up ----------------------------------------------------------------------------------------

    def _set_warm(self, warm: bool) -> None:
        """Switches the averaging of gradients over replicas in later backward passes on or off."""
        self._warm = warm
        # With fully_shard, _reduced averages each group of parameters, and waits for the average at once.
        self._mean = None if self._fsdp or not warm else GradientMean(
            self._layers, self._sync, self.comm, lambda: self._passes >= self._accumulation or self._unseen or self._stepping,
            lambda: self._ddp is not None)

    def _note_gradient(self) -> None:
        """Begins the step if no forward pass has begun it and this can be no exchange: in warm-up, whose averages need it."""
        if self._elsewhere:
            return
        self._computed = True
        if not self._open and self._edit.info().in_warmup:
            self._unseen = True
            self._begin()

    def _added(self, index: int, param: Tensor) -> None:
        self._note_gradient()
        if self._mean is not None and not self._elsewhere:
            self._mean.added(index, param)

    def _reduced(self, index: int, gradients: Tensor) -> None:
        """Runs as fully_shard's hook, after its own reduction. It does not run for a group without gradients. The tag keeps a group that
        a replica has left out apart from the next one, which may be as large."""
        self._note_gradient()
        if not self._warm or self._elsewhere:
            return
        whole = gradients.contiguous().cpu()
        self._sync.all_reduce(whole, op="avg", tag=index)
        if whole is not gradients:
            gradients.copy_(whole)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clips the gradients of this replica as torch.nn.utils.clip_grad_norm_ does. In warm-up the gradients are the mean
        over all replicas. Returns the norm before clipping, over all tensor ranks and stages of the replica. Call it between
        the last backward pass and optimizer.step(), after GradScaler.unscale_. Collective over the replica."""
        self._average_rest()
        if self._mesh.coordinate("tensor")[1] * self._mesh.coordinate("pipeline")[1] == 1:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type)
            return norm.full_tensor() if is_dtensor(norm) else norm
        counts = [not layer.replicated or self._mesh.coordinate("tensor")[0] == 0 for layer in self._layers]
        grads = [(local_of(param.grad), counted) for layer, counted in zip(self._layers, counts) for _, param in layer.params
                 if param.grad is not None]
        total = torch.nn.utils.get_total_norm([grad for grad, counted in grads if counted], norm_type).cpu().double().reshape(1)
        model = self._mesh.comm("model")
        if math.isinf(norm_type):
            model.all_reduce(total, op="max")
        else:
            total = model.all_reduce(total.pow(norm_type)).pow(1 / norm_type)
        for grad, _ in grads:
            grad.mul_(float((max_norm / (total + 1e-6)).clamp(max=1.0)))
        return total.float().reshape(())

    @torch.no_grad()
    def spread_overflow_(self) -> None:
        """For GradScaler with a model that is split by tensor or stage: if a gradient of any rank of this replica is not
        finite, makes a gradient of every rank infinite. GradScaler checks only its own rank. But all ranks of a replica must
        skip the same steps. Otherwise the next exchange ends in its time limit. Call it between the last backward pass and
        GradScaler.unscale_ or step. Collective over the replica. fully_shard needs no such call."""
        if not math.isfinite(self._largest_gradient()):
            for grad in self._gradients()[:1]:
                grad[(0,) * grad.dim()] = math.inf

    # ---- asking and telling ------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The library's object, for layer_report, layer_score, replica, record, wish, request_sync and add_state. Its
        layers have the numbers of layer_names. Only the hooks may call its begin_forward, wait_layer and end_step."""
        return self._edit

    def reduce(self, values: Sequence[float], op: str = "sum", *, timeout: Optional[float] = None) -> Reduced:
        """Reduces a few numbers over all ranks that are not lost. An empty list finds out who is there: `rank` and `ranks` of
        the result. Call it after synchronize, in warm-up, or after leave; without overlap_steps, quorum and round_deadline also
        where begin_step has returned True. Waits for the exchange first. With on_loss="finish", a loss does not make the call
        fail. Collective; blocks."""
        self._wait_all()
        with self._at_exchange("reduce"):
            return self._edit.reduce(values, op, timeout=timeout)

    @property
    def info(self) -> EditInfo:
        """The state after the last exchange that is over. Local."""
        return self._edit.info()

    def report_to(self, sink: Sink) -> None:
        """Reports the figures of `info` (as_dict) after each exchange, at the beginning of the next step. `sink` is a SummaryWriter of
        torch.utils.tensorboard, a run of W&B (wandb.init()), or a function that gets the figures and the step. Names begin with
        "entrain/". Local; call it on the ranks that shall report. Without this call, the logger "entrain" also has exchanges and joins
        (INFO) and losses (WARNING), and torch.profiler shows the ranges entrain::begin, entrain::wait, entrain::leave and, in warm-up,
        entrain::mean."""
        self._reports.add(sink)

    @property
    def replicas(self) -> int:
        """The number of replicas: those of the last rendezvous that are not lost. Local."""
        return self._edit.info().replicas

    @property
    def layer_names(self) -> List[str]:
        """The layers' names, in the order of the forward pass. "the model" has the parameters that are in no other
        layer."""
        return [layer.name for layer in self._layers]

    def record(self, tokens: int, metric: float = 0.0, weight: float = 0.0) -> None:
        """Records how many tokens this rank has trained on since the last call, and a metric, such as the loss, with
        its weight. Both travel with the next rendezvous. `info.metric` is then the mean over all replicas.
        Local."""
        self._edit.record(tokens, metric, weight)

    def synchronize(self) -> None:
        """Exchanges now (not in warm-up, and not twice at one step). Afterwards all replicas have equal parameters,
        if an exchange has replaced them. Call it between a step and the next forward pass. Collective; blocks."""
        self._end_skipped_step()
        self._edit.request_sync()
        self._restart()
        self._begin()
        self._restart()
        self._wait_all()

    def _restart(self) -> None:
        """Makes the next forward pass begin a step."""
        self._passes = 0
        self._open = self._computed = False

    def leave(self) -> None:
        """Says that this replica has made its last step: for A-EDiT, and for quorum with overlap_steps. Takes part in the exchanges of
        the other replicas until all replicas have left. The parameters are then equal everywhere. Collective over the replica; blocks.
        This replica must not train afterwards."""
        self._end_skipped_step()
        self._stream.note()
        self._fetched = False
        with span("leave"):
            self._edit.leave()
        self._left = True
        if self._fetched:
            self._store()
        self._reshard()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """For passes that belong to the step of another optimizer, such as passes through a discriminator in the generator's step.
        Within the block, forward and backward passes neither begin nor count a step of this object, and warm-up does not average their
        gradients. Clear these gradients before this object's own backward pass."""
        outer, self._elsewhere = self._elsewhere, True
        try:
            yield
        finally:
            self._elsewhere = outer

    @contextlib.contextmanager
    def consensus(self) -> Iterator[None]:
        """For evaluation: within the block the model has the parameters on which the replicas have agreed. These are the
        anchors of the last exchange. In warm-up they are the parameters themselves. With plain averaging they are the mean of
        all replicas, and the call is collective. Call it between a step and the next forward pass in training mode. No forward
        pass in training mode may run inside the block. Afterwards the model has its own parameters again.

        With overlap_steps, call `synchronize` first: FailedPrecondition while an exchange runs."""
        self._wait_all()
        values = self._agreed()
        kept = [[flat.clone() for flat in layer.flats] for layer in self._layers]
        try:
            for layer, value in zip(self._layers, values):
                layer.write(value)
            self._reshard()
            yield
        finally:
            with torch.no_grad():
                for layer, flats in zip(self._layers, kept):
                    for flat, value in zip(layer.flats, flats):
                        flat.copy_(value)
            self._reshard()

    def _agreed(self) -> List[Tensor]:
        counts = [layer.host.numel() for layer in self._layers]
        dtype = self._layers[0].host.dtype
        self._fetch_now()
        if self._has_anchors and self.info.last_sync_step >= 0:
            slab = torch.empty(sum(counts), dtype=dtype)
            try:
                self._edit.anchor(slab)
            except FailedPrecondition as failure:
                if not self._overlaps:
                    raise
                raise _misplaced(f"{failure}: with overlap_steps there are no agreed parameters until it is over; call synchronize on "
                                 "all ranks first") from None
        else:
            slab = torch.cat([layer.host for layer in self._layers])
            if not self._has_anchors:
                mean = slab.float()
                self._sync.all_reduce(mean, op="avg")
                slab = mean.to(dtype)
        return list(slab.split(counts))

    # ---- checkpoints ---------------------------------------------------------------------------------------------------------

    # State can be saved only right after replicas have exchanged. Saving makes no exchange of its own, so a run that saves has
    # the same bits as a run that does not.

    def wish_checkpoint(self) -> None:
        """Asks all ranks to save at the replicas' next exchange, where `checkpoint_due` is then true. Allowed on any rank, at any
        step, also in warm-up. Refused with overlap_steps, because then layers wait only for the exchange of synchronize. Local."""
        if self._overlaps:
            raise _misplaced("wish_checkpoint: with overlap_steps no layer waits for an exchange; call synchronize on all ranks "
                             "and save then")
        self._wishes_checkpoint = True

    @property
    def checkpoint_due(self) -> bool:
        """True if all ranks must save before the coming forward pass, because one of them has called wish_checkpoint. Equal on
        all ranks. Read it after begin_step in each step. Waits for the first layer of an exchange that has just begun. While a
        replica of A-EDiT is in `leave`, no rank can save: the value is False, and the wish is lost. In this case save after
        `leave`."""
        if not self._exchanged or self._overlaps:
            return False
        if self._exchanging:
            self._wait(self._pending.index(True))
        wished = bool(self._edit.info().wishes & lib.ENTRAIN_WISH_CHECKPOINT)
        return wished and not any(self._leaves(replica) for replica in range(self._edit.info().most_replicas))

    def _leaves(self, replica: int) -> bool:
        try:
            return bool(self._edit.replica(replica).leaving)
        except FailedPrecondition:
            return False  # it is lost, or not there yet

    def _is_lowest(self) -> bool:
        """Whether no replica below this one was there at the last exchange. Local, and alike on all replicas."""
        for replica in range(self.replica):
            with contextlib.suppress(FailedPrecondition):  # it is lost, or there was no exchange
                self._edit.replica(replica)
                return False
        if self._joined:  # until its first exchange, one of the others is the lowest
            with contextlib.suppress(FailedPrecondition):
                self._edit.replica(self.replica)
                return True
            return False
        return self.replica == 0 or self._edit.info().rendezvous > 0

    @contextlib.contextmanager
    def _at_exchange(self, call: str) -> Iterator[None]:
        """Says in torch's words where a call that needs an exchange is allowed."""
        try:
            yield
        except FailedPrecondition as error:
            text, found, _ = str(error).partition("this call is for the time after")
            if not found:
                raise
            raise _misplaced(f"{text}call {call} where begin_step returns True, or after synchronize(), which makes an exchange") from None

    def _come_to_save(self, what: str) -> None:
        """Begins the step with the exchange that is due, and waits for it."""
        self._frozen.before_save()
        if self._async:
            self._wait_all()
            if not self._is_at_exchange():  # the other ranks may already wait for this one
                raise _misplaced(f"{what}: replicas have not exchanged at step {self.info.steps}; call wish_checkpoint, and save "
                                 "where checkpoint_due is true after begin_step")
        elif not self._is_at_exchange():
            self.begin_step()
        self._wait_all()

    def _check_outer(self, what: str) -> None:
        if self._outer is not None:
            raise _misplaced(f"{what}: the outer {self._outer.name} keeps its state in torch, which state_dict and load_state_dict know")

    def _is_at_exchange(self) -> bool:
        info = self._edit.info()
        return info.steps == info.last_sync_step

    def save(self, directory: "str | os.PathLike[str]", name: str = "local_sgd_ckpt", *, exact: bool = True,
             one_file: bool = True, keep: Optional[int] = None, overwrite: bool = False) -> None:
        """Saves `directory`/`name`.ckpt: parameters, anchors, outer state, detectors and counts, but not the inner optimizer. The run
        continues with the bits that it would have without saving. If `exact`, the checkpoint also has the state of each replica, so
        that the run continues bit for bit on the same mesh. Otherwise another number of replicas can continue from it. If `one_file`,
        rank 0 writes everything. Otherwise each rank writes a file of its own. `keep`: after the save, only this number of newest
        checkpoints stays in the directory (see entrain.checkpoints_in). A run that has begun anew never replaces a checkpoint of a
        later step (FailedPrecondition), unless `overwrite` is set. Collective; blocks.

        Allowed between a step and the next forward pass, at these places only (otherwise FailedPrecondition):

            EDiT      where an exchange is due: at the steps W_s (where the anchors are made) and W_s + k H. The call begins the step
                      as begin_step does, whose result says in advance whether the state can be saved
            A-EDiT    after begin_step, if checkpoint_due is true; after `leave`, on all ranks
            both      after synchronize and after `load`. With overlap_steps only after these two; but EDiT can save with exact=True
                      also where an exchange is due

        In warm-up there is nothing to save: replicas are equal, so a new run needs only the state of model and
        optimizer, and local_sgd_warmup_steps minus the steps that were made."""
        self._check_outer("save")
        check_keep("save", keep)
        self._come_to_save("save")
        self._fetch_now()
        with self._at_exchange("save"):
            self._edit.save(os.fspath(directory), name, kind="exact" if exact else "portable", one_file=one_file, overwrite=overwrite)
        if keep is not None and self._edit.reduce([]).rank == 0:
            remove_old_checkpoints(directory, keep, name)

    def load(self, directory: "str | os.PathLike[str]", name: str = "local_sgd_ckpt", *, exact: bool = True) -> None:
        """Continues from a checkpoint of `save`; only rank 0 reads. With exact=False, use a new inner optimizer. After an error
        nothing has changed, except that a model with other frozen parameters is noticed when the rest has been loaded. Call it between
        a step and the next forward pass. Collective; blocks."""
        self._check_outer("load")
        self._wait_all()
        self._fetch_now()
        self._edit.load(os.fspath(directory), name, kind="exact" if exact else "portable")
        self._frozen.after_load(f"{type(self).__name__}.load")
        self._compared = True
        self._store()
        self._keep_states()
        self._restart()
        self._reshard()

    def resume(self, directory: "str | os.PathLike[str]", *, exact: bool = True) -> Optional[str]:
        """Continues from the newest whole checkpoint of `save` in the directory, and returns its name. If there is none, the run
        begins: the call returns None and does nothing. So torchrun, Slurm or Kubernetes may start a program again at any time if the
        program calls `resume` once, before its first step. If the program writes files of its own for a checkpoint, such as the
        optimizer's state, give them the checkpoint's name. A damaged checkpoint is passed over with a warning. With join there is
        nothing to resume. Otherwise as `load`. Collective; blocks."""
        return resume_from(self.comm, directory, lambda name: self.load(directory, name, exact=exact))

    def state_dict(self, *, exact: bool = True) -> Dict[str, Tensor]:
        """Returns copies of the state that `save` would write, as tensors by name. Anchors and outer state have the names of
        the parameters ("anchor/blocks.0.weight"), and are DTensors if the parameters are. The other tensors are counts,
        detectors and, if exact, the state of each rank. torch.distributed.checkpoint can save all of them. With exact=False,
        other numbers of replicas and shards can load them. torch.save works too: if exact, each rank saves its own; otherwise
        rank 0 saves, if the model is not sharded. Allowed where `save` is allowed; collective, as `save` is."""
        return self._state_dict(exact, whole=exact or self._is_lowest())

    def _state_dict(self, exact: bool, whole: bool) -> Dict[str, Tensor]:
        """whole: with what all replicas take over from one of them. Otherwise another replica writes this."""
        self._come_to_save("state_dict")
        self._fetch_now()
        with self._edit.open_state("exact" if exact else "portable") as opened:
            state = self._tensors(opened, exact, {entry.key: opened.get(entry) for entry in opened.entries
                                                  if whole or entry.holder != "replica"})
        return state if self._outer is None else {**state, **self._outer.state(self._part())}

    def empty_state_dict(self, *, exact: bool = True) -> Dict[str, Tensor]:
        """Returns tensors with the names and shapes of `state_dict`, filled with zeros. torch.distributed.checkpoint.load can
        fill them before load_state_dict. Call it between a step and the next forward pass. Local."""
        self._wait_all()
        with self._edit.open_state("exact" if exact else "portable") as opened:
            state = self._tensors(opened, exact, {entry.key: np.zeros(entry.count, entry.numpy_dtype) for entry in opened.entries})
        return state if self._outer is None else {**state, **self._outer.state(self._part(), zeros=True)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continues from the result of `state_dict`, with equal bits if it was exact. Load the inner optimizer's state, too. A
        KeyError names a missing tensor. Call it between a step and the next forward pass. All ranks load the state, or none does.
        Collective; blocks."""
        self._wait_all()
        exact = bool(state["exact"])
        outer = [] if self._outer is None else self._outer.parse(state, self._part())
        self._fetch_now()  # a state leaves some elements alone: the padding of uneven shards
        with self._edit.open_state("exact" if exact else "portable") as opened:
            for entry, name, param in self._names(opened):
                if entry.count and (param is None or local_of(param).numel()):
                    opened.set(entry, local_of(state[name]).reshape(-1).cpu())
            opened.commit()
        self._frozen.after_load(f"{type(self).__name__}.load_state_dict")
        if self._outer is not None:
            self._outer.install(outer)
        self._compared = True
        self._store()
        self._keep_states()
        self._restart()
        self._reshard()

    def _part(self) -> str:
        """Returns a text for the names of outer states. It distinguishes the parts of the model, because parts may have equal
        parameter names."""
        (tensor, tensors), (stage, stages) = self._mesh.coordinate("tensor"), self._mesh.coordinate("pipeline")
        return f"/part{tensor + tensors * stage}" if tensors * stages > 1 else ""

    def _names(self, opened: State) -> Iterator[Tuple[StateEntry, str, Optional[nn.Parameter]]]:
        """Yields the entries under their names in a state_dict, and for a layer's piece also the parameter to which
        it belongs. A parameter of which this rank has no elements is yielded too, with an entry of the layer."""
        split = self._mesh.coordinate("tensor")[1] * self._mesh.coordinate("pipeline")[1] > 1
        for entry in opened.entries:
            of = f"{entry.name}/part{entry.part}" if split else entry.name  # parts may have equal parameter names
            if entry.holder != "layer":
                # In the portable kind, all replicas use the state of replica 0.
                of_rank = entry.rank >= 0 and not (entry.holder == "replica" and opened.kind == "portable")
                yield entry, f"{entry.name}/rank{entry.rank}" if of_rank else entry.name, None
                continue
            offset = 0
            for name, param in self._layers[entry.layer].exchanged:
                if offset <= entry.first < offset + param.numel() or not local_of(param).numel():
                    yield entry, f"{of}/{name}", param
                offset += param.numel()

    def _tensors(self, opened: State, exact: bool, arrays: Mapping[str, Any]) -> Dict[str, Tensor]:
        state = {"exact": torch.tensor(int(exact))}
        for entry, name, param in self._names(opened):
            if entry.key in arrays:
                tensor = tensor_of(arrays[entry.key], entry.dtype)
                if param is not None:
                    tensor = like(tensor[:local_of(param).numel()], param)
                state[name] = tensor
        return state

    # ---- ending --------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Removes the hooks and frees the library's objects. The model keeps its parameters. First waits at most 10 s for an exchange
        that has begun, because the other ranks need this rank's part of it. (At the end of a `with` block that an error leaves, does
        not wait.) A second call does nothing. If only some ranks call it, the next exchange of the other ranks fails."""
        end = time.monotonic() + _LAST_ROUND
        with contextlib.suppress(Error):  # of a failed exchange, whose result nobody needs
            for index in range(len(self._layers) if self._exchanging else 0):
                if not self._wait(index, max(0.0, end - time.monotonic())):
                    break
        self._exchanging = False
        if self._hooks and self._reports.wanted:
            self._reports.see(self._edit.info())
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        forget_scalers(self)
        self._mean = None
        for module in self._fsdp:
            module.set_all_reduce_hook(_keep)
        self._edit.close()
        self._shard.close()
        if self._own_mesh:
            self._mesh.close()
        if self._own_comm:
            self.comm.close()

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Any) -> None:
        self._exchanging = self._exchanging and kind is None
        self.close()


class AEDiT(EDiT):
    """A-EDiT: as EDiT, with the preset "a-edit". Replicas exchange when local_sgd_sync_time seconds have passed, so a slow replica
    does not delay the others. A replica that ends must call `leave`."""

    _preset = "a-edit"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: Optional[EditConfig] = None, *,
                 comm: Optional[Comm] = None, mesh: Optional[Mesh] = None, replicated: Iterable[nn.Parameter] = (),
                 layers: Optional[Sequence[nn.Module]] = None, staging: Optional[bool] = None, preset: Optional[str] = None,
                 exchange_state: Sequence[str] = (), join: Optional[float] = None, hand_over: Optional[Mapping[str, Any]] = None,
                 outer_scheduler: Optional[OuterScheduler] = None, min_replicas: int = 1, **options: "Unpack[TorchKeywords]") -> None:
        if not options.get("use_async", True):
            raise invalid("AEDiT", "use_async is false; take EDiT")
        options["use_async"] = True
        super().__init__(model, optimizer, config, comm=comm, mesh=mesh, replicated=replicated, layers=layers,
                         staging=staging, preset=preset, exchange_state=exchange_state, join=join, hand_over=hand_over,
                         outer_scheduler=outer_scheduler, min_replicas=min_replicas, **options)


class DiLoCo(EDiT):
    """DiLoCo (arXiv 2311.08105): as EDiT, with the preset "diloco". All replicas have the same weight, and nothing is clipped or
    rejected."""

    _preset = "diloco"


def _misplaced(text: str) -> FailedPrecondition:
    return FailedPrecondition(ErrorRecord(code=lib.ENTRAIN_FAILED_PRECONDITION, text=text))


def _keep(gradients: Tensor) -> None:
    """Replaces fully_shard's hook after `close`."""

