"""Training with parameters on a device of PyTorch that is not the CPU, has streams, and has memory that the library cannot read
(far_device.py): every result has the bits of the same run on the CPU. Ranks are processes."""
import pytest
from forks import script

torch = pytest.importorskip("torch")
import far_device  # noqa: E402

pytestmark = pytest.mark.skipif(far_device.compiler() is None, reason="no C++ compiler")

# Ranks compute on far:1 and on a stream of their own, while the current device is far:0.
PROGRAM = """
import os, sys
import torch
from torch import nn
import entrain, entrain.torch
import far_device

torch.set_num_threads(1)
entrain.torch.EDiT._preset = entrain.torch.AEDiT._preset = "published"
far_device.start(sys.argv[1], pinning="no pinning" not in sys.argv, stream_waits="no stream waits" not in sys.argv)
FAR = "far:1"
torch.accelerator.set_stream(torch.Stream(device=FAR))
torch.accelerator.set_device_index(0)
TOKENS, LENGTH, WIDTH = 13, 6, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.register_buffer("hidden", torch.ones(LENGTH, LENGTH).tril() == 0)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        weights = (q @ k.transpose(1, 2)).masked_fill(self.hidden, float("-inf")).softmax(-1)
        x = x + self.out(weights @ v)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.register_buffer("scale", torch.rand(()))
        self.frozen = nn.Parameter(torch.rand(WIDTH), requires_grad=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x * self.frozen)) * self.scale


def build(device, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = GPT().to(device, dtype)
    model.head.weight = model.embed.weight  # .to() makes two parameters of a shared one, on this device
    return model


def loss_of(model, rank, step):
    tokens = torch.randint(0, TOKENS, (4, LENGTH + 1), generator=torch.Generator().manual_seed(1000 * rank + step))
    tokens = tokens.to(next(model.parameters()).device)
    return nn.functional.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in [*model.parameters(), *model.buffers()]]).cpu()


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other))
    return one == other


def on_both(train, *arguments):
    # Calls train(device, ...) on the CPU and on the device. The results must have equal bits.
    one, other = train("cpu", *arguments), train(FAR, *arguments)
    far_device.check()
    assert equal(one, other), (one, other)
    assert torch.accelerator.current_device_index() == 0
    return one


comm = entrain.Comm.from_env(timeout=60) if "RANK" in os.environ else None
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return far_device.build(tmp_path_factory.mktemp("far"))


def run(library, code, size, *words, timeout=60, **names):
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    script(PROGRAM + given + code, library, *words, size=size, timeout=timeout)


WAYS = {
    "plain": dict(local_sgd_sync_interval=4),
    "weighted": dict(local_sgd_sync_interval=4, local_sgd_warmup_steps=2, reducer="linear", pseudo_gradnorm_reduce=True,
                     clip_pseudo_grad=0.05, outer_optimizer="sgd", outer_nesterov=True),
    "behind": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", overlap_steps=2),
    "fragments": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", overlap_steps=1, fragments=2),
    "callback": dict(local_sgd_sync_interval=4, outer_optim_class="RMSprop"),
}

EDIT = """
def train(device, options, dtype=torch.float32, kind=torch.optim.AdamW, foreach=True):
    model = build(device, dtype, seed=comm.rank)  # the constructor makes replicas alike
    optimizer = kind(model.parameters(), lr=0.02, foreach=foreach)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, **options)
    seen = [flat(model)]
    for step in range(11):
        optimizer.zero_grad()
        loss = loss_of(model, comm.rank, step)
        loss.backward()
        seen += [float(edit.clip_grad_norm_(1.0)), loss.item()]
        optimizer.step()
        if step in (5, 9) and not options.get("overlap_steps"):
            with edit.consensus():
                seen.append(flat(model))
    edit.synchronize()
    seen += [flat(model), edit.info.anchor_checksum, edit.info.syncs]
    if device != "cpu":
        assert all(layer.host is not layer.flats[0] and layer.host.is_pinned() == pinned for layer in edit._layers)
    edit.close()
    return seen


"""


def test_edit_has_the_cpus_bits(library):
    run(library, EDIT + """
ways["callback"]["outer_optim_class"] = torch.optim.RMSprop
for options in ways.values():
    assert on_both(train, options)[-1] > 1
for way in ("weighted", "behind"):
    on_both(train, ways[way], torch.bfloat16, torch.optim.SGD, False)
""", 2, ways=WAYS, pinned=True)


def test_edit_has_the_cpus_bits_on_four_processes(library):
    run(library, EDIT + """
for options in ways.values():
    assert on_both(train, options)[-1] > 1
