#!/usr/bin/env python3
"""A rank of entrain-train's language model in PyTorch, for what only PyTorch has: Muon (torch.optim.Muon) as the inner optimizer.

    entrain-run -n 4 -- python3 torch_gpt.py --data FILE --method diloco --optimizer muon --summary SUMMARY --log LOG

With --optimizer muon, Muon steps the matrices of the blocks, and AdamW the embedding, the head and the norms, as MuLoCo does (arXiv
2505.23725). Model, starting weights and batches are those of entrain-train, so are the flags, the log and the summary, as far as
experiments.py reads them."""

import argparse
import json
import math
import pathlib
import sys
import time

import numpy as np
import torch

import entrain
import entrain.torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "bench"))
from torch_gpt_loss import GPT, Text, loss_of  # noqa: E402  (the path comes first)


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for matrices and AdamW for other parameters, as one optimizer. Muon's steps are scaled to the size of AdamW's, so
    both have one learning rate."""

    def __init__(self, matrices, others, lr, weight_decay, **adamw):
        self.parts = (
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, weight_decay=weight_decay, **adamw),
        )
        super().__init__([*matrices, *others], {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        assert closure is None
        for part in self.parts:
            part.step()


def optimizer_of(args, model):
    adamw = {"betas": (0.9, args.beta2), "eps": 1e-8, "weight_decay": args.weight_decay}
    if args.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=args.lr, **adamw)
    matrices = [one for one in model.blocks.parameters() if one.dim() == 2]
    chosen = {id(one) for one in matrices}
    return Muon(matrices, [one for one in model.parameters() if id(one) not in chosen], lr=args.lr, **adamw)


def learning_rate(args, step):
    rise = args.steps // 20 if args.lr_warmup_steps is None else args.lr_warmup_steps
    if step <= rise:
        return args.lr * step / rise
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / (args.steps - rise))))


def validate(model, text, comm, args):
    """Returns the loss of the validation batches, which the ranks share."""
    found = np.zeros(2)
    with torch.no_grad():
        for number in range(comm.rank, args.val_batches, comm.size):
            windows = text.validation(number * args.batch_size, args.batch_size, args.val_batches * args.batch_size)
            found += (loss_of(model, windows).item(), 1)
    comm.all_reduce(found)
    return found[0] / found[1]


def train(args):
    torch.set_num_threads(1)
    comm = entrain.Comm.from_env()
    text = Text(args.data, args.seq_length, args.seed)
    model = GPT(args.hidden_size, args.layers, args.heads, args.seq_length, args.seed)
    optimizer = optimizer_of(args, model)
    warmup = args.steps if args.method == "ddp" else args.local_sgd_warmup_steps
    outer = {"outer_lr": args.outer_lr, "outer_momentum": args.outer_momentum}
    local = entrain.torch.DiLoCo(
        model, optimizer, comm=comm, layers=model.layers(), local_sgd_warmup_steps=warmup,
        local_sgd_sync_interval=args.local_sgd_sync_interval, **outer)
    losses, began = np.zeros(args.steps), time.perf_counter()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, step + 1)
        optimizer.zero_grad()
        loss = loss_of(model, text.draw(comm.rank, step, args.batch_size))
        loss.backward()
        local.clip_grad_norm_(1.0)
        optimizer.step()
        losses[step] = loss.item()
    if args.method != "ddp":
        local.synchronize()
    wall_s = time.perf_counter() - began
    model.eval()
    val_loss = validate(model, text, comm, args)
    everybody = comm.all_gather(losses).reshape(comm.size, args.steps)
    if comm.rank == 0:
        write(args, everybody, {"val_loss": val_loss, "wall_s": wall_s, "syncs": local.info.syncs,
                                "params": sum(one.numel() for one in model.parameters())})
    local.close()
    comm.close()


def write(args, losses, found):
    ranks = len(losses)
    found |= {"steps": args.steps, "final_train_loss": float(losses[:, -20:].mean()), "replica_steps": [args.steps] * ranks,
              "tokens": ranks * args.steps * args.batch_size * args.seq_length}
    args.summary.write_text(json.dumps(found))
    with open(args.log, "w", encoding="utf-8") as log:
        for (replica, step), loss in np.ndenumerate(losses):
            log.write(json.dumps({"step": step + 1, "replica": replica, "loss": loss}) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--method", choices=["ddp", "diloco"], default="diloco")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="muon")
    for name in ("summary", "log"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    for name, value in {"steps": 200, "seed": 1, "hidden_size": 64, "layers": 4, "heads": 4, "seq_length": 32, "batch_size": 8,
                        "val_batches": 32, "lr_warmup_steps": None, "local_sgd_warmup_steps": 0, "local_sgd_sync_interval": 16}.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    for name, value in {"lr": 0.002, "beta2": 0.95, "weight_decay": 0.01, "outer_lr": 0.7, "outer_momentum": 0.8}.items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse())
