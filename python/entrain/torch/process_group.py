"""The back end "entrain" of torch.distributed: a process group of Python over the library's communicators.

A group has a communicator of its own. Collectives are untagged calls, which the library matches by program order as
c10d does. Sends and receives are matched by their tag. Contiguous tensors of the CPU are used in place. Strided tensors,
lists of tensors that are not contiguous, and tensors on a device are copied: a call waits for what the caller's stream does with its
inputs, and the Work is over when the results are on the device.

No thread of the library needs the interpreter's lock: the package's thread for callbacks completes futures. Waiting
threads return to the interpreter every 100 ms, so that signals are noticed."""
from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from .._library import NULL, OK, ffi, lib, new_struct
from ..comm import Comm
from ..errors import Error, ErrorRecord, FailedPrecondition, TimedOut, invalid, last_error
from ..lifetime import inside
from ..reductions import Reduction
from ..store import Store
from ..works import _orphans, orphan, reap
from ._tensors import Buffers, counts_of, list_of, moved, reduced, rows_of, same_types, single, sizes_match
from ._works import NO_TIMEOUT, Added, Coalesced, Work

_CPU = torch.device("cpu")
# Members of c10d in C++ have different types in different releases.
c10d: Any = distributed_c10d
_Base: Any = dist.ProcessGroup
_dist: Any = dist
_Store = Any  # torch.distributed.Store
_Opts = Any   # AllreduceOptions and its like

