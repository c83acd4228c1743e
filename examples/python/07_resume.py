"""07: PyTorch: a run continues with other numbers of replicas and of processes in each.

Why: the number of machines may change between runs. A portable state dictionary has the parameters on which all replicas
have agreed, the outer optimizer's momentum, and counts. The tensors are whole, and have the names of the parameters.
torch.distributed.checkpoint divides them among the ranks of the new run. The dictionary has no state of single
processes, so the inner optimizer starts anew.

    entrain-run -n 4 -- python3 07_resume.py --shards 2 --save DIRECTORY    # two replicas of two processes
    entrain-run -n 3 -- python3 07_resume.py --load DIRECTORY               # three replicas of one"""
import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import entrain.torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=1, help="M: processes of a replica, over which fully_shard cuts the model")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save", metavar="DIRECTORY", help="write a checkpoint there at the end")
    parser.add_argument("--load", metavar="DIRECTORY", help="go on from the checkpoint there")
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)

    # for fully_shard and torch.distributed.checkpoint; any other back end works too
    dist.init_process_group("entrain")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, args.width), nn.Tanh(), nn.Linear(args.width, args.width), nn.Tanh(),
                          nn.Linear(args.width, 2))
    if args.shards > 1:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // args.shards, args.shards), mesh_dim_names=("replica", "shard"))
        fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    edit = entrain.torch.EDiT(
        model, optimizer, local_sgd_sync_interval=10, local_sgd_warmup_steps=10)
    if args.load:
        state = {"edit": edit.empty_state_dict(exact=False)}
        dcp.load(state, checkpoint_id=args.load)
        edit.load_state_dict(state["edit"])
    first = edit.info.steps

    def batch(seed):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))
        return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2:].max(1).values], 1)

    def validate():
        x, y = batch(0)
        with edit.consensus(), torch.no_grad():
            return nn.functional.mse_loss(model(x), y).item()

    before = validate()
    for step in range(first, first + args.steps):
        x, y = batch(1 + dist.get_rank() + 1000 * step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    edit.synchronize()  # makes an exchange at this step, although none is due
    state = {"edit": edit.state_dict(exact=False)}
    after = validate()
    if args.save:
        dcp.save(state, checkpoint_id=args.save)
    print(f"{edit.replicas} x {args.shards}: steps {first} to {edit.info.steps}, validation loss {before:.5f} -> {after:.5f}", flush=True)
    edit.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
