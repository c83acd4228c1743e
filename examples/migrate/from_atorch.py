"""A program for ATorch's local SGD, with its settings (docs/migrate/atorch.md).

    torchrun --nproc-per-node 2 from_atorch.py"""
import torch
from torch import nn

import entrain.torch

# What dataclasses.asdict gives of LocalSGDConfig, OuterOptimizerConfig and GTAConfig.
local_sgd = dict(use_async=False, local_sgd_sync_interval=16, local_sgd_sync_time=600, min_total_global_steps=100,
                 use_step_weight=False, step_weight_ratio=0.5, local_sgd_warmup_steps=32, gradient_accumulation_steps=1,
                 clip_pseudo_grad=10.0, pseudo_gradnorm_reduce=True, weight_softmax_temperature=None, skip_anomaly=True,
                 ewma_alpha=0.02, ewma_warmup_steps=120, ewma_threshold=3, cpu_offload=True)
outer = dict(outer_optim_class=torch.optim.SGD, outer_optim_kwargs=dict(lr=0.7, momentum=0.8, nesterov=True))
gta = dict(reducer="linear", consensus_method=None, sparsification_method=None, normalize=True, density=1.0, int8_mask=False)

ELSEWHERE = ("cpu_offload", "int8_mask")  # no such options: anchors are on the host, and there are no masks on the wire
options = {name: value for name, value in {**local_sgd, **outer, **gta}.items() if value is not None and name not in ELSEWHERE}

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, preset="published", **options)  # what is not given has ATorch's defaults
torch.manual_seed(2 + edit.comm.rank)
for step in range(300):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
edit.synchronize()
if edit.comm.rank == 0:
    print(f"loss {loss.item():.3f} after {edit.info.syncs} exchanges of {edit.replicas} replicas", flush=True)
edit.close()
