"""A program for fully_shard on a mesh of two dimensions (HSDP), with EDiT between the replicas (docs/migrate/ddp-fsdp.md).

    torchrun --nproc-per-node 4 from_fsdp2.py"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import entrain.torch

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
for block in (model[0], model[2]):
    fully_shard(block, mesh=mesh["shard"])  # one dimension: EDiT itself connects the replicas
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=16, local_sgd_warmup_steps=32)
torch.manual_seed(2 + dist.get_rank())
for step in range(200):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
edit.synchronize()
if dist.get_rank() == 0:
    print(f"loss {loss.item():.3f} after {edit.info.syncs} exchanges of {edit.replicas} replicas", flush=True)
edit.close()
dist.destroy_process_group()
