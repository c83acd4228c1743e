"""A program for PCCL's collectives: peers that average gradients, go on after a loss, and take in others (docs/migrate/pccl.md).

    entrain-run --elastic -n 3 -- python3 from_pccl.py"""
import os

import numpy as np
import torch
from torch import nn

import entrain

STEPS = 300
comm = entrain.Comm.from_env()  # of a process that was started again: joins the others
torch.manual_seed(1 + comm.rank)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # without state of its own, which others would have to send
step, newcomers = np.zeros(1, np.int64), True


def receive_state() -> None:
    """Makes all ranks equal to rank 0, which was there before the others."""
    comm.broadcast(step, root=0)
    for param in model.parameters():
        comm.broadcast(param.detach(), root=0)


print(f"rank {comm.rank}, process {os.getpid()}", flush=True)
while True:
    try:
        if newcomers:
            receive_state()
            newcomers = False
        if step[0] == STEPS:
            break
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        for param in model.parameters():
            comm.all_reduce(param.grad, op="avg")
        grown = comm.grow() if step[0] % 10 == 9 else None
    except entrain.PeerLost:
        comm = comm.shrink()  # the survivors; all repeat the step, from the parameters of the first of them
        newcomers = True
        continue
    optimizer.step()
    step += 1
    if grown is not None:
        comm, newcomers = grown, True
norm = sum(param.norm().item() for param in model.parameters())
print(f"rank {comm.rank} of {comm.size}: loss {loss.item():.3f}, generation {comm.generation}, norm {norm:.6f}", flush=True)
comm.close()
