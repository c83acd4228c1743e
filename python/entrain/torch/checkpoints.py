"""Whole checkpoints of a job with EDiT: the exchange, and of each rank the inner optimizer, schedulers, data and random numbers.

    checkpoints = entrain.torch.Checkpoints(edit, "checkpoints", every=100, keep=3, states={"scheduler": scheduler})
    step = checkpoints.resume()
    while step < steps:
        ...                     # forward, backward, optimizer.step(), scheduler.step()
        step += 1
        checkpoints.step()"""
from __future__ import annotations

import contextlib
import json
import os
import random
import re
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np
import torch

from ..checkpoints import broadcast_text, check_keep, checkpoints_in, remove_old_checkpoints, resume_from
from ..comm import Comm
from ..errors import FailedPrecondition, invalid
from ._joining import check_states, give_buffers, give_states, states_of
from .edit import EDiT, _misplaced

_WARMUP = "entrain checkpoint of a warm-up"
_FILE = re.compile(r"(?P<of>step-\d+)_(?P<rank>\d{4,})_(?P<token>[0-9a-f]{8})\.pt(\.part)?")  # of a rank


class Checkpoints:
    """Saves a job at the replicas' exchanges, and resumes it. If the job continues with the same replicas, it has the bits of a job
    that was not interrupted. With another number of replicas, each replica takes the optimizer's state of a saved replica, so no
    replica begins without such a state.

    edit        the EDiT or AEDiT object. Not with quorum or round_deadline, because then replicas do not come together at an exchange.
                With overlap_steps not with admit
    directory   a directory that all ranks see. Checkpoints are named step-STEPS. A checkpoint is a file NAME.ckpt, which EDiT.save
                writes (in warm-up a text file), and beside it a file for each rank. NAME.ckpt is written last, so a checkpoint is
                whole or absent
    every       asks for a save when the number of steps has passed a multiple of this number; 0: only `save` and `save_soon` save
    keep        the number of checkpoints that stay; None: all
    states      objects with state_dict and load_state_dict, by name, whose state any replica may take over from another one, such as
                learning-rate schedulers. The inner optimizer is always among them, as "optimizer"
    data        such objects whose state belongs to a replica's number, such as data loaders (StatefulDataLoader) or samplers. With
                another number of replicas they stay as they are, and a warning says so: set their position by the steps that `resume`
                returns
    overwrite   removes the checkpoints of an earlier run at the first save. Without it, a run that has not called `resume` refuses to
                save into a directory with checkpoints

    The files also have the buffers and the states of torch's random number generators. They do not have the generators of NumPy and
    Python: give these in `data`. Frozen parameters are not saved. Thread safety: one thread, that of `edit`."""

    def __init__(self, edit: EDiT, directory: "str | os.PathLike[str]", *, every: int = 0, keep: Optional[int] = None,
                 states: Optional[Mapping[str, Any]] = None, data: Optional[Mapping[str, Any]] = None, overwrite: bool = False) -> None:
        if not isinstance(edit, EDiT):
            raise invalid("Checkpoints", f"the first argument is {type(edit).__name__}; expected an EDiT object (ACCO.save may be called "
                                         "at any commit; for its own states see ACCO.channel.add_state)")
        if every < 0:
            raise invalid("Checkpoints", f"every is {every}; expected 0 or more")
        check_keep("Checkpoints", keep)
        if edit._closes_early:
            raise invalid("Checkpoints", "quorum or round_deadline is set: replicas do not come together at an exchange; call "
                                         "edit.synchronize() and edit.save() on all ranks")
        if edit._overlaps and edit._admits:
            raise invalid("Checkpoints", "admit with overlap_steps: a newcomer does not learn at which exchange the others save; call "
                                         "edit.synchronize() and edit.save() on all ranks")
        self._edit = edit
        self._directory = os.fspath(directory)
        self._every, self._keep, self._overwrite = every, keep, overwrite
        self._states = {"optimizer": edit.optimizer, **check_states("Checkpoints", "states", states)}
        self._data = check_states("Checkpoints", "data", data)
        if set(self._data) & set(self._states):
            raise invalid("Checkpoints", f"states and data both have {sorted(set(self._data) & set(self._states))}")
        self._model = edit._mesh.comm("model")
        # In the checkpoint: which files beside it belong to it, the number of ranks per replica, and the number of files.
        self._stamp = np.zeros(3, np.int64)
        edit.engine.add_state("entrain.torch/files", self._stamp, per_rank=False)
        self._last = edit.info.steps  # at the last save
        self._continues = edit._joined

    # ---- saving --------------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Must be called at the end of each step, after optimizer.step() and the scheduler's step, on all ranks. Begins the next step
        (begin_step), and saves if a save is due and the replicas exchange. In warm-up saves at once. Returns whether it saved.
        Waits for the exchange, but with overlap_steps. Collective."""
        edit = self._edit
        edit._end_skipped_step()
        info = edit.info
        wanted = self._every > 0 and info.steps // self._every > self._last // self._every
        if info.in_warmup:
            # Replicas make equal steps, so all of them want it.
            if wanted:
                self._write_warmup()
            return wanted
        # Where the anchors are made, and with overlap_steps, all replicas want it too. Elsewhere the exchange tells them.
        alike = edit._overlaps or info.last_sync_step < 0
        if wanted and not alike:
            edit.wish_checkpoint()
        here = edit.begin_step()
        due = here and (wanted if alike else edit.checkpoint_due)
        if due:
            self._write()
        edit._wait_all()  # what follows may read parameters (an average of weights)
        return due

    def save_soon(self) -> None:
        """Asks all ranks to save at the next exchange, in their `step`; for example after a signal that the machine will be taken
        away. Refused in warm-up, where replicas do not exchange, and with overlap_steps. Local; any rank."""
        in_warmup = 0
        with contextlib.suppress(FailedPrecondition):  # a signal handler may run while the step begins, after warm-up
            in_warmup = self._edit.info.in_warmup
        if in_warmup:
            raise _misplaced("save_soon: in warm-up no exchange tells the other ranks; call save on all ranks, or set every")
        self._edit.wish_checkpoint()

    def save(self, directory: "str | os.PathLike[str] | None" = None) -> str:
        """Saves now, between a step and the next forward pass, and returns the checkpoint's name. If no exchange is due here, the
        replicas exchange first (synchronize). So the run then continues with other values than without this call. `directory` replaces
        the constructor's from now on. Collective; blocks."""
        edit = self._edit
        self._directory = self._directory if directory is None else os.fspath(directory)
        edit._end_skipped_step()
        if edit.info.in_warmup:
            return self._write_warmup()
        if not (edit._exchanged or edit._is_at_exchange()) or edit._overlaps:
            edit.synchronize()
        return self._write()

    def _write(self) -> str:
        edit = self._edit
        edit._wait_all()
        name = self._begin_to_save(lambda values: edit.engine.reduce(values).values, self._is_first)
        edit.save(self._directory, name, overwrite=True)
        self._clean(name, self._is_first())
        return name

    def _is_first(self) -> bool:
        """Whether this rank is the first of those that live. Collective."""
        return self._edit.engine.reduce([]).rank == 0

    def _write_warmup(self) -> str:
        edit = self._edit

        def total(values: List[float]) -> List[float]:
            return edit.comm.all_reduce(np.array(values, np.float64)).tolist()  # type: ignore[no-any-return]

        first = edit.comm.rank == 0
        name = self._begin_to_save(total, lambda: first)
        error = None
        if first:
            error = self._try(lambda: _replace(os.path.join(self._directory, name + ".ckpt"), lambda path: _dump(path, {
                _WARMUP: edit.info.steps, "stamp": self._stamp.tolist()})))
        self._agree(total, error)
        self._clean(name, first)
        return name

    def _begin_to_save(self, total: Callable[[List[float]], List[float]], is_first: Callable[[], bool]) -> str:
        """Writes this rank's file, and returns the checkpoint's name. `total` adds values over the ranks."""
        edit, token = self._edit, 0
        while token == 0:  # the first rank was lost before it said the number
            mine: List[float] = [0.0] * 3
            if is_first():
                earlier = 0 if self._continues else len(checkpoints_in(self._directory))
                # With A-EDiT each replica has made another number of steps.
                mine = [edit.info.steps, random.SystemRandom().randrange(1, 1 << 32), earlier]
            steps, token, earlier = map(int, total(mine))
        if earlier and not self._overwrite:
            raise _misplaced(f"save: {self._directory} has {earlier} checkpoints of an earlier run; call resume before the first step, "
                             "take another directory, or set overwrite=True")
        name = f"step-{steps:08d}"
        self._stamp[:2] = token, self._model.size
        path = self._path(name, edit.replica * self._model.size + self._model.rank)

        def write() -> None:
            state: Dict[str, Any] = {"states": states_of(self._states), "data": states_of(self._data),
                                     "buffers": dict(edit.model.named_buffers()), "random": _random_states(self._device())}
            if edit.info.in_warmup:
                state["parameters"] = [layer.flats for layer in edit._layers]
            os.makedirs(self._directory, exist_ok=True)
            _replace(path, lambda part: torch.save(state, part))

        self._stamp[2] = self._agree(total, self._try(write))
        self._last = edit.info.steps
        return name

    def _try(self, write: Callable[[], None]) -> Optional[Exception]:
        try:
            write()
        except Exception as error:  # of the disk, of pickle, or of a state_dict: the other ranks wait
            return error
        return None

    def _agree(self, total: Callable[[List[float]], List[float]], error: Optional[Exception]) -> int:
        """Returns the number of ranks that have written. Raises an error on all ranks if one of them has one."""
        failed, ranks = map(int, total([float(error is not None), 1]))
        if error is not None:
            raise error
        if failed:
            raise _misplaced(f"save: {failed} other ranks could not write their files; their own errors say why. The checkpoints that were "
                             "there are unchanged")
        return ranks

    def _clean(self, name: str, first: bool) -> None:
        """Removes the checkpoints that are not to stay, and what earlier saves have left of this one."""
        keep = self._keep if self._continues else 1
        self._continues = True
        if first:
            whole = checkpoints_in(self._directory)
            for entry in list(os.scandir(self._directory)):
                file = _FILE.fullmatch(entry.name)
                if file and (file["of"] not in whole or file["of"] == name and int(file["token"], 16) != self._stamp[0]):
                    os.unlink(entry.path)
            if keep is not None:
                remove_old_checkpoints(self._directory, keep, name)

    def _path(self, name: str, rank: int) -> str:
        return os.path.join(self._directory, f"{name}_{rank:04d}_{int(self._stamp[0]):08x}.pt")

    def _device(self) -> torch.device:
        return self._edit._layers[0].flats[0].device

    # ---- resuming --------------------------------------------------------------------------------------------------------------

    def resume(self, directory: "str | os.PathLike[str] | None" = None) -> int:
        """Continues from the newest whole checkpoint, and returns the number of steps that this replica has made. Returns 0 if there
        is no checkpoint; the run then begins. A newcomer (join) has nothing to resume. Call it before the first step. `directory` is
        as in `save`. Collective; blocks. After an error some objects of `states` and `data` may have changed."""
        edit = self._edit
        self._directory = self._directory if directory is None else os.fspath(directory)
        if edit._joined:
            return int(edit.info.steps)
        if edit.info.steps:
            raise _misplaced(f"resume: {edit.info.steps} steps have been made; call it before the first step")
        resume_from(edit.comm, self._directory, self._load)
        self._continues = True
        self._last = edit.info.steps
        return int(edit.info.steps)

    def _load(self, name: str) -> None:
        edit = self._edit
        warmup = _told(edit.comm, lambda: _warmup_of(os.path.join(self._directory, name + ".ckpt")))
        if warmup is not None:
            self._stamp[:] = warmup["stamp"]
            exact = True
        else:
            exact = self._load_edit(name)
        ranks = _told(edit.comm, lambda: self._ranks_of(name))
        if len(ranks) != self._stamp[2]:
            raise invalid("resume", f"{name}: {int(self._stamp[2])} ranks have saved their states beside it, and the files of the ranks "
                                    f"{ranks} are there")
        mine = edit.replica * self._model.size + self._model.rank
        per_replica = int(self._stamp[1])
        exact = exact and ranks == list(range(edit.comm.size)) and per_replica == self._model.size
        state: Dict[str, Any] = {}
        error: Optional[Exception] = None
        if per_replica == self._model.size:
            there = sorted({rank // per_replica for rank in ranks})
            path = self._path(name, there[edit.replica % len(there)] * per_replica + mine % per_replica)
            error = self._try(lambda: state.update(torch.load(path, map_location="cpu", weights_only=True)))
        elif mine == 0:
            warnings.warn(f"resume: {name} is of replicas of {per_replica} ranks, and these have {self._model.size}: the inner optimizers "
                          "and schedulers begin anew", stacklevel=4)
        failed = edit.comm.all_gather(np.array([error is not None], np.int64)).ravel().tolist()
        if any(failed):
            raise invalid("resume", f"{name}: the ranks {[rank for rank, bad in enumerate(failed) if bad]} cannot read their files"
                                    + (f": {error}" if error is not None else "; their own errors say why")) from error
        if warmup is not None:
            self._go_on_in_warmup(int(warmup[_WARMUP]), state)
        self._give(state, exact, mine)

    def _load_edit(self, name: str) -> bool:
        try:
            self._edit.load(self._directory, name)
            return True
        except FailedPrecondition as error:
            # Other replicas: without the state of each of them. Another cause is an error again.
            self._edit.load(self._directory, name, exact=False)
            if self._edit.comm.rank == 0:
                warnings.warn(f"resume: {name} goes on without what only one replica has ({error})", stacklevel=5)
            return False

    def _ranks_of(self, name: str) -> List[int]:
        files = [file for entry in os.scandir(self._directory) if (file := _FILE.fullmatch(entry.name)) and not file[4]]
        return sorted(int(file["rank"]) for file in files if file["of"] == name and int(file["token"], 16) == self._stamp[0])

    def _go_on_in_warmup(self, steps: int, state: Mapping[str, Any]) -> None:
        """The library keeps no state of a warm-up, in which replicas are equal, but its steps."""
        edit = self._edit
        if "parameters" not in state:
            raise _misplaced("resume: a warm-up can be resumed by replicas of as many ranks only")
        if steps > edit._anchors_at:
            raise _misplaced(f"resume: the checkpoint is of step {steps} of a warm-up, and local_sgd_warmup_steps is {edit._anchors_at}")
        with torch.no_grad():
            for layer, flats in zip(edit._layers, state["parameters"]):
                for flat, values in zip(layer.flats, flats):
                    flat.copy_(values)
        for _ in range(steps):
            edit.engine.begin_forward()
            edit.engine.end_step()
        edit._reshard()

    def _give(self, state: Mapping[str, Any], exact: bool, mine: int) -> None:
        if not state:
            return
        give_buffers(self._edit.model, state["buffers"])
        self._check_names("states", state["states"], self._states)
        give_states(self._states, state["states"])
        if exact:
            self._check_names("data", state["data"], self._data)
            give_states(self._data, state["data"])
            _set_random_states(self._device(), state["random"])
        elif self._data and mine == 0:
            warnings.warn(f"resume: the checkpoint is of other replicas, so the positions of {sorted(self._data)} stay as they are, and "
                          "random numbers begin anew", stacklevel=5)

    @staticmethod
    def _check_names(kind: str, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        if set(saved) != set(here):
            raise _misplaced(f"resume: the checkpoint has the {kind} {sorted(saved)}, and this run has {sorted(here)}")


def _random_states(device: torch.device) -> Dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "get_rng_state"):
            states[device.type] = module.get_rng_state(device)
    return states


def _set_random_states(device: torch.device, states: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type in states and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type], device)


def _replace(path: str, write: Callable[[str], object]) -> None:
    """Lets `write` write the file, and puts it in its place when it is on the disk."""
    part = path + ".part"
    try:
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def _dump(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _warmup_of(path: str) -> Optional[Dict[str, Any]]:
    """Returns what _write_warmup has written; None: the file is of EDiT.save."""
    with open(path, "rb") as file:
        text = file.read(1000)
    if _WARMUP.encode() not in text:
        return None
    found: Dict[str, Any] = json.loads(text)
    return found


def _told(comm: Comm, find: Callable[[], Any]) -> Any:
    """Returns on all ranks what `find` returns on rank 0, or raises InvalidArgument if it fails there. Collective."""
    text = ""
    if comm.rank == 0:
        try:
            text = json.dumps([find(), None])
        except (OSError, ValueError) as error:
            text = json.dumps([None, str(error)])
    found, failed = json.loads(broadcast_text(comm, text))
    if failed is not None:
        raise invalid("resume", failed)
    return found
