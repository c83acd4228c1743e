"""05: PyTorch's FSDP2 and A-EDiT: a slow replica does not delay the others.

Why: EDiT exchanges every H steps, so all replicas are as slow as the slowest one. A-EDiT exchanges every tau seconds. In
this time each replica makes as many steps as it can. Here fully_shard has sharded each replica over two processes. The
last replica sleeps in every step.

    entrain-run -n 4 -- python3 05_torch_fsdp2_aedit.py"""
import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import entrain.torch


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--sync-time", type=float, default=2.0, help="tau: seconds between exchanges")
    parser.add_argument("--sleep", type=float, default=0.1, help="seconds that the last replica sleeps in every step")
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)

    dist.init_process_group("entrain")  # for fully_shard; any other back end works too
    shards = 2
    mesh = init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replica", "shard"))

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, args.width), *[Block(args.width) for _ in range(2)], nn.Linear(args.width, 2))
    for block in model[1:-1]:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    edit = entrain.torch.AEDiT(
        model, optimizer,
        local_sgd_sync_time=args.sync_time, min_total_global_steps=1, local_sgd_warmup_steps=2,
        outer_lr=0.8, outer_momentum=0.3)

    slow = edit.replica == edit.replicas - 1
    torch.manual_seed(100 + dist.get_rank())
    losses, start = [], time.monotonic()
    while not edit.info.wishes:  # all ranks see a wish after the same exchange
        x = torch.randn(64, 8)
        loss = nn.functional.mse_loss(model(x), torch.stack([x[:, 0] * x[:, 1], x[:, 2:].max(1).values], 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        edit.record(len(x), loss.item(), 1.0)  # samples and loss travel with the next exchange
        if slow:
            time.sleep(args.sleep)
        if time.monotonic() - start > args.seconds:
            edit.engine.wish(stop=True)
    seconds = time.monotonic() - start
    edit.leave()

    info = edit.info
    print(f"replica {edit.replica}{' (slow)' if slow else ''}: {info.steps} steps in {seconds:.1f} s, of which "
          f"{info.exposed_ns / 1e9:.1f} s waiting in {info.syncs} exchanges; "
          f"loss {losses[0]:.3f} -> {statistics.mean(losses[-10:]):.3f}, "
          f"anchors {info.anchor_checksum:016x}", flush=True)
    edit.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
