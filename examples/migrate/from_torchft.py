"""A program for torchft's DiLoCo and Manager, with replicas that may die and come back (docs/migrate/torchft.md).

    entrain-run --elastic -n 3 -- python3 from_torchft.py"""
import os

import torch
from torch import nn

import entrain.torch
from entrain.integrations import elastic

STEPS = 400
place = elastic.alone()  # first: no torch.distributed, in which the loss of one process ends all
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
edit = entrain.torch.DiLoCo(
    model, inner, local_sgd_sync_interval=20,
    outer_optim_class=torch.optim.SGD, outer_optim_kwargs=dict(lr=0.7, momentum=0.9, nesterov=True),
    min_replicas=1, hand_over={"optimizer": inner}, **place.options)
print(f"replica {place.replica}, process {os.getpid()}, begins at step {edit.info.steps} of {STEPS}", flush=True)
data = torch.Generator().manual_seed(2 + place.replica)
while edit.info.steps < STEPS:  # of a replica that came back: the others' step
    x = torch.randn(32, 8, generator=data)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    inner.zero_grad()
    loss.backward()
    inner.step()
edit.synchronize()
norm = sum(param.norm().item() for param in model.parameters())
print(f"replica {place.replica} of {edit.replicas}: loss {loss.item():.3f}, step {edit.info.steps}, norm {norm:.6f}", flush=True)
edit.close()
