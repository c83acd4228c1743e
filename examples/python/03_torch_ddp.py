"""03: PyTorch's DistributedDataParallel on the back end "entrain" of torch.distributed.

Why: a program that uses torch.distributed changes one word. DDP, and everything else that is built on torch.distributed,
runs unchanged.

    entrain-run -n 4 -- python3 03_torch_ddp.py          (or: torchrun --nproc-per-node 4 03_torch_ddp.py)"""
import torch
import torch.distributed as dist
from torch import nn

import entrain.torch  # registers the back end

torch.set_num_threads(1)
dist.init_process_group("entrain")  # instead of "gloo"
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(rank)  # DDP copies the parameters of rank 0 to all
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(200):
    x = torch.randn(32, 8)  # every rank has data of its own
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()  # each bucket of gradients is averaged while the backward pass continues
    optimizer.step()
    if step % 40 == 39:
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step + 1}: loss {mean.item():.4f}", flush=True)

norm = torch.cat([param.detach().ravel() for param in model.parameters()]).norm()
print(f"rank {rank} of {size}: norm of the parameters {norm.item():.9g}")
dist.destroy_process_group()