""", 4, ways={way: WAYS[way] for way in ("plain", "weighted", "behind")}, pinned=True)


@pytest.mark.parametrize("lacks", ["pinning", "stream waits", "accelerator"])
def test_a_device_may_lack_something(library, lacks):
    run(library, EDIT + """
if lacks == "accelerator":  # as if another back end was torch.accelerator
    def current_stream(device):
        raise ValueError(f"{device.type} doesn't match the current accelerator cuda.")

    torch.accelerator.current_stream = torch.accelerator.synchronize = current_stream
for options in ways.values():
    on_both(train, options)
""", 2, f"no {lacks}", ways={"behind": WAYS["behind"]}, lacks=lacks, pinned=lacks != "pinning")


def test_the_device_finds_races(library):
    run(library, """
def faults():
    found, far_device.faults[:] = list(far_device.faults), []
    return found


other = torch.Stream(device=FAR)
here, there = torch.empty(4, pin_memory=True), torch.ones(4, device=FAR)
here.copy_(there, non_blocking=True)
assert here.isnan().all()
torch.accelerator.current_stream(FAR).synchronize()
assert torch.equal(here, torch.ones(4)) and not faults()
there.copy_(here, non_blocking=True)
torch.accelerator.current_stream(FAR).synchronize()
here.zero_()
assert not faults()
there.copy_(here, non_blocking=True)
here.fill_(5)
torch.accelerator.current_stream(FAR).synchronize()
assert "the host has changed" in faults()[0]
with other:
    there.add_(1)
assert not faults()  # the host has waited for the copy
there.mul_(2)
assert "mul" in faults()[0]
other.record_event().wait(torch.accelerator.current_stream(FAR))
with other:
    there.sub_(1)
assert "sub" in faults()[0]
torch.accelerator.synchronize(FAR)
assert there.sum().item() == 4.0 and not faults()
try:
    there.add_(torch.ones(4))
    raise SystemExit("a tensor of the CPU")
except RuntimeError:
    pass
""", 1)


def test_a_step_without_an_exchange_copies_nothing(library):
    run(library, """
model = build(FAR, seed=comm.rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4)
to_host, from_host = [], []
for step in range(9):
    before = dict(far_device.copies)
    optimizer.zero_grad()
    loss_of(model, comm.rank, step).backward()
    optimizer.step()
    to_host.append(far_device.copies["to host"] - before["to host"])
    from_host.append(far_device.copies["from host"] - before["from host"] - 1)  # the tokens
layers = len(edit.layer_names)
assert to_host == [layers, 0, 0, 0, layers, 0, 0, 0, layers], to_host  # the first for the anchors
assert from_host == [0, 0, 0, 0, layers, 0, 0, 0, layers], from_host
edit.close()
far_device.check()
""", 2)


def test_a_edit_a_scaler_and_the_library_s_optimizers(library):
    run(library, """
from entrain.torch.optim import AGD, WSAM


def a_edit(device):
    model = build(device, seed=comm.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=True)
    edit = entrain.torch.AEDiT(model, optimizer, comm=comm, local_sgd_sync_time=1000.0, reducer="linear", outer_optimizer="sgd")
    seen = []
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step).backward()
        optimizer.step()
        if step % 3 == 2:
            edit.synchronize()
            seen.append(flat(model))
    edit.leave()
    seen += [flat(model), edit.info.syncs]
    edit.close()
    return seen


assert on_both(a_edit)[-1] > 1


def scaled(device, warm):
    model = build(device, seed=comm.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=True)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=3, local_sgd_warmup_steps=warm)
    scaler = torch.amp.GradScaler(torch.device(device).type, growth_interval=2)
    seen = []
    for step in range(7):
        optimizer.zero_grad()
        loss = loss_of(model, comm.rank, step)
        scaler.scale(loss * float("inf") if step == 2 and comm.rank == 0 else loss).backward()
        scaler.unscale_(optimizer)
        edit.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        seen += [flat(model), scaler.get_scale()]
    edit.synchronize()
    seen += [flat(model), edit.info.syncs, edit.info.steps]
    edit.close()
    return seen


assert on_both(scaled, 0)[-1] == 7
found = on_both(scaled, 4)
assert found[-1] == 7 and equal(found[2], found[4]), "no step was skipped"


def optimized(device, kind, dtype):
    model = build(device, dtype)
    optimizer = kind(model.parameters())
    for step in range(3):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, comm.rank, step)
            loss.backward()
            return loss

        optimizer.step(closure)
        state, optimizer = optimizer.state_dict(), kind(model.parameters())
        optimizer.load_state_dict(state)
    return flat(model)


