"""Entrain for PyTorch. Importing this package makes the back end "entrain" known to torch.distributed:

    import entrain.torch, torch.distributed
    torch.distributed.init_process_group("entrain")  # or "cpu:entrain"
"""
from .process_group import ProcessGroup, register

register()

__all__ = ["ProcessGroup"]
