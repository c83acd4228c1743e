#!/usr/bin/env python3
"""Measures the overhead of entrain.torch.EDiT in a step without an exchange: steps of a small GPT with and without
it, in alternation.

    PYTHONPATH=python ENTRAIN_LIBRARY=... python3 bench/torch_edit_overhead.py [--rounds N] [--steps N]

Runs one process. In it a step does everything except the exchange: hooks, begin_forward, gradient_scope, end_step.
Prints the median and the quartiles of the ratio: time with EDiT over time without it, round by round."""
import argparse
import importlib.util
import pathlib
import statistics
import time

import torch

import entrain.torch

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples/python/04_torch_edit_gpt.py"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5, help="steps in a round")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("gpt", EXAMPLE)
    gpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt)
    text = torch.randint(0, 256, (100_000,), dtype=torch.uint8)

    def make(wrapped):
        torch.manual_seed(1)
        model = gpt.GPT(args.width, args.layers, 4, 128)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=10**9, outer_optimizer="sgd") if wrapped else None
        generator = torch.Generator().manual_seed(1)

        def step():
            optimizer.zero_grad()
            gpt.loss_of(model, text, 128, 8, generator).backward()
            optimizer.step()

        return step, edit

    (plain, _), (wrapped, edit) = make(False), make(True)
    for step in (plain, wrapped):
        for _ in range(3):
            step()
    cpu, wall = {plain: [], wrapped: []}, {plain: [], wrapped: []}
    for number in range(args.rounds):
        for step in (plain, wrapped) if number % 2 else (wrapped, plain):
            began, used = time.perf_counter(), time.process_time()
            for _ in range(args.steps):
                step()
            wall[step].append((time.perf_counter() - began) / args.steps)
            cpu[step].append((time.process_time() - used) / args.steps)
    for name, times in (("wall", wall), ("processor", cpu)):
        low, middle, high = statistics.quantiles([w / p for w, p in zip(times[wrapped], times[plain])], n=4)
        print(f"{name}: {1e3 * statistics.median(times[plain]):.2f} ms a step without, {1e3 * statistics.median(times[wrapped]):.2f} "
              f"with; ratio {middle:.4f} ({low:.4f} to {high:.4f})")

    # Runs only the hooks, as PyTorch calls them in a step.
    model, optimizer, hooks = edit.model, edit.optimizer, [edit._layer_hook(layer) for layer in range(len(edit.layer_names))]
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(500):
            edit._before_forward(model, ())
            for hook in hooks:
                hook(model, ())
            edit._before_step(optimizer, (), {})
            edit._after_step(optimizer, (), {})
        best = min(best, (time.perf_counter() - began) / 500)
    print(f"the hooks of a step alone: {1e6 * best:.1f} us")
    edit.close()


if __name__ == "__main__":
    main()
