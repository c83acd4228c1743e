"""Entrain: collective communication for loosely synchronised training.

    import entrain, numpy
    comm = entrain.Comm.from_env()
    print(comm.all_reduce(numpy.ones(4, numpy.float32)))

README.md of this package describes the installation. docs/python.md describes threads and ownership. The docstrings
give shapes, units and errors."""
from ._library import VERSION as __version__
from ._library import library_path, program_path
from ._options import AccoOptions
from .acco import ACCO, AccoGroup, AccoInfo, AccoLoss
from .arrays import DType
from .checkpoints import checkpoints_in
from .collectives import CallOptions, Received
from .comm import Batch, Comm, CommStats, Member, Registration, Runtime
from .errors import (Aborted, Error, ErrorRecord, FailedPrecondition, Internal, InvalidArgument, Mismatch, PeerLost, Phase,
                     ResourceExhausted, Scope, StaleGeneration, TimedOut, Unimplemented)
from .flight import flight_dump
from .optim import WSAM, Optim, OptimInfo
from .reductions import Op, Reduction
from .store import Store
from .train import EDiT, EditConfig, EditInfo, EditLoss, EditReplica, Mesh, Shard, ShardLayer, ShardStats
from .training import Reduced, State, StateEntry
from .works import Work, WorkInfo

__all__ = [
    "ACCO", "Aborted", "AccoGroup", "AccoInfo", "AccoLoss", "AccoOptions", "Batch", "CallOptions", "Comm", "CommStats", "DType", "EDiT",
    "EditConfig", "EditInfo", "EditLoss", "EditReplica", "Error", "ErrorRecord", "FailedPrecondition", "Internal", "InvalidArgument",
    "Member", "Mesh", "Mismatch", "Op", "Optim", "OptimInfo", "PeerLost", "Phase", "Received", "Reduced", "Reduction", "Registration",
    "ResourceExhausted", "Runtime", "Scope", "Shard", "ShardLayer", "ShardStats", "StaleGeneration", "State", "StateEntry", "Store",
    "TimedOut", "Unimplemented", "WSAM", "Work", "WorkInfo", "__version__", "checkpoints_in", "flight_dump", "library_path", "program_path",
]
