"""06: PyTorch and ACCO: the gradients of a step cross the network while the next ones are computed.

Why: a loop with optimizer.step() waits for the gradients of all ranks. With ACCO a rank computes more gradients until the
exchange of the previous gradients has ended. The library makes the optimizer's steps. Each rank holds a part of the
optimizer's state.

    entrain-run -n 4 -- python3 06_torch_acco.py --data FILE [--method zero1]        (default: Debian's dict-gcide)"""
import argparse
import gzip
import pathlib
import statistics
import time

import torch
from torch import nn

import entrain.torch


class GPT(nn.Module):
    def __init__(self, width, layers, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, bytes_):
        length = bytes_.shape[1]
        x = self.tokens(bytes_) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="/usr/share/dictd/gcide.dict.dz")
    parser.add_argument("--method", default="acco", choices=["acco", "dpu", "wp", "zero1"])
    parser.add_argument("--steps", type=int, default=150, help="steps of the optimizer")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)

    data = pathlib.Path(args.data).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    torch.manual_seed(1)
    model = GPT(args.width, args.layers, args.length)
    matrices = [param for param in model.parameters() if param.dim() > 1]
    vectors = [param for param in model.parameters() if param.dim() == 1]  # norms and biases: no weight decay
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3)
    # ACCO takes the options and parameter groups from the optimizer, whose step() is never called.
    acco = entrain.torch.ACCO(model, optimizer, method=args.method, clip_norm=1.0, limit=args.steps)

    generator = torch.Generator().manual_seed(1 + acco.comm.rank)  # each rank reads different parts of the text
    losses, start = [], time.monotonic()
    while not acco.finished:
        starts = torch.randint(len(text) - args.length - 1, (args.batch,), generator=generator)
        rows = torch.stack([text[first:first + args.length + 1] for first in starts]).long()
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()  # adds to the gradients of the next exchange; param.grad stays None
        losses.append(loss.item())
        acco.step(args.batch * args.length)
    seconds = time.monotonic() - start

    info = acco.info
    norm = torch.cat([param.detach().ravel() for param in model.parameters()]).norm()
    print(f"rank {acco.comm.rank}: {len(losses)} micro-batches in {seconds:.1f} s, of which {info.exposed_ns / 1e9:.1f} s waiting; "
          f"loss {losses[0]:.3f} -> {statistics.mean(losses[-10:]):.3f}; all ranks: {info.commits} steps on {info.tokens} bytes, "
          f"norm of the parameters {norm.item():.9g}", flush=True)
    acco.close()


if __name__ == "__main__":
    main()
