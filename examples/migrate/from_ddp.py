"""A program for DistributedDataParallel, with EDiT in its place (docs/migrate/ddp-fsdp.md).

    torchrun --nproc-per-node 2 from_ddp.py"""
import torch
from torch import nn

import entrain.torch

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=16, local_sgd_warmup_steps=32)
torch.manual_seed(2 + edit.comm.rank)
for step in range(300):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    edit.clip_grad_norm_(1.0)
    optimizer.step()
edit.synchronize()  # the replicas agree
if edit.comm.rank == 0:
    print(f"loss {loss.item():.3f} after {edit.info.syncs} exchanges of {edit.replicas} replicas", flush=True)
edit.close()