for kind in (AGD, WSAM):
    for dtype in (torch.float32, torch.bfloat16):
        on_both(optimized, kind, dtype)
""", 2)


def test_a_run_goes_on_with_the_same_bits_on_either_device(library, tmp_path):
    run(library, """
import torch.distributed.checkpoint as dcp

torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=comm.rank, world_size=comm.size)


def make(device):
    model = build(device, seed=comm.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=True)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=4, local_sgd_warmup_steps=2, reducer="linear",
                              outer_optimizer="sgd", outer_nesterov=True)
    return model, optimizer, edit


def train(model, optimizer, edit, first, last):
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step).backward()
        optimizer.step()


def ended(model, optimizer, edit):
    train(model, optimizer, edit, 6, 8)
    edit.synchronize()
    found = [flat(model), edit.info.anchor_checksum]
    edit.close()
    far_device.check()
    return found


whole = make("cpu")
train(*whole, 0, 6)
whole = ended(*whole)
for way in ("save", "torch.save", "dcp"):
    for one, other in (("cpu", FAR), (FAR, FAR), (FAR, "cpu")):
        name = f"{way}-{one[:3]}-{other[:3]}"
        model, optimizer, edit = make(one)
        train(model, optimizer, edit, 0, 6)
        inner, agreed = optimizer.state_dict(), None
        assert edit.begin_step()
        # dcp waits for the current device alone.
        torch.accelerator.set_device_index(1)
        if way == "save":
            edit.save(folder, name)
        elif way == "torch.save":
            torch.save(edit.state_dict(), f"{folder}/{name}.{comm.rank}")
        else:
            dcp.save({"edit": edit.state_dict(), "model": model.state_dict()}, checkpoint_id=f"{folder}/{name}")
        agreed = flat(model)
        edit.close()
        model, optimizer, edit = make(other)
        train(model, optimizer, edit, 20, 21)
        if way == "save":
            edit.load(folder, name)
        elif way == "torch.save":
            edit.load_state_dict(torch.load(f"{folder}/{name}.{comm.rank}"))
        else:
            state = {"edit": edit.empty_state_dict(), "model": model.state_dict()}
            dcp.load(state, checkpoint_id=f"{folder}/{name}")
            model.load_state_dict(state["model"])
            edit.load_state_dict(state["edit"])
        torch.accelerator.set_device_index(0)
        optimizer.load_state_dict(inner)
        assert torch.equal(flat(model), agreed), name
        assert equal(ended(model, optimizer, edit), whole), name
torch.distributed.destroy_process_group()
""", 2, folder=str(tmp_path))


ACCO = """
def train(device, method, dtype=torch.float32, clip_norm=0.0, way=None):
    model = build(device, dtype, seed=comm.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    def make():
        return entrain.torch.ACCO(model, optimizer, comm=comm, method=method, limit=8, min_microbatches=1, max_microbatches=1,
                                  clip_norm=clip_norm)

    acco, step, seen = make(), 0, [flat(model)]
    while not acco.finished:
        loss_of(model, comm.rank, step).backward()
        acco.step(16)
        step += 1
        seen.append(flat(model))
        if step == 3 and way is not None:
            state = acco.state_dict()
            acco.save(folder, f"{device[:3]}-{method}")
            acco.close()
            with torch.no_grad():
                for param in model.parameters():
                    param.add_(param.requires_grad)
            acco = make()
            if way == "state":
                acco.load_state_dict(state)
            else:
                acco.load(folder, f"{device[:3]}-{method}")
            assert torch.equal(flat(model), seen[-1])
    seen += [step, acco.info.commits]
    acco.close()
    return seen


"""


def test_acco_has_the_cpus_bits(library, tmp_path):
    run(library, ACCO + """
for method in ("acco", "dpu", "wp", "zero1"):
    assert on_both(train, method)[-1] > 3
on_both(train, "acco", torch.bfloat16)
on_both(train, "acco", torch.float32, 0.1)
for way in ("state", "save"):
    assert equal(on_both(train, "zero1", torch.float32, 0.0, way), on_both(train, "zero1"))
""", 2, folder=str(tmp_path))


def test_acco_has_the_cpus_bits_on_four_processes(library):
    run(library, ACCO + """
on_both(train, "acco")
""", 4)


def test_a_replica_joins(library):
    run(library, """
import time

rank = comm.rank
comm.close()
newcomer = rank == 2
os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = "2"  # of those that begin
torch.manual_seed(newcomer)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).to(FAR)  # without buffers, whose copies would wait for all others
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=2, reducer="linear", outer_optimizer="sgd", on_loss="finish",
                          admit="exchange", most_replicas=3, join=30 if newcomer else None)
