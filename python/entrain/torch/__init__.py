"""Entrain for PyTorch: training methods around modules and optimizers, and the back end "entrain" of
torch.distributed. Importing this package registers the back end:

    import entrain.torch, torch.distributed
    torch.distributed.init_process_group("entrain")  # or "cpu:entrain"
"""
from . import optim
from .acco import ACCO
from .checkpoints import Checkpoints
from .edit import AEDiT, DiLoCo, EDiT
from .process_group import ProcessGroup, register

register()

__all__ = ["ACCO", "AEDiT", "Checkpoints", "DiLoCo", "EDiT", "ProcessGroup", "optim"]
