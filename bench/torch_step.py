"""Times a step of PyTorch that makes no exchange: alone, with EDiT, and with EDiT on twins of the parameters (staging), in turn in one run:

    entrain-run -n 2 -- build/python/bin/python bench/torch_step.py [--width 256] [--layers 8] [--batch 64] [--steps 150]

Rank 0 prints the median of each, and its ratio to the step alone."""
import argparse
import statistics
import time

import torch
from torch import nn

import entrain
import entrain.torch

NEVER = 10**6  # steps to the first exchange


class Trained:
    def __init__(self, comm, args, options):
        torch.manual_seed(0)
        width = args.width
        self.model = nn.Sequential(*[nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                     for _ in range(args.layers)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.inputs, self.seconds = torch.randn(args.batch, width), []
        self.edit = None if options is None else entrain.torch.EDiT(self.model, self.optimizer, comm=comm, preset="diloco",
                                                                    local_sgd_sync_interval=NEVER, **options)

    def step(self):
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 256), ("layers", 8), ("batch", 64), ("steps", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with entrain.Comm.from_env() as comm:
        ways = {"alone": None, "EDiT": {"staging": False}, "EDiT, staging": {"staging": True}}
        trained = {name: Trained(comm, args, options) for name, options in ways.items()}
        for _ in range(args.steps):
            for one in trained.values():
                one.step()
        medians = {name: statistics.median(one.seconds[args.steps // 10:]) for name, one in trained.items()}
        if comm.rank == 0:
            count = sum(param.numel() for param in trained["alone"].model.parameters())
            print(f"{count / 1e6:.1f} million parameters, {comm.size} ranks")
            for name, seconds in medians.items():
                print(f"{name:14} {1e3 * seconds:8.2f} ms  {seconds / medians['alone']:.3f}")
        for one in trained.values():
            if one.edit is not None:
                one.edit.close()


if __name__ == "__main__":
    main()
