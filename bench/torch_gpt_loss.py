#!/usr/bin/env python3
"""Compares the losses of entrain.torch and entrain-train with the same weights, batches, learning rates and method.

    PYTHONPATH=python ENTRAIN_LIBRARY=build/dev/lib/api/libentrain.so \
      build/python/bin/python bench/torch_gpt_loss.py --build build/dev --method edit --steps 500 [--shard 2] [--out DIR]

Trains four ranks with entrain-train, then four with PyTorch. Prints both validation losses, their ratio, and the largest
difference of training losses at equal steps. With --shard 2 there are two replicas of two ranks, and fully_shard shards each
replica. The trainer's weights and batches depend only on the seed (examples/trainer/model.cc, data.cc), so this file
computes equal ones."""
import argparse
import gzip
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch import distributed as dist, nn

import entrain
import entrain.torch

VOCABULARY = 256


# ---- examples/trainer/random.h -----------------------------------------------------------------------------------------

def mix(a, b):
    """Returns SplitMix64's finaliser of two numbers, which may also be arrays of uint64."""
    with np.errstate(over="ignore"):
        z = np.uint64(a) + np.uint64(0x9E3779B97F4A7C15) * (np.uint64(b) + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Random:
    def __init__(self, key):
        self.key, self.counter = key, 0

    def next(self, count):
        numbers = mix(self.key, np.arange(self.counter, self.counter + count, dtype=np.uint64))
        self.counter += count
        return numbers

    def normal(self, deviation, *shape):
        uniform = (self.next(2 * math.prod(shape)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(1.0 - uniform[0::2]))
        found = deviation * radius * np.cos(6.283185307179586 * uniform[1::2])
        return torch.from_numpy(found.astype(np.float32).reshape(shape))


# ---- examples/trainer/model.cc, block.cc -------------------------------------------------------------------------------

class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        inner = (width * 8 // 3 + 15) // 16 * 16
        self.heads = heads
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        head = width // heads
        angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0 ** (-2.0 * torch.arange(head // 2) / head).double()
        self.cosine, self.sine = angles.cos().float(), angles.sin().float()

    def rotate(self, x):
        low, high = x.chunk(2, -1)
        return torch.cat([low * self.cosine - high * self.sine, low * self.sine + high * self.cosine], -1)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Last(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x):
        return self.head(self.norm(x))


class GPT(nn.Module):
    """The trainer's language model, with its starting weights."""

    def __init__(self, width, layers, heads, length, seed):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(width, heads, length) for _ in range(layers)])
        self.last = Last(width)
        with torch.no_grad():
            self.initialise(seed)

    def initialise(self, seed):
        by_width = 1.0 / math.sqrt(self.embed.embedding_dim)
        residual = 1.0 / math.sqrt(2.0 * len(self.blocks))
        self.embed.weight.copy_(Random(mix(seed, 0)).normal(by_width, *self.embed.weight.shape))
        for index, block in enumerate(self.blocks):
            random = Random(mix(seed, index + 1))
            for linear, deviation in ((block.qkv, by_width), (block.output, by_width * residual), (block.gate_up, by_width),
                                      (block.down, residual / math.sqrt(block.down.in_features))):
                linear.weight.copy_(random.normal(deviation, *linear.weight.shape))
        self.last.head.weight.copy_(Random(mix(seed, len(self.blocks) + 1)).normal(0.1 * by_width, *self.last.head.weight.shape))

    def layers(self):
        """Returns the groups of parameters that the trainer exchanges together."""
        return [self.embed, *self.blocks, self.last]

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def loss_of(model, windows):
    return nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


# ---- examples/trainer/data.cc ------------------------------------------------------------------------------------------

class Text:
    def __init__(self, path, length, seed):
        data = pathlib.Path(path).read_bytes()
        self.bytes = np.frombuffer(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, np.uint8)
        self.training = len(self.bytes) - len(self.bytes) // 20
        self.length, self.seed = length, seed

    def _windows(self, places):
        return torch.from_numpy(np.stack([self.bytes[at:at + self.length + 1] for at in places]).astype(np.int64))

    def draw(self, rank, number, rows):
        """Returns batch `number` of `rank`."""
        random = Random(mix(mix(self.seed, rank), number))
        return self._windows((random.next(rows) % np.uint64(self.training - self.length)).tolist())

    def validation(self, first, rows, windows):
        """`windows` windows are spread over the validation part. Returns windows first .. first + rows - 1."""
        room = len(self.bytes) - self.training - self.length - 1
        return self._windows([self.training + (room * (i % windows) // (windows - 1) if windows > 1 else 0)
                              for i in range(first, first + rows)])


# ---- examples/trainer/inner_optimizer.cc, replica_run.cc ------------------------------------------------------------------

def learning_rate(args, step):
    least, rise = args.lr / 10, min(args.steps // 20, args.steps)
    if step <= rise:
        return args.lr * step / rise
    return least + (args.lr - least) * 0.5 * (1.0 + math.cos(math.pi * (step - rise) / (args.steps - rise)))


def options_of(args):
    """Returns the options of the method for entrain.torch, and the flags of entrain-train for the same options."""
    options = dict(local_sgd_warmup_steps=args.warmup, outer_optimizer="sgd", outer_nesterov=True, outer_lr=args.outer_lr,
                   outer_momentum=args.outer_momentum, reducer="linear", pseudo_gradnorm_reduce=True, clip_pseudo_grad=10.0,
                   skip_anomaly=True)
    flags = ["--local-sgd-warmup-steps", args.warmup, "--outer-lr", args.outer_lr, "--outer-momentum", args.outer_momentum]
    if args.method == "a-edit":
        # Replicas have a rendezvous after every step. They exchange when the sum of their steps is EDiT's interval times
        # their number. If only the time counted, the faster program would make more steps per exchange.
        together = args.interval * args.ranks // args.shard
        options.update(local_sgd_sync_time=1e-6, min_total_global_steps=together)
        return options, [*flags, "--local-sgd-sync-time", "1e-6", "--min-total-global-steps", together]
    options["local_sgd_sync_interval"] = args.interval
    return options, [*flags, "--local-sgd-sync-interval", args.interval]


def train(args):
    """Trains on one rank. Rank 0 writes the result to args.out."""
    torch.set_num_threads(1)
    comm = entrain.Comm.from_env()
    text = Text(args.data, args.length, args.seed)
    model = GPT(args.width, args.layers, args.heads, args.length, args.seed)
    if args.shard > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        store = dist.FileStore(args.out + ".store", comm.size)
        dist.init_process_group("entrain", store=store, rank=comm.rank, world_size=comm.size)
        mesh = init_device_mesh("cpu", (comm.size // args.shard, args.shard), mesh_dim_names=("sync", "shard"))["shard"]
        for module in [*model.layers(), model]:
            fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    kind = entrain.torch.AEDiT if args.method == "a-edit" else entrain.torch.EDiT
    edit = kind(model, optimizer, comm=comm, layers=None if args.shard > 1 else model.layers(), **options_of(args)[0])
    losses = np.zeros(args.steps)
    began = time.perf_counter()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, step + 1)
        optimizer.zero_grad()
        loss = loss_of(model, text.draw(comm.rank, step, args.batch))
        loss.backward()
        edit.clip_grad_norm_(1.0)
        optimizer.step()
        losses[step] = loss.item()
        if comm.rank == 0 and (step + 1) % max(1, args.steps // 5) == 0:
            print(f"step {step + 1}: loss {losses[step]:.4f}", flush=True)
    if args.method == "a-edit":
        edit.leave()
    elif args.steps > args.warmup:
        edit.synchronize()
    seconds = time.perf_counter() - began
    model.eval()
    found = np.zeros(2)
    with torch.no_grad():
        for turn in range(-(-args.val_batches // comm.size)):
            number = turn * comm.size + comm.rank
            first = number % args.val_batches * args.batch
            loss = loss_of(model, text.validation(first, args.batch, args.val_batches * args.batch))
            if number < args.val_batches:
                found += (loss.item(), 1)
    comm.all_reduce(found)
    everybody = comm.all_gather(losses).reshape(comm.size // args.shard, args.shard, args.steps).mean(1)
    if comm.rank == 0:
        result = {"losses": everybody.tolist(), "val_loss": found[0] / found[1], "syncs": edit.info.syncs, "seconds": seconds}
        pathlib.Path(args.out).write_text(json.dumps(result))
    edit.close()
    if args.shard > 1:
        dist.destroy_process_group()
    comm.close()


# ---- both, one after the other -------------------------------------------------------------------------------------------

def run(command, seconds):
    subprocess.run([str(word) for word in command], check=True, timeout=seconds,
                   env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})


def compare(args, out, seconds):
    """Trains with both programs, each for at most `seconds`. Returns the results of both. In each, "losses" is indexed by
    replica and step."""
    build = pathlib.Path(args.build)
    launch = [build / "tools/entrain-run", "-n", args.ranks, "--"]
    run([*launch, build / "examples/trainer/entrain-train", "--method", args.method, "--data", args.data,
         "--shard-size", args.shard, "--steps", args.steps, "--hidden-size", args.width, "--layers", args.layers,
         "--heads", args.heads, "--seq-length", args.length, "--batch-size", args.batch, "--lr", args.lr, "--seed", args.seed,
         "--val-batches", args.val_batches, *options_of(args)[1], "--log", out / "trainer.jsonl",
         "--summary", out / "trainer.json"], seconds)
    trainer = json.loads((out / "trainer.json").read_text())
    trainer["losses"] = [[0.0] * args.steps for _ in range(args.ranks // args.shard)]
    for line in (out / "trainer.jsonl").read_text().splitlines():
        record = json.loads(line)
        trainer["losses"][record["replica"]][record["step"] - 1] = record["loss"]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in vars(args).items() if name not in ("out", "worker")]
    run([*launch, sys.executable, __file__, "--worker", "--out", out / "torch.json", *words], seconds)
    return trainer, json.loads((out / "torch.json").read_text())


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/dev", help="where entrain-run and entrain-train were built")
    parser.add_argument("--data", default="/usr/share/dictd/gcide.dict.dz", help="plain or gzip")
    parser.add_argument("--out", help="where both write what they find; default: nowhere that stays")
    parser.add_argument("--method", choices=["edit", "a-edit"], default="edit")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--shard", type=int, default=1, help="ranks that share a replica, by fully_shard")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--interval", type=int, default=16, help="H")
    parser.add_argument("--warmup", type=int, default=14, help="synchronous steps at the start")
    parser.add_argument("--outer-lr", type=float, default=0.8)
    parser.add_argument("--outer-momentum", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--val-batches", type=int, default=48)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main():
    args = parse()
    if args.worker:
        train(args)
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = pathlib.Path(args.out or temporary)
        out.mkdir(parents=True, exist_ok=True)
        trainer, torchs = compare(args, out, 6 * 3600)
    apart = np.abs(np.array(torchs["losses"]) / np.array(trainer["losses"]) - 1).max(0)
    print(f"{args.method}, {args.ranks // args.shard} x {args.shard}, H {args.interval}, seed {args.seed}, {args.steps} steps, "
          f"exchanges {trainer['syncs']} and {torchs['syncs']}")
    for first, last in ((1, 1), (2, 10), (11, 50), (51, args.steps)):
        if first <= args.steps:
            print(f"training losses of steps {first} to {min(last, args.steps)}: at most {apart[first - 1:last].max():.1e} apart")
    print(f"validation loss: entrain-train {trainer['val_loss']:.6f}, entrain.torch {torchs['val_loss']:.6f}, ratio "
          f"{torchs['val_loss'] / trainer['val_loss']:.6f}")


if __name__ == "__main__":
    main()