class ProcessGroup(_Base):
    """A process group of the back end "entrain". torch.distributed makes it; its methods are those of c10d."""

    def __init__(self, store: _Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._name = ""
        self._description = ""
        self._sequence = 0
        self._options: Dict[Tuple[timedelta, int], Any] = {}
        self._coalesced: Optional[Coalesced] = None
        self._served: Set[str] = set()  # types of devices, besides the CPU
        self._comm = _meet(store, rank, size, timeout)

    # ---- what c10d asks of a group ----------------------------------------------------------------------------------------

    @property
    def comm(self) -> Comm:
        """The communicator under this group. Untagged calls on it take their place in the group's order of collectives."""
        return self._comm

    def get_group_store(self) -> _Store:
        """Returns the store of c10d in which the group's ranks met."""
        return self._store

    def rank(self) -> int:
        """Returns this process's number in the group."""
        return self._rank

    def size(self) -> int:
        """Returns the number of processes in the group."""
        return self._size

    getRank, getSize = rank, size

    def name(self) -> str:
        """Returns the name of the back end."""
        return "entrain"

    getBackendName = _get_backend_name = name

    def __repr__(self) -> str:
        return f"<entrain.torch.ProcessGroup {self._name!r} rank {self._rank} of {self._size}>"

    def getGroupName(self) -> str:
        """Returns the name that torch.distributed gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Sets the name. Called by torch.distributed."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Returns the description that the user gave the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Sets the description. Called by torch.distributed."""
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> List[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> "ProcessGroup":
        return self

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Returns whether the back end has memory of its own for tensors."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of later operations."""
        self._timeout = timeout
        self._options.clear()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: numbers begin at 0 on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def abort(self) -> None:
        """Ends the group on all of its ranks: calls in progress raise entrain.Aborted."""
        if not self._comm.closed:
            self._comm.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Waits for the calls in progress and frees the communicator."""
        if self._comm.closed:
            return
        try:
            self._comm.drain(self._timeout.total_seconds())
        except Error:  # of a call whose caller has the error, or has dropped the call
            pass
        self._comm.close()

    # ---- the path of every call -------------------------------------------------------------------------------------------

    def _option(self, timeout: timedelta, tag: int) -> Any:
        """Returns options of a call, for use by all calls with equal options."""
        found = self._options.get((timeout, tag))
        if found is None:
            found = new_struct("call_options")
            seconds = (timeout if timeout > NO_TIMEOUT else self._timeout).total_seconds()
            found.timeout_ns = max(1, round(seconds * 1e9))
            found.tag = tag
            if len(self._options) >= 1024:
                self._options.clear()
            self._options[timeout, tag] = found
        return found

    def _start(self, function: Any, arguments: Tuple[Any, ...], buffers: Buffers, outputs: List[Tensor],
               timeout: timedelta = NO_TIMEOUT, reduction: Optional[Reduction] = None, tag: int = -1) -> Work:
        if buffers.device is not None and buffers.device not in self._served:
            self._serve(buffers)
        options = self._option(timeout, tag)
        batch = self._coalesced
        if tag < 0:
            self._sequence += 1
        if batch is not None:
            batch.add(buffers, reduction, outputs)
            status = self._with(batch, reduction, options, function, arguments, NULL)
            if status != OK:
                raise last_error(status)
            return Added(outputs)
        if _orphans:
            reap()
        out = ffi.new("entrain_work_t**")
        held = (buffers, reduction)
        try:
            if reduction is None:
                with self._comm._life as comm:
                    status = function(comm, *arguments, options, out)
            else:
                status = self._with(None, reduction, options, function, arguments, out)
            if status != OK:
                raise last_error(status)
            return Work(buffers.operation, out, held, buffers.finish if buffers.copies else None, outputs)
        except BaseException:  # from a signal handler, for example: the call continues
            if out[0] != NULL:
                orphan(out[0], held)
            raise

    def _serve(self, buffers: Buffers) -> None:
        """Refuses tensors of a device for which the program has named another back end. PyTorch passes them here all the same."""
        for pair in dist.get_backend_config(self).split(","):
            device, _, backend = pair.partition(":")
            if device == buffers.device and backend != "entrain":
                raise invalid(buffers.operation, f"a tensor is on {device}, for which this group was to have the back end {backend}. PyTorch "
                                                 "does not mix a back end in Python with others in a group; make a group of its own for "
                                                 f"{backend}")
        self._served.add(str(buffers.device))

    def _with(self, batch: Optional[Coalesced], reduction: Optional[Reduction], options: Any, function: Any,
              arguments: Tuple[Any, ...], out: Any) -> int:
        """Makes a call whose options contain other objects. Returns its status."""
        own = ffi.new("entrain_call_options_t*")
        own[0] = options[0]
        with inside(self._comm, batch, reduction) as (comm, own.batch, own.reduction):
            return int(function(comm, *arguments, own, out))

    def _together(self, operation: str, calls: Callable[[], object]) -> Work:
        """Starts the calls of `calls` together."""
        if self._coalesced is not None:
            calls()
            return Added([])
        with Coalesced(self._comm) as batch:
            self._coalesced = batch
            try:
                calls()
            finally:
                self._coalesced = None
            return batch.start(operation)

    def _start_coalescing(self, device: Optional[torch.device] = None) -> None:
        self._coalesced = Coalesced(self._comm)

    def _end_coalescing(self, device: Optional[torch.device] = None) -> Work:
        batch, self._coalesced = self._coalesced, None
        if batch is None:
            raise FailedPrecondition(ErrorRecord(
                code=lib.ENTRAIN_FAILED_PRECONDITION, text="_end_coalescing: nothing is being coalesced"))
        with batch:
            return batch.start("coalesced")

    # ---- collectives ------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Union[Tensor, List[Tensor]], opts: _Opts = None) -> Work:
        """Replaces the tensor by the reduction over all ranks."""
        opts = opts or c10d.AllreduceOptions()
        tensor = single("all_reduce", tensors)
        if tensor.layout is not torch.strided:
            return self._allreduce_sparse(tensor, opts)
        dtype, factor, op, reduction = reduced("all_reduce", tensor, opts.reduceOp)
        buffers = Buffers("all_reduce")
        pointer = buffers.target(tensor, keeps=True)
        return self._start(lib.entrain_all_reduce, (pointer, pointer, tensor.numel() * factor, dtype, op), buffers, [tensor],
                           opts.timeout, reduction)

    def allreduce_coalesced(self, tensors: List[Tensor], opts: _Opts = None) -> Work:
        """As allreduce, for several tensors at once."""
        opts = opts or c10d.AllreduceCoalescedOptions()
        if len(tensors) == 1:
            return self.allreduce(tensors, opts)
        return self._together("all_reduce", lambda: [self.allreduce([tensor], opts) for tensor in tensors])

    def _allreduce_sparse(self, tensor: Tensor, opts: _Opts) -> Work:
        """Sums sparse tensors: all ranks gather the elements of all, and add them up in rank order."""
        operation = "all_reduce"
        if tensor.layout is not torch.sparse_coo:
            raise invalid(operation, f"a tensor has the layout {tensor.layout}; this call takes dense and sparse_coo ones")
        if opts.reduceOp != dist.ReduceOp.SUM:
            raise invalid(operation, f"{opts.reduceOp.op} does not go with sparse tensors")
        mine = tensor.detach().cpu().coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        self.all_gather_single(counts, torch.tensor([mine._nnz()])).wait()
        rows = counts.tolist()
        indices = [torch.empty((n, mine.sparse_dim()), dtype=torch.int64) for n in rows]
        values = [torch.empty((n, *mine.values().shape[1:]), dtype=mine.dtype) for n in rows]
        all_indices, all_values = torch.cat(indices), torch.cat(values)
        first = self.allgather([list(all_indices.split(rows))], [mine.indices().t().contiguous()])
        second = self.allgather([list(all_values.split(rows))], [mine.values()])
        first.wait()
        second.wait()
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, mine.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return Added([tensor])

    def broadcast(self, tensors: Union[Tensor, List[Tensor]], opts: _Opts = None) -> Work:
        """Copies the root's tensor to all ranks."""
        opts = opts or c10d.BroadcastOptions()
        tensor = single("broadcast", tensors)
        dtype, factor = moved(tensor)
        buffers = Buffers("broadcast")
        pointer = buffers.target(tensor, keeps=opts.rootRank == self._rank)
        return self._start(lib.entrain_broadcast, (pointer, tensor.numel() * factor, dtype, opts.rootRank), buffers, [tensor],
                           opts.timeout)

    def reduce(self, tensors: Union[Tensor, List[Tensor]], opts: _Opts = None) -> Work:
        """Replaces the root's tensor by the reduction over all ranks."""
        opts = opts or c10d.ReduceOptions()
        tensor = single("reduce", tensors)
        dtype, factor, op, reduction = reduced("reduce", tensor, opts.reduceOp)
        buffers = Buffers("reduce")
        if opts.rootRank == self._rank:
            source = target = buffers.target(tensor, keeps=True)
        else:
            source, target = buffers.source(tensor), NULL
        return self._start(lib.entrain_reduce, (source, target, tensor.numel() * factor, dtype, op, opts.rootRank), buffers,
                           [tensor], opts.timeout, reduction)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: _Opts = None) -> Work:
        """Gathers the inputs of all ranks into `output`, one after another."""
        opts = opts or c10d.AllgatherOptions()
        operation = "all_gather"
        sizes_match(operation, "output", output, input, self._size)
        dtype, factor = moved(input)
        buffers = Buffers(operation)
        return self._start(lib.entrain_all_gather,
                           (buffers.source(input), buffers.target(output), input.numel() * factor, dtype), buffers, [output],
                           opts.timeout)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: _Opts = None) -> Work:
        """As all_gather_single, for several pairs at once."""
        opts = opts or c10d.AllgatherOptions()
        if len(outputs) == 1 and len(inputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        pairs = _pairs("all_gather", outputs, inputs)
        return self._together("all_gather", lambda: [self.all_gather_single(output, input, opts) for output, input in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, output_tensors: List[List[Tensor]], input_tensors: List[Tensor],
                  opts: _Opts = None) -> Work:
        """Gathers the input of rank r into `output_tensors[0][r]`. The inputs may differ in size if all ranks know all
        sizes."""
        opts = opts or c10d.AllgatherOptions()
        operation = "all_gather"
        input, outputs = single(operation, input_tensors), list_of(operation, output_tensors, self._size)
        dtype, factor = same_types(operation, input, outputs)
        if outputs[self._rank].numel() != input.numel():
            raise invalid(operation, f"the input has {input.numel()} elements, and its place in the outputs "
                                      f"{outputs[self._rank].numel()}")
        buffers = Buffers(operation)
        source, target = buffers.source(input), buffers.targets(outputs)
        if all(output.numel() == input.numel() for output in outputs):
            return self._start(lib.entrain_all_gather, (source, target, input.numel() * factor, dtype), buffers, outputs,
                               opts.timeout)
        return self._start(lib.entrain_all_gather_v, (source, target, counts_of(outputs, factor), dtype), buffers, outputs,
                           opts.timeout)

    def allgather_coalesced(self, output_lists: List[List[Tensor]], input_list: List[Tensor], opts: _Opts = None) -> Work:
        """Gathers input i of rank r into `output_lists[r][i]`."""
        opts = opts or c10d.AllgatherOptions()
        return self._together("all_gather", lambda: [
            self.allgather([[outputs[i] for outputs in output_lists]], [input], opts) for i, input in enumerate(input_list)])

    def gather(self, output_tensors: List[List[Tensor]], input_tensors: List[Tensor],
               opts: _Opts = None) -> Work:
        """Gathers the input of rank r into `output_tensors[0][r]` on the root."""
        opts = opts or c10d.GatherOptions()
        operation = "gather"
        input = single(operation, input_tensors)
        buffers = Buffers(operation)
        source = buffers.source(input)
        if opts.rootRank != self._rank:
            outputs: List[Tensor] = []
            dtype, factor = moved(input)
            target, counts = NULL, NULL
        else:
            outputs = list_of(operation, output_tensors, self._size)
            dtype, factor = same_types(operation, input, outputs)
            target, counts = buffers.targets(outputs), counts_of(outputs, factor)
        return self._start(lib.entrain_gather_v, (source, input.numel() * factor, target, counts, dtype, opts.rootRank), buffers,
                           outputs, opts.timeout)

    def scatter(self, output_tensors: List[Tensor], input_tensors: List[List[Tensor]],
                opts: _Opts = None) -> Work:
        """Sends the root's `input_tensors[0][r]` to the output of rank r."""
        opts = opts or c10d.ScatterOptions()
        operation = "scatter"
        output = single(operation, output_tensors)
        buffers = Buffers(operation)
        dtype, factor = moved(output)
        source, counts = NULL, NULL
        if opts.rootRank == self._rank:
            inputs = list_of(operation, input_tensors, self._size)
            same_types(operation, output, inputs)
            source, counts = buffers.sources(inputs), counts_of(inputs, factor)
        return self._start(lib.entrain_scatter_v,
                           (source, counts, buffers.target(output), output.numel() * factor, dtype, opts.rootRank), buffers,
                           [output], opts.timeout)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: _Opts = None) -> Work:
        """Writes this rank's part of the reduction of `input` into `output`."""
        opts = opts or c10d.ReduceScatterOptions()
        operation = "reduce_scatter"
        sizes_match(operation, "input", input, output, self._size)
        dtype, factor, op, reduction = reduced(operation, input, opts.reduceOp)
        buffers = Buffers(operation)
        return self._start(lib.entrain_reduce_scatter,
                           (buffers.source(input), buffers.target(output), output.numel() * factor, dtype, op), buffers, [output],
                           opts.timeout, reduction)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: _Opts = None) -> Work:
        """As reduce_scatter_single, for several pairs at once."""
        opts = opts or c10d.ReduceScatterOptions()
        if len(outputs) == 1 and len(inputs) == 1:
            return self.reduce_scatter_single(outputs[0], inputs[0], opts)
        pairs = _pairs("reduce_scatter", outputs, inputs)
        return self._together("reduce_scatter", lambda: [self.reduce_scatter_single(output, input, opts)
                                                         for output, input in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, output_tensors: List[Tensor], input_tensors: List[List[Tensor]],
                       opts: _Opts = None) -> Work:
        """Writes the reduction of `input_tensors[0][r]` into the output of rank r. The inputs may differ in size, but all
        ranks must have the same sizes."""
        opts = opts or c10d.ReduceScatterOptions()
        operation = "reduce_scatter"
        output, inputs = single(operation, output_tensors), list_of(operation, input_tensors, self._size)
        same_types(operation, output, inputs)
        if inputs[self._rank].numel() != output.numel():
            raise invalid(operation, f"the output has {output.numel()} elements, and its place in the inputs "
                                      f"{inputs[self._rank].numel()}")
        dtype, factor, op, reduction = reduced(operation, output, opts.reduceOp)
        buffers = Buffers(operation)
        source, target = buffers.sources(inputs), buffers.target(output)
        if all(input.numel() == output.numel() for input in inputs):
            return self._start(lib.entrain_reduce_scatter, (source, target, output.numel() * factor, dtype, op), buffers,
                               [output], opts.timeout, reduction)
        return self._start(lib.entrain_reduce_scatter_v, (source, target, counts_of(inputs, factor), dtype, op), buffers, [output],
                           opts.timeout, reduction)

    def all_to_all_single(self, output: Tensor, input: Tensor, output_split_sizes: List[int],
                          input_split_sizes: List[int], opts: _Opts = None) -> Work:
        """Sends part r of the input to rank r, and receives part r of the output from rank r. The split sizes are
        numbers of rows; empty lists: equal parts."""
        opts = opts or c10d.AllToAllOptions()
        operation = "all_to_all"
        dtype, factor = same_types(operation, input, [output])
        buffers = Buffers(operation)
        if not output_split_sizes and not input_split_sizes:
            if input.numel() != output.numel() or (input.dim() > 0 and input.size(0) % self._size != 0):
                raise invalid(operation, f"the input has the shape {tuple(input.shape)} and the output {tuple(output.shape)}, "
                                          f"which do not fall into {self._size} equal parts")
            return self._start(lib.entrain_all_to_all, (buffers.source(input), buffers.target(output),
                                                        input.numel() // self._size * factor, dtype),
                               buffers, [output], opts.timeout)
        sent = rows_of(operation, "input", input, input_split_sizes, self._size, factor)
        received = rows_of(operation, "output", output, output_split_sizes, self._size, factor)
        return self._start(lib.entrain_all_to_all_v, (buffers.source(input), sent, buffers.target(output), received, dtype),
                           buffers, [output], opts.timeout)

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors: List[Tensor], input_tensors: List[Tensor],
                 opts: _Opts = None) -> Work:
        """Sends input_tensors[r] to rank r, and receives output_tensors[r] from rank r."""
        opts = opts or c10d.AllToAllOptions()
        operation = "all_to_all"
        outputs = list_of(operation, [output_tensors], self._size)
        inputs = list_of(operation, [input_tensors], self._size)
        dtype, factor = same_types(operation, inputs[0], [*inputs, *outputs])
        buffers = Buffers(operation)
        return self._start(lib.entrain_all_to_all_v, (buffers.sources(inputs), counts_of(inputs, factor), buffers.targets(outputs),
                                                      counts_of(outputs, factor), dtype), buffers, outputs, opts.timeout)

    def barrier(self, opts: _Opts = None) -> Work:
        """Starts a barrier. The Work is over when all ranks have called this method."""
        opts = opts or c10d.BarrierOptions()
        return self._start(lib.entrain_barrier, (), Buffers("barrier"), [], opts.timeout)

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have called this method. If some ranks do not call it in time, the other ranks get
        entrain.TimedOut, and the group ends. The error names one late rank, or with wait_all_ranks all late ranks.
        (torch.distributed.monitored_barrier refuses every back end but gloo; call this method of the group.)"""
        try:
            self._start(lib.entrain_barrier, (), Buffers("monitored_barrier"), [], timeout or NO_TIMEOUT).wait()
        except TimedOut as error:
            if not wait_all_ranks:
                raise
            text = f"{error.record.text}; late ranks: {', '.join(map(str, self._comm.late()))}"
            raise TimedOut(dataclasses.replace(error.record, text=text)) from None

    def send(self, tensors: List[Tensor], dst_rank: int, tag: int = 0) -> Work:
        """Sends to one rank, which receives with the same tag."""
        tensor = single("send", tensors)
        dtype, factor = moved(tensor)
        buffers = Buffers("send")
        return self._start(lib.entrain_send, (buffers.source(tensor), tensor.numel() * factor, dtype, dst_rank), buffers, [],
                           tag=tag)

    def recv(self, tensors: List[Tensor], src_rank: int, tag: int = 0) -> Work:
        """Receives from one rank, which sends with the same tag."""
        tensor = single("recv", tensors)
        dtype, factor = moved(tensor)
        buffers = Buffers("recv")
        work = self._start(lib.entrain_recv, (buffers.target(tensor), tensor.numel() * factor, dtype, src_rank), buffers,
                           [tensor], tag=tag)
        work._peer = (src_rank,)
        return work

    def recv_anysource(self, tensors: List[Tensor], tag: int = 0) -> Work:
        """Receives from any rank that sends with the same tag. The Work's source_rank() is the sender. Calls of
        recv_anysource and recv take messages of a tag in program order."""
        tensor = single("recv_any", tensors)
        dtype, factor = moved(tensor)
        buffers = Buffers("recv_any")
        source = ffi.new("int32_t*", -1)
        buffers.held.append(source)
        work = self._start(lib.entrain_recv_any, (buffers.target(tensor), tensor.numel() * factor, dtype, source), buffers,
                           [tensor], tag=tag)
        work._peer = source
        return work


def _pairs(operation: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> List[Tuple[Tensor, Tensor]]:
    if len(outputs) != len(inputs):
        raise invalid(operation, f"got {len(outputs)} outputs and {len(inputs)} inputs")
    return list(zip(outputs, inputs))


# ---- torch.compile ----------------------------------------------------------------------------------------------------

def _eager(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps torch.compile out of a method, which would otherwise look into it and fail. (torch.compiler.disable imports the compiler,
    which takes seconds, so the method waits until somebody else has imported it.)"""
    disabled: List[Callable[..., Any]] = []

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*arguments, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(method))
        return disabled[0](*arguments, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


for _name, _method in list(vars(ProcessGroup).items()):
    if inspect.isfunction(_method) and _method.__annotations__.get("return") == "Work":
        setattr(ProcessGroup, _name, _eager(_method))


# ---- Making a group ---------------------------------------------------------------------------------------------------

def _host_of(store: _Store) -> Optional[str]:
    """Returns the host of a TCPStore's server; None for other stores."""
    while isinstance(store, _dist.PrefixStore):
        store = store.underlying_store
    return str(store.host) if isinstance(store, _dist.TCPStore) else None


def _meet(store: _Store, rank: int, size: int, timeout: timedelta) -> Comm:
    """Returns the communicator of a group whose ranks share a store of c10d."""
    with Store.of_functions(store.set, lambda key: store.get(key) if store.check([key]) else None, store.add, store.delete_key,
                          _host_of(store)) as ours:
        return Comm.create(ours, rank, size, timeout=timeout.total_seconds())


def create(store: _Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Makes a group of this back end. torch.distributed calls it."""
    return ProcessGroup(store, rank, size, timeout)


def register() -> None:
    """Makes the back end known to torch.distributed. Importing entrain.torch does it."""
    if "ENTRAIN" not in dist.Backend._plugins:
        dist.Backend.register_backend("entrain", create, devices=["cpu"])
