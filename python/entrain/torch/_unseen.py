"""Functions of torch that look for gradients in param.grad, where those of ACCO never lie. Without this they would do nothing, or the
wrong thing, silently: clip_grad_norm_ and its like, and GradScaler.scale."""
from __future__ import annotations

import collections
import functools
import sys
import threading
import warnings
import weakref
from typing import Any, Callable, Deque, Dict, Iterable, List, Tuple

import torch
from torch import Tensor

from .._library import lib
from ..errors import ErrorRecord, FailedPrecondition

#: Open ACCO objects by the ids of their parameters. An object keeps its parameters, so an id stays theirs as long as it is here.
_owners: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_lock = threading.Lock()
#: How to undo the watching of each function.
_undo: List[Callable[[], None]] = []
#: Whether this thread is inside a watched function, which calls others of them.
_inside = threading.local()
#: The backward passes that began at a scaled loss, by the engine's numbers. No number is used twice, so old ones do no harm.
_scaled: "Deque[int]" = collections.deque(maxlen=64)
_pass_number: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)

_CLIPPED = ("{} would find no gradients: those of ACCO's parameters never lie in param.grad, so it would clip nothing and tell the norm 0. "
            "Leave the call out (Lightning: no gradient_clip_val; Trainer: max_grad_norm=0), and give ACCO clip_norm, which limits the "
            "norm of each round's mean gradient over all ranks; acco.info.grad_norm has this norm. ACCO does not clip by value")
_SCALED = ("the gradients come from GradScaler.scale, and ACCO would add them with the scale: it knows no scale, and its steps skip no "
           "overflow. Make the scaler with enabled=False, and use bfloat16 or float32, which need no scaler")


def _refused(text: str) -> FailedPrecondition:
    return FailedPrecondition(ErrorRecord(code=lib.ENTRAIN_FAILED_PRECONDITION, text=text))


def watch_gradients(acco: Any, params: Iterable[Tensor]) -> None:
    """From here on torch's functions refuse the parameters, until `forget_gradients`."""
    with _lock:
        _owners.update({id(param): acco for param in params})
        if not _undo:
            _watch_clipping()
        _watch_scale()


def forget_gradients(acco: Any) -> None:
    with _lock:
        for key in [key for key, owner in _owners.items() if owner is acco]:
            _owners.pop(key, None)
        if not _owners:
            while _undo:
                _undo.pop()()


def check_unscaled() -> None:
    """Must be called by the hook of a gradient: refuses one that GradScaler has scaled."""
    if _scaled and _pass_number() in _scaled:
        raise _refused(_SCALED)


def _watch_clipping() -> None:
    module: Any = sys.modules["torch.nn.utils.clip_grad"]
    for name in ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_", "_get_total_norm"):
        function = getattr(module, name, None)
        if function is None:
            continue
        public = name.strip("_") if name == "_get_total_norm" else name.lstrip("_")
        check = _warn_of_none if name == "_get_total_norm" else _refuse_bound
        # torch wraps the function in no_grad. A program that has imported the name already has the wrapper, so the function inside is
        # replaced.
        cells: Dict[str, Any] = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        if "func" in cells:
            cell, inner = cells["func"], cells["func"].cell_contents
            _undo.append(functools.partial(setattr, cell, "cell_contents", inner))
            cell.cell_contents = _checked(inner, public, check)
        else:
            for place, known in ((module, name), (torch.nn.utils, public)):
                _undo.append(functools.partial(setattr, place, known, function))
                setattr(place, known, _checked(function, public, check))


def _checked(function: Callable[..., Any], name: str, check: Callable[[str, List[Any]], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "yes", False):
            return function(*args, **kwargs)
        if args:
            found, again = _listed(args[0])
            args = (again, *args[1:])
        else:
            key = "parameters" if "parameters" in kwargs else "tensors"
            found, kwargs[key] = _listed(kwargs.get(key, ()))
        check(name, found)
        _inside.yes = True
        try:
            return function(*args, **kwargs)
        finally:
            _inside.yes = False

    return checked


def _listed(tensors: Any) -> Tuple[List[Any], Any]:
    """Returns the tensors, and what stands for `tensors`, which may be a generator and is then at its end."""
    if isinstance(tensors, Tensor):
        return [tensors], tensors
    found = list(tensors)
    return found, tensors if isinstance(tensors, (list, tuple)) else (one for one in found)


def _refuse_bound(name: str, params: List[Any]) -> None:
    if any(id(param) in _owners for param in params):
        raise _refused(_CLIPPED.format(name))


def _warn_of_none(name: str, tensors: List[Any]) -> None:
    """Whose gradients these are, an empty list does not say."""
    if not tensors and len(_owners):
        warnings.warn(_CLIPPED.format(name), stacklevel=4)


def _watch_scale() -> None:
    scaler: Any = torch.amp.GradScaler
    if getattr(scaler.scale, "_tells_entrain", False):
        return
    scale = scaler.scale

    @functools.wraps(scale)
    def scale_and_tell(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if self.is_enabled() and len(_owners):
            _note_passes_from(result)
        return result

    scale_and_tell._tells_entrain = True  # type: ignore[attr-defined]
    scaler.scale = scale_and_tell


def _note_passes_from(losses: Any) -> None:
    if isinstance(losses, Tensor):
        if losses.requires_grad:
            losses.register_hook(lambda gradient: _scaled.append(_pass_number()))
    elif isinstance(losses, (list, tuple)):
        for loss in losses:
            _note_passes_from(loss)
