"""ACCO: gradients cross the network while the next ones are computed (entrain/train.h; arXiv 2406.02613).

for batch in data:
    ... acco.gradients += gradient of the sum over the micro-batch, at params ...
    acco.add(1, tokens)
    if acco.poll() and acco.install():
        break"""
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy.typing as npt

from ._library import NULL, ffi, lib, nanoseconds, new_struct
from ._launch import shown
from ._options import ACCO_FAMILIES, AccoNumbers, AccoOptions
from .arrays import DTypeLike, buffer_of, dtype_of
from .comm import Comm
from .errors import check, invalid
from .lifetime import Life, drop, inside, interruptible
from .optim import Optim
from .reductions import Callback, view
from .store import Store
from .train import _dataclass_of, _figures
from .training import Checkpointed, fill, identity_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: step(preview, step, lr, first, grads, master, out) handles elements [first, first + len(grads)) of this rank's shard.
#: A commit (preview False; out None) changes `master` in place. A preview writes to `out` and changes nothing else.
AccoStep = Callable[[bool, int, float, int, npt.NDArray[Any], npt.NDArray[Any], Optional[npt.NDArray[Any]]], object]


class AccoKeywords(AccoNumbers, total=False):
    """The keyword arguments of ACCO that entrain.torch.ACCO passes on."""

    grads_dtype: Optional[DTypeLike]
    wire_dtype: Optional[DTypeLike]
    schedule: Optional[Callable[[int], float]]
    timeout: Optional[float]
    admit_store: Optional[Store]
    admit_name: Optional[str]
    join: Optional[float]
    identity: Optional[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class AccoInfo:
    """The state after the last install (entrain_acco_info_t). Times in ns."""

    rounds: int
    commits: int
    gradients: int
    tokens: int
    dropped: int
    microbatches: int
    lr: float
    grad_norm: float
    clip_factor: float
    committed: int
    finished: int
    exposed_ns: int
    round_ns: int
    bytes_sent: int
    bytes_held: int
    ranks: int
    losses: int
    joins: int

    def as_dict(self) -> Dict[str, float]:
        """Returns the figures by name, times in seconds."""
        return _figures(self)


@dataclasses.dataclass(frozen=True)
class AccoLoss:
    """A rank that is lost (entrain_acco_loss)."""

    rank: int
    round: int
    why: str


@dataclasses.dataclass(frozen=True)
class AccoGroup:
    """Elements [first, first + count) of the parameters, with their own optimizer (None: the channel's) and their own
    factor of the learning rate."""

    first: int
    count: int
    optim: Optional[Optim] = None
    lr_scale: float = 1.0


class ACCO(Checkpointed):
    """A channel that takes gradients and returns parameters one round later. The optimizer's state and the f32
    masters are sharded over the ranks."""

    _what = "ACCO channel"
    _kind = "acco"

    def __init__(self, comm: Comm, params: Any, optim: Optional[Optim] = None, *, step: Optional[AccoStep] = None,
                 groups: Sequence[AccoGroup] = (), grads_dtype: Optional[DTypeLike] = None,
                 wire_dtype: Optional[DTypeLike] = None, schedule: Optional[Callable[[int], float]] = None, timeout: Optional[float] = None,
                 admit_store: Optional[Store] = None, admit_name: Optional[str] = None, join: Optional[float] = None,
                 identity: Optional[Mapping[str, Any]] = None, **options: "Unpack[AccoNumbers]") -> None:
        """Collective over `comm`. All arguments are equal on all ranks, except params, step and timeout.

        params       flat, f32 or bf16 (f64 with `step`). All ranks start with rank 0's values. install writes it. Kept
                     alive until the channel is closed
        optim, step  one of them: an optimizer of the library, or a function of the caller. The function runs on the
                     channel's thread and must not call the library. Its exception ends the channel with Aborted
        groups       disjoint and ascending. Elements that are in no group are stepped by `optim`, which may be None if
                     every element is in a group
        schedule     the learning rate as a function of the progress; replaces the options lr, min_lr and schedule_*
        admit_store  the store in which newcomers apply (admit), under admit_name; None: the store of the launcher
        join         this rank joins others that train with admit="exchange". The call waits for at most this number of
                     seconds until they take it in (entrain_acco_join). `comm` then has this rank alone, and was made in
                     the others' store under a name of its own
        identity     what makes this run what it is (the data, the seed, the batch size); ranks of another run are refused
        options      fields of AccoOptions: ACCO(comm, params, optim, method="dpu", lr=0.01)
        """
        if (optim is None and not groups) == (step is None):
            raise invalid("ACCO", "one of optim and step is needed")
        buffer = buffer_of("ACCO", "params", params, writable=True)
        config = new_struct("acco_config")
        fill(config, AccoOptions(**options), ACCO_FAMILIES)
        config.params, config.count, config.params_dtype = buffer.pointer, buffer.count, buffer.dtype
        config.grads_dtype = -1 if grads_dtype is None else dtype_of(grads_dtype)
        config.wire_dtype = -1 if wire_dtype is None else dtype_of(wire_dtype)
        config.timeout_ns = nanoseconds(timeout)
        structs = NULL if not groups else ffi.new("entrain_acco_group_t[]", len(groups))
        for index, group in enumerate(groups):
            structs[index].first, structs[index].count, structs[index].lr_scale = group.first, group.count, group.lr_scale
        config.groups, config.group_count = structs, len(groups)
        name = NULL if admit_name is None else ffi.new("char[]", admit_name.encode())
        config.admit_name = name
        who = NULL if identity is None else ffi.new("char[]", identity_text(identity))
        config.identity = who
        callbacks: List[Callback] = []
        if step is not None:
            callbacks.append(self._step_callback(step, int(buffer.dtype)))
            config.step = callbacks[-1].pointer
        if schedule is not None:
            rate = schedule
            callbacks.append(Callback(lambda user, progress: float(rate(progress)), "entrain_acco_schedule_fn"))
            config.schedule = callbacks[-1].pointer
        out = ffi.new("entrain_acco_t**")

        def call(kept: Any = (name, who)) -> Life:  # keeps them alive during the call
            with inside(comm, optim, admit_store, *(group.optim for group in groups)) as (handle, config.optim,
                                                                                          config.admit_store, *optims):
                for index, own in enumerate(optims):
                    structs[index].optim = own
                if join is None:
                    check(lib.entrain_acco_create(handle, config, out))
                else:
                    with shown():
                        check(lib.entrain_acco_join(handle, config, nanoseconds(join), out))
                return Life(out[0], lib.entrain_acco_destroy, comm._life, held=[buffer, *callbacks])

        super().__init__(interruptible(call, drop), callbacks)
        pointer = ffi.new("void**")
        self._call(lib.entrain_acco_gradients, pointer)
        kind = buffer.dtype if grads_dtype is None else dtype_of(grads_dtype)
        #: The accumulator of gradients, in the library's memory. The caller may only add to it. Valid until the channel
        #: is closed.
        self.gradients: npt.NDArray[Any] = view(pointer[0], buffer.count, kind)

    @staticmethod
    def _step_callback(step: AccoStep, params_dtype: int) -> Callback:
        kind = lib.ENTRAIN_F64 if params_dtype == lib.ENTRAIN_F64 else lib.ENTRAIN_F32

        def called(user: Any, preview: int, number: int, lr: float, first: int, count: int, grads: Any, master: Any,
                   out: Any) -> None:
            step(bool(preview), number, lr, first, view(grads, count, kind), view(master, count, kind),
                 view(out, count, kind) if preview else None)

        return Callback(called, "entrain_acco_step_fn")

    def add(self, microbatches: int = 1, tokens: int = 0) -> None:
        """Tells the channel that the gradients of `microbatches` micro-batches, with `tokens` tokens, have been
        added. Local."""
        self._call(lib.entrain_acco_add, microbatches, tokens)

    def poll(self) -> bool:
        """Returns True if install would not wait for other ranks, or if the caller must call install now. Never
        blocks."""
        ready = ffi.new("int32_t*")
        self._call(lib.entrain_acco_poll, ready)
        return bool(ready[0])

    def install(self) -> bool:
        """Waits for the current round, installs its parameters, and starts the next round with the gradients that
        have been added. Returns True if the run is over."""
        finished = ffi.new("int32_t*")
        self._watch(lib.entrain_acco_work, counts="exposed_ns")
        self._call(lib.entrain_acco_install, finished)
        return bool(finished[0])

    def stop(self) -> None:
        """Ends the run at the first commit that learns of this call. Local; any rank may call it."""
        self._call(lib.entrain_acco_stop)

    def info(self) -> AccoInfo:
        """Returns the state after the last install."""
        out = new_struct("acco_info")
        self._call(lib.entrain_acco_info, out)
        return _dataclass_of(AccoInfo, self._told(out))  # type: ignore[no-any-return]

    def losses(self) -> List[AccoLoss]:
        """Returns the ranks that were lost before the last round, in the order in which this rank learned of them."""
        rank, round_, text, losses = ffi.new("int32_t*"), ffi.new("int64_t*"), ffi.new("char[]", 2000), []
        for index in range(self.info().losses):
            self._call(lib.entrain_acco_loss, index, rank, round_, text, len(text))
            losses.append(AccoLoss(rank[0], round_[0], ffi.string(text).decode(errors="replace")))
        return losses
