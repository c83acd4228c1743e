"""Replicas that may be lost and come back. Each of them is a job of its own for torch.distributed, in which the loss of a process ends
all: one process, in any framework,

    from entrain.integrations import elastic
    place = elastic.alone()                         # before the framework looks at the environment
    data = data.shard(place.replicas, place.replica)
    trainer.add_callback(EDiTCallback(trainer, local_sgd_sync_interval=16, **place.options))

    entrain-run --elastic -n 4 -- python3 program.py

or one torchrun, over whose processes fully_shard divides the replica:

    place = elastic.torchrun()
    edit = entrain.torch.EDiT(model, optimizer, hand_over={"optimizer": optimizer}, **place.options)

    ENTRAIN_STORE=tcp://HOST:PORT EDIT_REPLICA=0 EDIT_REPLICAS=2 torchrun --max-restarts 9 --nproc-per-node 8 ... program.py"""
from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict

from .._launch import hide
from ..comm import Comm
from ..errors import invalid
from ..store import Store

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
                                       "supervisor that sets them, LOCAL_RANK, ENTRAIN_STORE, and ENTRAIN_RESTARTS for a process that it starts again")
    restarted = int(os.environ.get("ENTRAIN_RESTARTS") or 0) > 0
    comm = None if restarted else Comm.from_env()
    store = Store.open("env:")  # stays open: what it is found by is removed now
    hide(_HIDDEN)
    given = _given(comm or Comm.alone(store), store, join if restarted else None)
    return Place(int(rank), int(size), restarted, {**given, **options})


def torchrun(*, join: float = 600.0, **options: Any) -> Place:
    """Makes the processes of this torchrun a replica: number EDIT_REPLICA of EDIT_REPLICAS, which all have as many processes. They meet
    in the store at ENTRAIN_STORE (a URL of Store.open), whose server must run already and outlive them. When torchrun starts its
    processes again (TORCHELASTIC_RESTART_COUNT), or its supervisor starts a new torchrun with ENTRAIN_RESTARTS, the replica joins the
    others within `join` seconds. `options` join those of the result. Collective over all processes; of a replica that was started
    again, over its own."""
    values = {name: os.environ.get(name) for name in ("ENTRAIN_STORE", "EDIT_REPLICA", "EDIT_REPLICAS", "RANK", "WORLD_SIZE")}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise invalid("elastic.torchrun", f"{', '.join(missing)} not set; a replica is one torchrun, which needs EDIT_REPLICA (its number), "
                                          "EDIT_REPLICAS (how many there are) and ENTRAIN_STORE (where they meet)")
    url, replica, replicas, rank, ranks = (values["ENTRAIN_STORE"] or "", *(int(values[name] or 0) for name in list(values)[1:]))
    if not 0 <= replica < replicas:
        raise invalid("elastic.torchrun", f"EDIT_REPLICA is {replica}; expected 0 to {replicas - 1}, since EDIT_REPLICAS is {replicas}")
    lives = [int(os.environ.get(name) or 0) for name in ("TORCHELASTIC_RESTART_COUNT", "ENTRAIN_RESTARTS")]
    restarted = any(lives)
    store = Store.open(url)  # stays open: the replicas of other torchruns apply there
    if restarted:
        life = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {lives[0]} {lives[1]}"
        comm = Comm.create(store, rank, ranks, name=f"replica {replica} {life}")
    else:
        comm = Comm.create(store, replica * ranks + rank, replicas * ranks, name="replicas")
    return Place(replica, replicas, restarted, {**_given(comm, store, join if restarted else None), **options})


def _given(comm: Comm, store: Store, join: "float | None") -> Dict[str, Any]:
    return dict(comm=comm, on_loss="finish", admit="exchange", admit_store=store, join=join)
