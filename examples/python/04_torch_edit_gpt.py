"""04: PyTorch and EDiT: a small GPT learns the bytes of a text.

Why: the loop below is an ordinary loop of PyTorch. Five lines make each process a replica that trains alone for H steps.
Then the replicas exchange their progress layer by layer, during the next forward pass.

    entrain-run -n 4 -- python3 04_torch_edit_gpt.py --data FILE        (plain or gzip; default: Debian's dict-gcide)"""
import argparse
import gzip
import pathlib

import torch
from torch import nn

import entrain
import entrain.torch


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width, layers, heads, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, bytes_):
        x = self.tokens(bytes_) + self.places(torch.arange(bytes_.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, text, length, batch, generator):
    starts = torch.randint(len(text) - length - 1, (batch,), generator=generator)
    rows = torch.stack([text[start:start + length + 1] for start in starts]).long()
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="/usr/share/dictd/gcide.dict.dz")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--interval", type=int, default=16, help="H")
    parser.add_argument("--warmup", type=int, default=14, help="synchronous steps at the start")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)

    data = pathlib.Path(args.data).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    held_out = len(text) // 20
    train, validation = text[:-held_out], text[-held_out:]

    torch.manual_seed(1)
    model = GPT(args.width, args.layers, 4, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    edit = entrain.torch.EDiT(
        model, optimizer,
        local_sgd_sync_interval=args.interval, local_sgd_warmup_steps=args.warmup,
        outer_lr=0.8, outer_momentum=0.3)  # the rest is the paper's: weights by norms, clipping, anomaly elimination

    def validate():
        model.eval()
        with torch.no_grad(), edit.consensus():
            fixed = torch.Generator().manual_seed(0)
            loss = sum(loss_of(model, validation, args.length, args.batch, fixed) for _ in range(8)) / 8
        model.train()
        return float(loss)

    generator = torch.Generator().manual_seed(1 + edit.comm.rank)  # each process reads different parts of the text
    before = validate()
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = loss_of(model, train, args.length, args.batch, generator)
        loss.backward()
        edit.clip_grad_norm_(1.0)
        optimizer.step()
        if edit.comm.rank == 0 and (step + 1) % max(1, args.steps // 5) == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    if args.steps > args.warmup:
        edit.synchronize()
    info = edit.info
    print(f"validation loss {before:.4f} -> {validate():.4f}, {info.syncs} exchanges, anchors {info.anchor_checksum:016x}")
    edit.close()


if __name__ == "__main__":
    main()
