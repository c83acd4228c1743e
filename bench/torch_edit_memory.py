#!/usr/bin/env python3
"""Measures the memory of entrain.torch.EDiT beside FSDP2 alone: two replicas of two processes each, a GPT, AdamW.

    PYTHONPATH=python ENTRAIN_LIBRARY=build/dev/lib/api/libentrain.so \
      build/python/bin/python bench/torch_edit_memory.py --build build/dev [--width N] [--layers N]

Each row is a run of its own. The figures are the resident memory of the rank that has the most, minus its memory
before the model was made. There are two: the memory between steps, and the peak during steps, some of which
exchange. The last column is that peak minus the peak of FSDP2 alone, in bytes per element of the rank's part of the
parameters."""
import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import entrain
import entrain.torch

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples/python/04_torch_edit_gpt.py"
EDIT = dict(reducer="linear", pseudo_gradnorm_reduce=True, clip_pseudo_grad=10.0, skip_anomaly=True)
RUNS = {
    "FSDP2 alone": None,
    "EDiT, parameters averaged": {},
    "EDiT, outer SGD without momentum": dict(outer_optimizer="sgd", outer_momentum=0.0, **EDIT),
    "EDiT, outer SGD": dict(outer_optimizer="sgd", outer_nesterov=True, **EDIT),
    "EDiT, outer AdamW": dict(outer_optimizer="adamw", **EDIT),
    "EDiT, outer SGD, behind a step": dict(outer_optimizer="sgd", outer_nesterov=True, overlap_steps=1, **EDIT),
}


def status(name):
    """Returns a value of /proc/self/status in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def train(args):
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("gpt", EXAMPLE)
    gpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt)
    comm = entrain.Comm.from_env()
    dist.init_process_group("entrain", store=dist.FileStore(args.out + ".store", comm.size), rank=comm.rank, world_size=comm.size)
    mesh = init_device_mesh("cpu", (comm.size // 2, 2), mesh_dim_names=("sync", "shard"))["shard"]
    text = torch.randint(0, 256, (100_000,), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(comm.rank)
    dist.all_reduce(torch.ones(1 << 20))  # allocates the buffers of the communicator
    comm.barrier()
    before = status("VmRSS")

    torch.manual_seed(1)
    model = gpt.GPT(args.width, args.layers, 4, 64)
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    edit = None if RUNS[args.run] is None else entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=3,
                                                                  **RUNS[args.run])

    def step():
        optimizer.zero_grad()
        gpt.loss_of(model, text, 64, 1, generator).backward()
        optimizer.step()

    for _ in range(5):  # one of these steps exchanges
        step()
    optimizer.zero_grad()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory
    between = status("VmRSS")
    for _ in range(7):
        step()
    peak = status("VmHWM")
    rows = comm.all_gather(np.array([between - before, peak - before], np.int64)).max(0)
    if comm.rank == 0:
        elements = sum(param.to_local().numel() for param in model.parameters())
        syncs = 0 if edit is None else edit.info.syncs
        largest = max(sum(param.to_local().numel() for param in block.parameters()) for block in model.blocks)
        pathlib.Path(args.out).write_text(json.dumps([elements, largest, syncs, *rows.tolist()]))
    if edit is not None:
        edit.close()
    dist.destroy_process_group()
    comm.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/dev", help="where entrain-run was built")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        train(args)
        return
    alone = None
    for run in RUNS:
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory) / "found"
            subprocess.run([pathlib.Path(args.build) / "tools/entrain-run", "-n", "4", "--", sys.executable, __file__, "--run", run,
                            "--out", out, f"--width={args.width}", f"--layers={args.layers}"], check=True, timeout=3600,
                           # With this setting malloc returns freed memory to the kernel, so resident memory is the
                           # memory in use.
                           env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"})
            elements, largest, syncs, between, peak = json.loads(out.read_text())
        if alone is None:
            alone = peak
            print(f"{elements:,} elements a rank, {largest:,} of the largest layer\n| | exchanges | between steps, MB | peak, MB | "
                  "more than FSDP2 alone, bytes an element |\n|---|---:|---:|---:|---:|")
        print(f"| {run} | {syncs} | {between / 1e6:.0f} | {peak / 1e6:.0f} | {(peak - alone) / elements:.1f} |", flush=True)


if __name__ == "__main__":
    main()
