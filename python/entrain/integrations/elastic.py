"""Replicas that may be lost and come back, inside a framework: each of them is a job of one process for the framework.

    from entrain.integrations import elastic
    place = elastic.alone()                         # before the framework looks at the environment
    data = data.shard(place.replicas, place.replica)
    trainer.add_callback(EDiTCallback(trainer, local_sgd_sync_interval=16, **place.options))

    entrain-run --elastic -n 4 -- python3 program.py"""
from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict

from ..comm import Comm
from ..errors import invalid

#: What tells frameworks that they are a part of a job.
_HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")


@dataclasses.dataclass
class Place:
    """This process's place among the replicas of the job."""

    replica: int
    replicas: int
    #: Whether the process was started again, and joins replicas that train.
    restarted: bool
    #: Options for entrain.torch.EDiT and for the integrations.
    options: Dict[str, Any]


def alone(*, join: float = 600.0, **options: Any) -> Place:
    """Takes the place in the job from the launcher's variables, and removes them, so that a framework in this process works for itself:
    torch.distributed, in which the loss of a process ends all, is not used. The replicas meet through the library alone; those
    that are left go on after a loss, and a process that is started again joins them within `join` seconds. Each replica needs a
    part of the data of its own: divide them by `replica` and `replicas`. `options` join those of the result. Collective over all
    processes, unless this one was started again (ENTRAIN_RESTARTS, as entrain-run --elastic sets it)."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or size is None:
        raise invalid("elastic.alone", "RANK and WORLD_SIZE are not set; start the program with entrain-run --elastic, or with a "
                                       "supervisor that sets them, ENTRAIN_STORE, and ENTRAIN_RESTARTS for a process that it starts again")
    restarted = int(os.environ.get("ENTRAIN_RESTARTS", "0")) > 0
    comm = Comm.alone() if restarted else Comm.from_env()
    for name in _HIDDEN:
        os.environ.pop(name, None)
    given = dict(comm=comm, on_loss="finish", admit="exchange", join=join if restarted else None)
    return Place(int(rank), int(size), restarted, {**given, **options})
