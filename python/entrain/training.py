"""What the training objects share: calls that block, checkpoints, state of the caller's."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, ClassVar, List, Mapping, Optional

from ._library import NULL, ffi, lib, nanoseconds, new_struct
from .arrays import buffer_of
from .errors import Aborted, Error, check
from .lifetime import Handle, interruptible
from .reductions import Callback, constant


class Trained(Handle):
    """An object of entrain/train.h. One thread at a time. Calls that wait for other ranks are made by a helper thread when
    they come from the main thread, so that Ctrl-C is noticed at once; the call then goes on there, and the object must
    only be closed."""

    def __init__(self, handle: Any, destroy: Callable[[Any], None], *needs: Handle) -> None:
        self._held: List[Any] = []
        self._callbacks: List[Callback] = []
        super().__init__(handle, destroy, *needs)

    def _check(self, status: int) -> None:
        try:
            check(status)
        except Aborted as error:
            self._blame(error)
            raise

    def _wait(self, call: Callable[[], int]) -> None:
        self._open()
        try:
            interruptible(call)
        except Aborted as error:
            self._blame(error)
            raise

    def _blame(self, error: Error) -> Error:
        for callback in self._callbacks:
            callback.blame(error)
        return error


class Checkpointed(Trained):
    """Checkpoints (entrain_edit_save and so on in entrain/train.h has the whole contract)."""

    _kind: ClassVar[str]

    def add_state(self, name: str, array: Any, *, per_rank: bool = True) -> None:
        """Makes `array` part of the state: saved from there, loaded to there; kept until this object is closed. All ranks
        name the same arrays. per_rank: each rank's own, in exact checkpoints only; else the same on all ranks, kept
        once, in both kinds."""
        buffer = buffer_of("add_state", "array", array, writable=True)
        function = getattr(lib, f"entrain_{self._kind}_add_state")
        check(function(self._open(), name.encode(), buffer.pointer, buffer.count, buffer.dtype,
                       lib.ENTRAIN_STATE_RANK if per_rank else lib.ENTRAIN_STATE_ALL))
        self._held.append(buffer)

    def save(self, directory: Optional[str] = None, name: Optional[str] = None, *, kind: str = "portable",
             one_file: bool = True, timeout: Optional[float] = None) -> None:
        """Saves to directory/name.ckpt ("local_sgd_ckpt" both by default). kind: "portable" (any number of replicas and
        ranks can go on from it) or "exact" (the same mesh goes on with the same bits). one_file: rank 0 writes all;
        else each rank a file of its own. Collective; whole or not at all."""
        self._checkpoint("save", directory, name, kind, timeout, full_state_dict=one_file)

    def load(self, directory: Optional[str] = None, name: Optional[str] = None, *, kind: str = "portable",
             rank0_only: bool = True, timeout: Optional[float] = None) -> None:
        """Goes on from a checkpoint. rank0_only: rank 0 reads and sends; else each rank reads what it needs. Collective;
        everything is checked before anything changes."""
        self._checkpoint("load", directory, name, kind, timeout, rank0_only=rank0_only)

    def _checkpoint(self, verb: str, directory: Optional[str], name: Optional[str], kind: str, timeout: Optional[float],
                    **options: bool) -> None:
        config = new_struct("checkpoint_config")
        texts = [NULL if text is None else ffi.new("char[]", text.encode()) for text in (directory, name)]
        config.save_dir, config.ckpt_name = texts
        config.kind, config.timeout_ns = constant("CHECKPOINT", kind, "kind"), nanoseconds(timeout)
        for option, value in options.items():
            setattr(config, option, value)
        function, handle = getattr(lib, f"entrain_{self._kind}_{verb}"), self._open()

        def call(texts: Any = texts) -> int:  # they live as long as the call
            return int(function(handle, config))

        self._wait(call)


def fill(struct: Any, options: Any, families: Mapping[str, str]) -> None:
    """Writes the fields of a dataclass that are not None into a struct; `families`: those that name constants."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None or not hasattr(struct, field.name):
            continue
        setattr(struct, field.name, constant(families[field.name], value, field.name) if field.name in families else value)
