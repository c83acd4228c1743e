"""A program for OpenDiLoCo's optimizer, over a slow network (docs/migrate/opendiloco.md).

    entrain-run --elastic -n 2 -- python3 from_opendiloco.py"""
import torch
from torch import nn

import entrain.torch
from entrain.integrations import elastic

place = elastic.alone()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
inner = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner, 400)
edit = entrain.torch.DiLoCo(
    model, inner, local_sgd_sync_interval=50,
    outer_optim_class=torch.optim.SGD, outer_optim_kwargs=dict(lr=0.7, momentum=0.9, nesterov=True),
    wire_format="int8",  # a quarter of the bytes
    hand_over={"optimizer": inner, "scheduler": scheduler}, **place.options)
scaler = torch.amp.GradScaler("cpu", enabled=False)  # as in any loop of PyTorch
data = torch.Generator().manual_seed(2 + place.replica)
while edit.info.steps < 400:
    x = torch.randn(32, 8, generator=data)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    scaler.scale(loss).backward()
    scaler.unscale_(inner)
    edit.clip_grad_norm_(1.0)
    scaler.step(inner)
    scaler.update()
    scheduler.step()
    inner.zero_grad()
edit.synchronize()
sent, norm = edit.info.bytes_sent_sync / edit.info.syncs, sum(param.norm().item() for param in model.parameters())
print(f"replica {place.replica} of {edit.replicas}: loss {loss.item():.3f}, {sent:.0f} bytes an exchange, norm {norm:.6f}", flush=True)
edit.close()