assert newcomer == (edit.info.steps > 0)
left = 6
while left:
    optimizer.zero_grad()
    model(torch.ones(4, 8, device=FAR) * rank).square().mean().backward()
    optimizer.step()
    left -= edit.replicas == 3
    if edit.replicas < 3:
        time.sleep(0.002)  # leaves the newcomer the processors
edit.synchronize()
with edit.consensus():
    agreed = float(flat(model).double().sum())
found = edit.engine.reduce([agreed])
assert found.ranks == 3 and found.values == [3 * agreed], (found, agreed)
edit.close()
far_device.check()
""", 3)


def test_errors_name_what_is_wrong(library):
    run(library, """
import pytest
from torch.utils._pytree import tree_map

EDiT, ACCO = entrain.torch.EDiT, entrain.torch.ACCO


def edit_around(model, **options):
    return EDiT(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, local_sgd_sync_interval=2, **options)


def acco_around(model, **options):
    return ACCO(model, "sgd", comm=comm, method="zero1", min_microbatches=1, max_microbatches=1, **options)


def train(edit, steps):
    for step in range(steps):
        edit.optimizer.zero_grad()
        loss_of(edit.model, 0, step).backward()
        edit.optimizer.step()


for around in (edit_around, acco_around):
    with pytest.raises(entrain.InvalidArgument, match="staging is False, and the parameters are on far:1"):
        around(build(FAR), staging=False)
    model = build(FAR)
    model.place.weight = nn.Parameter(model.place.weight.detach().to("far:0"))
    with pytest.raises(entrain.InvalidArgument, match="the parameter place.weight is .*on far:0.*expected.* one device"):
        around(model)


# A device that cannot be read, from the beginning or later.
far_device.copies_fail = True
for around in (edit_around, acco_around):
    with pytest.raises(entrain.InvalidArgument, match="on far:1, and PyTorch cannot copy between it and the host: far does not copy"):
        around(build(FAR))
far_device.copies_fail = False
with edit_around(build(FAR)) as edit:
    train(edit, 2)
    far_device.copies_fail = True
    with pytest.raises(entrain.Aborted, match="fetch") as raised:
        train(edit, 1)
    assert "far does not copy to the host" in str(raised.value.__cause__)
    far_device.copies_fail = False


# Parameters that are moved later.
def by_data(model):
    model.place.weight.data = model.place.weight.data.clone()


for move, text in ((by_data, "the parameter place.weight no longer lies"), (lambda model: model.to("far:0"), "no longer lies where"),
                   (lambda model: model.to("cpu"), "let .to.. come before, which may make new parameters")):
    with edit_around(build(FAR)) as edit:
        move(edit.model)
        with pytest.raises(entrain.FailedPrecondition, match=text):
            train(edit, 3)
    with acco_around(build(FAR)) as acco:
        move(acco.model)
        with pytest.raises(entrain.FailedPrecondition, match=text):
            for step in range(3):
                loss_of(acco.model, 0, step).backward()
                acco.step(1)


# Parameters whose elements lie in other tensors, which a flat array does not reach.
class Around(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda value: value.inner if isinstance(value, cls) else value, (args, kwargs or {}))
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, op(*args, **kwargs))


for device in ("cpu", FAR):
    for around in (edit_around, acco_around):
        model = build(device)
        model.place.weight = nn.Parameter(Around(model.place.weight.detach()))
        with pytest.raises(entrain.InvalidArgument, match=f"the parameter place.weight is a Around on {device}, which has no memory of"):
            around(model)
""", 1)


def test_the_back_end_of_torch_distributed_copies(library, tmp_path):
    run(library, """
import pytest
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

dist.init_process_group("entrain", init_method=f"file://{folder}/meeting", rank=comm.rank, world_size=comm.size)
rank, size = comm.rank, comm.size
late = False  # the calls are asynchronous


def values(device, *shape):
    return (torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 10 * rank).to(device)


def call(function, *arguments, **options):
    work = function(*arguments, async_op=late, **options)
    if late:
        work.wait()


def all_reduce(device):
    x, y, z = values(device, 4, 3), values(device, 4, 3), values(device, 4) > 11
    call(dist.all_reduce, x)
    call(dist.all_reduce, y.t(), op=dist.ReduceOp.MAX)
    call(dist.all_reduce, z)
    return x, y, z


