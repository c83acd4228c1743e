"""EDiT and A-EDiT around a PyTorch module: replicas train alone and exchange how far they have come.

    edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=16, local_sgd_warmup_steps=100,
                              outer_optim_class=torch.optim.SGD,
                              outer_optim_kwargs=dict(lr=0.7, momentum=0.8, nesterov=True))

Then an ordinary loop: forward, backward, optimizer.step(). See entrain/train.h for the method and its options."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ..comm import Comm
from ..errors import invalid
from ..train import EDiT as Engine
from ..train import EditConfig, EditInfo, Mesh, Shard
from ._layers import dtype_of, layers_of, local_of, sharding_of

_T = TypeVar("_T", bound="EDiT")

# The published way to name the outer optimizer: a class of torch.optim and its keyword arguments.
_OUTER: Dict[str, Dict[str, Tuple[str, ...]]] = {
    "SGD": {"lr": ("outer_lr",), "momentum": ("outer_momentum",), "nesterov": ("outer_nesterov",),
            "weight_decay": ("outer_weight_decay",)},
    "AdamW": {"lr": ("outer_lr",), "betas": ("outer_beta1", "outer_beta2"), "eps": ("outer_eps",),
              "weight_decay": ("outer_weight_decay",)},
}
# Where torch.optim's defaults are others than the library's.
_OUTER_DEFAULTS: Dict[str, Dict[str, Any]] = {"SGD": {"lr": 1e-3, "momentum": 0.0}, "AdamW": {"lr": 1e-3, "weight_decay": 1e-2}}


def _config(config: Optional[EditConfig], options: Mapping[str, Any]) -> EditConfig:
    """Options as EDiT's constructor takes them, as the library's."""
    given = dict(options)
    if not given.pop("use_local_sgd", True):
        raise invalid("EDiT", "use_local_sgd is false; train without an EDiT object instead")
    kind, arguments = given.pop("outer_optim_class", None), given.pop("outer_optim_kwargs", None)
    if kind is None and arguments:
        raise invalid("EDiT", "outer_optim_kwargs without outer_optim_class")
    if kind is not None:
        if kind not in (torch.optim.SGD, torch.optim.AdamW):
            raise invalid("EDiT", f"outer_optim_class is {kind.__name__}; expected torch.optim.SGD or torch.optim.AdamW, or give "
                                  "outer_optimizer=\"callback\" and outer_step")
        clash = sorted(name for name in given if name.startswith("outer_"))
        if clash:
            raise invalid("EDiT", f"both {clash[0]} and outer_optim_class are given")
        given["outer_optimizer"] = kind.__name__.lower()
        names = _OUTER[kind.__name__]
        for name, value in {**_OUTER_DEFAULTS[kind.__name__], **(arguments or {})}.items():
            if name not in names:
                raise invalid("EDiT", f"outer_optim_kwargs has {name!r}, which the outer {kind.__name__} does not have")
            given.update(zip(names[name], value if name == "betas" else (value,)))
    known = [field.name for field in dataclasses.fields(EditConfig)]
    for name in given:
        if name not in known:
            raise invalid("EDiT", f"no option is called {name!r}; the options are {', '.join(known)}, use_local_sgd, "
                                  "outer_optim_class, outer_optim_kwargs")
    return dataclasses.replace(config or EditConfig(), **given)


class EDiT:
    """EDiT (arXiv 2412.07210) around a module and its optimizer. Each replica is one process, or, for a model that fully_shard
    has sharded, the processes of fully_shard's mesh.

    The constructor is collective over `comm`. It moves the parameters into one flat array per layer; the Parameter objects,
    their names and shapes stay. It copies the parameters, buffers and frozen parameters of replica 0 to all replicas. From
    then on

        a forward pass of the model in training mode, with gradients enabled, begins an exchange when one is due, and each
            layer waits for its part of the exchange before its own forward pass;
        a backward pass averages gradients over all replicas while warm-up lasts;
        optimizer.step() counts a step. A step that GradScaler skips does not count.

    model         a module on the CPU, f32 or bf16; after fully_shard, before the first forward pass
    optimizer     steps the model's parameters; any optimizer
    config, options
                  entrain.EditConfig, and its fields by keyword, which go before those in `config`. outer_optim_class
                  (torch.optim.SGD or AdamW) with outer_optim_kwargs is another way to give outer_optimizer and outer_*
    comm          all processes; None: Comm.from_env(), which close() then closes. The first M ranks are replica 0 and so on
    layers        the modules whose parameters are exchanged together, in the order of the forward pass; None: the modules
                  given to fully_shard, or the children of the largest ModuleList or Sequential. The rest is a layer of its own
    gather_ahead  how many layers ahead of use the model's sharding gathers: as many modules as set_modules_to_forward_prefetch
                  names. 0: none

    One thread at a time. Other ranks' failures surface as entrain.Error from the forward pass. What rewrites parameters goes
    through them (`param.copy_`, load_state_dict without assign); .to() and .data after construction are an error at the next
    exchange. Buffers, such as statistics of a batch norm, are not exchanged."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: Optional[EditConfig] = None, *,
                 comm: Optional[Comm] = None, layers: Optional[Sequence[nn.Module]] = None, gather_ahead: int = 0,
                 **options: Any) -> None:
        settings = _config(config, options)
        self.model = model
        self.optimizer = optimizer
        self._layers = layers_of(model, layers)
        dtype = dtype_of(self._layers)
        sharding = sharding_of(self._layers)
        self._fsdp = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._own_comm = comm is None
        self.comm = Comm.from_env() if comm is None else comm
        self._mesh = Mesh(self.comm, shard=sharding.size)
        self._sync = self._mesh.comm("sync")
        #: How many replicas there are, and which of them this process belongs to.
        self.replicas, self.replica = self._sync.size, self._sync.rank
        self._check_sharding(sharding.ranks)
        for layer in self._layers:
            layer.bind(dtype)
        kind = "f32" if dtype == torch.float32 else "bf16"
        self._shard = Shard(self._mesh, [sharding.size * layer.flat.numel() for layer in self._layers], param_dtype=kind,
                            grad_dtype=kind, segments=[layer.segments for layer in self._layers])
        self._shard.bind_layers([layer.flat if layer.flat.numel() else None for layer in self._layers])
        self._start_alike()
        self._edit = Engine(self._mesh, self._shard, settings)
        self._accumulation = settings.gradient_accumulation_steps
        self._has_anchors = settings.outer_optimizer != "none" or settings.reducer != "none"
        self._microbatches = 0  # forward passes of the step under way
        self._pending = [False] * len(self._layers)
        self._exchanging = False  # any of these
        self._gather_ahead = gather_ahead
        self._warm = False
        self._warm_hooks: List[Any] = []
        self._flat_gradients: Optional[Tensor] = None
        self._all_computed = False
        self._hooks: List[Any] = []
        self._attach()

    # ---- making ----------------------------------------------------------------------------------------------------------

    def _check_sharding(self, ranks: Tuple[int, ...]) -> None:
        if not ranks:
            return
        mine = np.array([torch.distributed.get_rank()], np.int64)
        found = self._mesh.comm("shard").all_gather(mine).ravel().tolist()
        if tuple(found) != ranks:
            raise invalid("EDiT", f"fully_shard's mesh has the ranks {list(ranks)} of torch.distributed, and the replica of this rank "
                                  f"in `comm` consists of {found}; expected the same ranks in the same order")

    def _start_alike(self) -> None:
        self._shard.broadcast()
        others = [param for param in self.model.parameters() if not param.requires_grad]
        for tensor in [*others, *self.model.buffers()]:
            local = local_of(tensor.detach())
            if local.numel():
                whole = local.contiguous()
                self._sync.broadcast(whole, root=0)
                if whole is not local:
                    local.copy_(whole)
        self._reshard()

    def _attach(self) -> None:
        hooks = self._hooks
        for index, layer in enumerate(self._layers):
            if layer.module is not self.model:
                hooks.append(layer.module.register_forward_pre_hook(self._layer_hook(index), prepend=True))
        hooks.append(self.model.register_forward_pre_hook(self._before_forward, prepend=True))
        hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
        hooks.append(self.optimizer.register_step_post_hook(self._after_step))

    # ---- the hooks of a step -----------------------------------------------------------------------------------------------

    def _layer_hook(self, index: int) -> Any:
        def before_layer(module: nn.Module, args: Any) -> None:
            if self._exchanging:
                self._wait(index)

        return before_layer

    def _wait(self, index: int) -> None:
        for layer in range(index, min(len(self._layers), index + 1 + self._gather_ahead)):
            if self._pending[layer]:
                self._edit.wait_layer(layer)
                self._pending[layer] = False
        self._exchanging = any(self._pending)

    def _wait_all(self) -> None:
        if self._exchanging:
            for index in range(len(self._layers)):
                self._wait(index)

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._begin()

    def _begin(self) -> None:
        self._wait_all()
        first = self._microbatches % self._accumulation == 0
        syncing = self._edit.begin_forward(first_microbatch=first)
        self._microbatches = 1 if first else self._microbatches + 1
        if first:
            warm = self.replicas > 1 and self._edit.gradient_scope() == "global"
            if warm != self._warm:
                self._set_warm(warm)
        if syncing:
            for layer in self._layers:
                layer.check_bound()
            self._reshard()
            self._pending = [True] * len(self._layers)
            self._exchanging = True
            if self._layers[0].module is self.model:
                self._wait(0)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._wait_all()  # of modules that took no part in the forward pass

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # Of an optimizer that finds out itself, GradScaler has asked it to skip the step.
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        self._edit.end_step()
        self._microbatches = 0

    def _reshard(self) -> None:
        """fully_shard may hold gathered parameters from a pass without gradients; they must be gathered anew."""
        for module in self._fsdp:
            module.reshard()

    # ---- gradients during warm-up ----------------------------------------------------------------------------------------

    def _set_warm(self, warm: bool) -> None:
        """Averages gradients over replicas in backward passes from now on, or no longer."""
        self._warm = warm
        for hook in self._warm_hooks:
            hook.remove()
        self._warm_hooks = []
        if self._fsdp:
            for module in self._fsdp:
                module.set_all_reduce_hook(self._average if warm else _keep)
        elif warm:
            params = [param for layer in self._layers for _, param in layer.params]
            self._warm_hooks.append(torch.autograd.graph.register_multi_grad_hook(params, self._gradients_computed))
            # The last gradient is added to its parameter after the hook above.
            self._warm_hooks += [param.register_post_accumulate_grad_hook(self._gradient_added) for param in params]
        if not warm:
            self._flat_gradients = None

    def _average(self, gradients: Tensor) -> None:
        whole = gradients.contiguous()
        self._sync.all_reduce(whole, op="avg")
        if whole is not gradients:
            gradients.copy_(whole)

    def _gradients_computed(self, gradients: Any) -> None:
        self._all_computed = True

    def _gradient_added(self, param: Tensor) -> None:
        if self._all_computed:
            self._all_computed = False
            # An average of averages is the average: it does no harm that a step may have several backward passes.
            if self._microbatches == self._accumulation:
                self._average_gradients()

    @torch.no_grad()
    def _average_gradients(self) -> None:
        params = [param for layer in self._layers for _, param in layer.params]
        count = sum(param.numel() for param in params)
        if self._flat_gradients is None:
            self._flat_gradients = torch.from_numpy(self.comm.alloc(count + len(params), "f32"))
        flat = self._flat_gradients
        # The last elements say for how many replicas the parameter has a gradient.
        present = flat[count:]
        offset = 0
        for index, param in enumerate(params):
            part = flat[offset:offset + param.numel()]
            if param.grad is None:
                part.zero_()
                present[index] = 0
            else:
                part.copy_(param.grad.reshape(-1))
                present[index] = 1
            offset += param.numel()
        self._sync.all_reduce(flat, op="avg")
        somewhere = (present > 0).tolist()
        offset = 0
        for index, param in enumerate(params):
            if somewhere[index]:
                part = flat[offset:offset + param.numel()].view(param.shape)
                if param.grad is None:
                    param.grad = part.to(param.dtype, copy=True)
                else:
                    param.grad.copy_(part)
            offset += param.numel()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clips the gradients of this replica (during warm-up, of all replicas' mean) like torch.nn.utils.clip_grad_norm_, and
        returns their norm before. Call it between the last backward pass and optimizer.step(), after
        GradScaler.unscale_. Collective over the replica."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    # ---- asking and telling ------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The library's object, to be asked and told: layer_report, layer_score, replica, record, wish, request_sync, add_state.
        Layers are numbered as in layer_names. Its begin_forward, wait_layer and end_step are for the hooks alone."""
        return self._edit

    @property
    def info(self) -> EditInfo:
        """What has happened so far, as of the last exchange that is over. Local."""
        return self._edit.info()

    @property
    def layer_names(self) -> List[str]:
        """The layers' names, in the order of the forward pass; "the model" is what lies in no other layer."""
        return [layer.name for layer in self._layers]

    def record(self, tokens: int, metric: float = 0.0, weight: float = 0.0) -> None:
        """Tells how many tokens this rank has trained on since the last call, and a metric, such as the loss, with its weight.
        Both travel with the next rendezvous of A-EDiT; `info.metric` is then the mean over all replicas. Local."""
        self._edit.record(tokens, metric, weight)

    def synchronize(self) -> None:
        """Exchanges now (not in warm-up, and not twice at one step): afterwards all replicas have the same parameters, where an
        exchange has replaced them. Between a step and the next forward pass. Collective; blocks."""
        self._edit.request_sync()
        self._microbatches = 0
        self._begin()
        self._microbatches = 0
        self._wait_all()

    def leave(self) -> None:
        """A-EDiT: this replica has made its last step. Takes part in the others' exchanges until all have left; the parameters are
        then the same everywhere. Collective over the replica; blocks. No training after."""
        self._wait_all()
        self._edit.leave()
        self._reshard()

    @contextlib.contextmanager
    def consensus(self) -> Iterator[None]:
        """Within the block the model has the parameters on which the replicas have agreed, for evaluation: the anchors of the
        last exchange; during warm-up the parameters themselves; with plain averaging the mean of all replicas, which is then
        collective. Between a step and the next forward pass in training mode, and none of these inside. Afterwards the
        model is as it was."""
        values = self._agreed()
        kept = [layer.flat.clone() for layer in self._layers]
        try:
            self._write(values)
            yield
        finally:
            self._write(kept)

    def _agreed(self) -> List[Tensor]:
        counts = [layer.flat.numel() for layer in self._layers]
        dtype = self._layers[0].flat.dtype
        if self._has_anchors and self.info.last_sync_step >= 0:
            slab = torch.empty(sum(counts), dtype=dtype)
            self._edit.anchor(slab)
        else:
            slab = torch.cat([layer.flat for layer in self._layers])
            if not self._has_anchors:
                mean = slab.float()
                self._sync.all_reduce(mean, op="avg")
                slab = mean.to(dtype)
        return list(slab.split(counts))

    @torch.no_grad()
    def _write(self, values: Sequence[Tensor]) -> None:
        for layer, value in zip(self._layers, values):
            layer.flat.copy_(value)
        self._reshard()

    # ---- checkpoints ---------------------------------------------------------------------------------------------------------

    def save(self, directory: "str | os.PathLike[str]", name: str = "local_sgd_ckpt", *, exact: bool = True,
             one_file: bool = True) -> None:
        """Exchanges, then saves `directory`/`name`.ckpt: parameters, anchors, outer state, detectors and counts; not the inner
        optimizer. exact: also what each replica has of its own, so that the run goes on bit for bit on the same mesh; otherwise
        other numbers of replicas can go on from it. one_file: rank 0 writes everything; otherwise each rank
        writes a file of its own. After warm-up, between a step and the next forward pass. Collective; blocks."""
        self.synchronize()
        self._edit.save(os.fspath(directory), name, kind="exact" if exact else "portable", one_file=one_file)

    def load(self, directory: "str | os.PathLike[str]", name: str = "local_sgd_ckpt", *, exact: bool = True) -> None:
        """Goes on from what `save` wrote; only rank 0 reads. With exact=False, a new inner optimizer is wanted. On an error
        everything is as before. Between a step and the next forward pass. Collective; blocks."""
        self._wait_all()
        self._edit.load(os.fspath(directory), name, kind="exact" if exact else "portable")
        self._microbatches = 0
        self._reshard()

    def state_dict(self, *, exact: bool = True) -> Dict[str, Any]:
        """What `save` would write, as bytes in rank 0's dictionary; for torch.save beside the states of model and optimizer. All
        of it passes through rank 0's memory and temporary directory: `save` is for large models. Collective; blocks."""
        with _shared_directory(self.comm) as directory:
            self.save(directory, "state", exact=exact)
            file = pathlib.Path(directory) / "state.ckpt"
            data = file.read_bytes() if self.comm.rank == 0 else b""
        return {"exact": exact, "checkpoint": torch.from_numpy(np.frombuffer(data, np.uint8).copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state_dict`; rank 0 needs what rank 0 got, and the others any state. Load the inner optimizer's state
        beside it. Collective; blocks."""
        with _shared_directory(self.comm) as directory:
            if self.comm.rank == 0:
                (pathlib.Path(directory) / "state.ckpt").write_bytes(state["checkpoint"].numpy().tobytes())
            self.load(directory, "state", exact=bool(state["exact"]))

    # ---- ending --------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Takes the hooks away and frees the library's objects; the model keeps its parameters as they are. A second call does
        nothing. Collective in so far as the others' next exchange fails."""
        for hook in [*self._hooks, *self._warm_hooks]:
            hook.remove()
        self._hooks, self._warm_hooks = [], []
        if self._warm:
            for module in self._fsdp:
                module.set_all_reduce_hook(_keep)
        self._edit.close()
        self._shard.close()
        self._mesh.close()
        if self._own_comm:
            self.comm.close()

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Any) -> None:
        self.close()


class AEDiT(EDiT):
    """A-EDiT: as EDiT, but replicas exchange when local_sgd_sync_time seconds have passed, so that a slow one does not hold up the
    others. A replica that ends calls `leave`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: Optional[EditConfig] = None, *,
                 comm: Optional[Comm] = None, layers: Optional[Sequence[nn.Module]] = None, gather_ahead: int = 0,
                 **options: Any) -> None:
        if not options.get("use_async", True):
            raise invalid("AEDiT", "use_async is false; take EDiT")
        options["use_async"] = True
        super().__init__(model, optimizer, config, comm=comm, layers=layers, gather_ahead=gather_ahead, **options)


def _keep(gradients: Tensor) -> None:
    """fully_shard's hook after warm-up: each replica keeps its own gradients."""


@contextlib.contextmanager
def _shared_directory(comm: Comm) -> Iterator[str]:
    """A temporary directory of rank 0's, whose path all ranks get; only rank 0 need see it."""
    with tempfile.TemporaryDirectory(prefix="entrain-") if comm.rank == 0 else contextlib.nullcontext("") as made:
        path = np.zeros(4096, np.uint8)
        encoded = made.encode()
        path[:len(encoded)] = np.frombuffer(encoded, np.uint8)
        comm.broadcast(path, root=0)
        yield path.tobytes().rstrip(b"\0").decode()
        comm.barrier()
