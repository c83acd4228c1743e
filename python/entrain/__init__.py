"""Entrain: collective communication for loosely synchronised training.

    import entrain, numpy
    comm = entrain.Comm.from_env()
    print(comm.all_reduce(numpy.ones(4, numpy.float32)))

README.md of this package has installing, threads and ownership; the docstrings have shapes, units and errors."""
from ._library import VERSION as __version__
from ._library import library_path, program_path
from .arrays import DType
from .collectives import CallOptions
from .comm import Batch, Comm, CommStats, Runtime
from .errors import (Aborted, Error, ErrorRecord, FailedPrecondition, Internal, InvalidArgument, Mismatch, PeerLost, Phase,
                     ResourceExhausted, Scope, TimedOut, Unimplemented)
from .reductions import Op, Reduction
from .store import Store
from .works import Work

__all__ = [
    "Aborted", "Batch", "CallOptions", "Comm", "CommStats", "DType", "Error", "ErrorRecord", "FailedPrecondition", "Internal",
    "InvalidArgument", "Mismatch", "Op", "PeerLost", "Phase", "Reduction", "ResourceExhausted", "Runtime", "Scope", "Store",
    "TimedOut", "Unimplemented", "Work", "__version__", "library_path", "program_path",
]