def future(device):
    x, received = values(device, 4, 3), torch.zeros(3, device=device)
    if rank > 0:
        comm.barrier()  # rank 0 has its futures before its calls are over
    works = [dist.all_reduce(x, async_op=True)]
    if rank == 0:
        received.add_(1)  # nothing waits for this before the message comes
        works.append(dist.irecv(received, 1))
    twice = [work.get_future().then(lambda done: done.value()[0] * 2) for work in works]
    if rank == 0:
        comm.barrier()
    else:
        dist.send(values(device, 3), 0)
    return [one.wait() for one in twice], x, received


def from_and_to_one(device):
    x, y, z = values(device, 4, 3), values(device, 4, 3), torch.zeros(2, 3, device=device)
    call(dist.broadcast, x, 1)
    call(dist.reduce, y, 1)
    found = list(torch.zeros(size, 4, 3, device=device)) if rank == 0 else None
    call(dist.gather, x, found, 0)
    call(dist.scatter, z, [values(device, 2, 3) + i for i in range(size)] if rank == 0 else None, 0)
    return x, y if rank == 1 else None, found, z


def all_gather(device):
    x, whole = values(device, 2, 3), torch.zeros(2 * size, 3, device=device)
    apart = [torch.zeros(2, 3, device=device) for _ in range(size)]
    call(dist.all_gather, apart, x)
    call(dist.all_gather_into_tensor, whole, x)
    return apart, whole


def reduce_scatter(device):
    x, y = torch.zeros(2, 3, device=device), torch.zeros(2, 3, device=device)
    call(dist.reduce_scatter, x, [values(device, 2, 3) + i for i in range(size)])
    call(dist.reduce_scatter_tensor, y, values(device, 2 * size, 3))
    return x, y


def all_to_all(device):
    x, parts = torch.zeros(size, 3, device=device), [torch.zeros(3, device=device) for _ in range(size)]
    call(dist.all_to_all_single, x, values(device, size, 3))
    call(dist.all_to_all, parts, [values(device, 3) + i for i in range(size)])
    return x, parts


def messages(device):
    sent, received = values(device, 3), torch.zeros(3, device=device)
    calls = [dist.P2POp(dist.isend, sent, (rank + 1) % size), dist.P2POp(dist.irecv, received, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return received


def coalesced(device):
    tensors = [values(device, 3), values(device, 2, 2)]
    with dist._coalescing_manager(device=torch.device(device), async_ops=late) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if late:
        manager.wait()
    return tensors


def functionals(device):
    return functional.all_reduce(values(device, 3, 2), "sum", dist.group.WORLD) + 1


def ddp(device):
    model = build(device)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, foreach=True)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(wrapped, rank, step).backward()
        optimizer.step()
    return flat(model)


def on_host(found):
    if isinstance(found, (list, tuple)):
        return [on_host(one) for one in found]
    return found.cpu() if isinstance(found, torch.Tensor) else found


for function in (all_reduce, future, from_and_to_one, all_gather, reduce_scatter, all_to_all, messages, coalesced, functionals, ddp):
    for late in (False, True):
        on_both(lambda device: on_host(function(device)))
with pytest.raises(entrain.InvalidArgument, match="a tensor is on meta, where it has no elements"):
    dist.all_reduce(torch.zeros(2, device="meta"))
dist.destroy_process_group()

# Of a group with several back ends, PyTorch makes the first one alone.
dist.init_process_group("cpu:entrain,far:gloo", init_method=f"file://{folder}/mixed", rank=rank, world_size=size)
dist.all_reduce(values("cpu", 2))
with pytest.raises(entrain.InvalidArgument, match="a tensor is on far, for which this group was to have the back end gloo"):
    dist.all_reduce(values(FAR, 2))
dist.destroy_process_group()
""", 2, folder=str(tmp_path))


def test_fully_shard_has_the_cpus_bits(library, tmp_path):
    run(library, """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

torch.accelerator.set_device_index(1)  # fully_shard takes the current device
dist.init_process_group("entrain", init_method=f"file://{folder}/meeting", rank=comm.rank, world_size=comm.size)


def train(device):
    model = build(device)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    mesh = dist.init_device_mesh(torch.device(device).type, (2, 2), mesh_dim_names=("replica", "shard"))["shard"]
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=0.02, foreach=True)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=2, reducer="linear",
                              outer_optimizer="sgd")
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step).backward()
        edit.clip_grad_norm_(1.0)
        optimizer.step()
    assert edit.begin_step()
    state = edit.state_dict()
    edit.load_state_dict(state)
    edit.close()
    return [param.full_tensor().cpu() for param in model.parameters()]


one, other = train("cpu"), train(FAR)
far_device.check()
assert equal(one, other)
dist.destroy_process_group()
""", 4, folder=str(tmp_path))
