"""Entrain inside training frameworks. Each module needs its framework, and this package imports none of them:

    entrain.integrations.transformers    EDiTCallback for transformers.Trainer
    entrain.integrations.accelerate      prepare, in place of Accelerator.prepare
    entrain.integrations.lightning       EDiTStrategy for lightning.Trainer
    entrain.integrations.torchtitan      EDiTTrainer, torchtitan's Trainer

In all of them each process (in torchtitan: each torchrun) is a replica of EDiT. The framework divides the data among the processes as
for DistributedDataParallel, but does not wrap the model, because a model whose gradients are averaged at every step has nothing to
exchange. All of them take the options of entrain.torch.EDiT.

entrain.integrations.elastic makes each process (or torchrun) a job of its own, so that replicas may be lost and come back."""
