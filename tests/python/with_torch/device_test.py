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
    tokens = tokens.to(model.frozen.device)
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
    "mix": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", overlap_steps=1, overlap_merge="mix"),
    "fragments": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", overlap_steps=1, fragments=2),
    "int8": dict(local_sgd_sync_interval=4, reducer="linear", outer_optimizer="sgd", wire_format="int8"),
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
        assert all(layer.host is not layer.flat and layer.host.is_pinned() == pinned for layer in edit._layers)
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
""", 2, f"no {lacks}", ways={way: WAYS[way] for way in ("weighted", "behind")}, lacks=lacks, pinned=lacks != "pinning")
