#!/usr/bin/env python3
"""Measures an exchange of DiLoCo (Nesterov's outer step) over arrays in host memory: by entrain.EDiT, and by PyTorch's
kernels with all_reduce over gloo.

    PYTHONPATH=python ENTRAIN_LIBRARY=... entrain-run -n 2 build/python/bin/python bench/torch_exchange.py [--counts 1M,10M]

One run measures these in alternation, and prints the median of the slowest rank:

  copy      one copy of all parameters by memcpy, in --threads threads, on all ranks at once
  alone     Entrain's all_reduce of every layer; nothing with one rank
  exchange  begin_forward, wait_layer of each layer, end_step
  gloo      for each layer: delta, all_reduce; then the outer step of torch.optim.SGD, and the copy to the parameters

`cpu` is the processor time of all threads of the process in the exchange beside 5.5 times that in the copy. Other programs
on the machine disturb it less than the times; waiting ranks poll, so it says something with one rank only.

`limit` is `alone` and the time in which each array of each pass is read or written once, at the rate of `copy`: the norm
reads 2 arrays, the delta reads 2 and writes 1, the outer step reads 3 and writes 3, so 5.5 copies. (With
clip_pseudo_grad a pass reads 1 array more.)"""
import argparse
import concurrent.futures
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist

import entrain

COPIES = 5.5
UNITS = {"K": 1000, "M": 1000_000, "G": 1000_000_000}


def count_of(text):
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1] in UNITS else int(text)


class Entrain:
    def __init__(self, mesh, layers, count, threads):
        self.shard = entrain.Shard(mesh, [count] * layers)
        self.layers = layers
        self.params = torch.ones(self.shard.slab_count)
        self.shard.bind_layers([self.params.numpy()[l * count:(l + 1) * count] for l in range(layers)])
        self.edit = entrain.EDiT(mesh, self.shard, outer_optimizer="sgd", outer_nesterov=True,
                                 **({"threads": threads} if threads > 0 else {}))
        self.edit.begin_forward()  # makes the anchors
        self.edit.end_step()

    def exchange(self):
        if not self.edit.begin_forward():
            raise RuntimeError("no exchange")
        for layer in range(self.layers):
            self.edit.wait_layer(layer)
        self.edit.end_step()

    def close(self):
        self.edit.close()
        self.shard.close()


class Gloo:
    def __init__(self, layers, count):
        self.params = [torch.ones(count) for _ in range(layers)]
        self.anchors = [torch.nn.Parameter(one.clone()) for one in self.params]
        for anchor in self.anchors:
            anchor.grad = torch.zeros_like(anchor)
        self.optimizer = torch.optim.SGD(self.anchors, lr=0.7, momentum=0.8, nesterov=True)

    @torch.no_grad()
    def exchange(self):
        works = []
        for param, anchor in zip(self.params, self.anchors):
            torch.sub(anchor, param, out=anchor.grad)
            if dist.get_world_size() > 1:
                anchor.grad /= dist.get_world_size()
                works.append(dist.all_reduce(anchor.grad, async_op=True))
        for work in works:
            work.wait()
        self.optimizer.step()
        for param, anchor in zip(self.params, self.anchors):
            param.copy_(anchor)


class Clock:
    def __init__(self, comm):
        self.comm = comm
        self.times = {}

    def run(self, name, body):
        self.comm.barrier()
        began, used = time.perf_counter(), time.process_time()
        body()
        took = np.array([time.perf_counter() - began])
        self.times.setdefault(name + " cpu", []).append(time.process_time() - used)
        self.comm.all_reduce(took, op="max")
        self.times.setdefault(name, []).append(float(took[0]))

    def median(self, name):
        return statistics.median(self.times.get(name, [0.0]))


def measure(comm, mesh, total, args, threads):
    torch.set_num_threads(max(1, threads))
    count = total // args.layers
    ours, gloo = Entrain(mesh, args.layers, count, threads), Gloo(args.layers, count)
    source, target = np.ones(total, np.float32), np.zeros(total, np.float32)
    parts = [slice(total * t // max(1, threads), total * (t + 1) // max(1, threads)) for t in range(max(1, threads))]
    pool = concurrent.futures.ThreadPoolExecutor(len(parts))

    def copy():
        others = [pool.submit(np.copyto, target[part], source[part]) for part in parts[1:]]
        np.copyto(target[parts[0]], source[parts[0]])
        for other in others:
            other.result()

    def alone():
        for layer in range(args.layers):
            part = target[layer * count:(layer + 1) * count]
            comm.all_reduce(part, out=part)

    clock = Clock(comm)
    for call in range(args.calls + 1):
        ours.params.add_(1e-4 * (comm.rank + 1))
        for param in gloo.params:
            param.add_(1e-4 * (comm.rank + 1))
        target.fill(1)
        clock.run("copy", copy)
        if comm.size > 1:
            clock.run("alone", alone)
        clock.run("exchange", ours.exchange)
        clock.run("gloo", gloo.exchange)
        if call == 0:
            clock.times.clear()  # the first call makes connections and maps memory
    if not torch.allclose(ours.params[:count], gloo.params[0], atol=1e-5):
        raise RuntimeError("the parameters differ")
    ours.close()
    pool.shutdown()
    copy_s, alone_s, exchange, reference = (clock.median(name) for name in ("copy", "alone", "exchange", "gloo"))
    limit = alone_s + COPIES * copy_s
    if comm.rank == 0:
        print(f"{total:>10} {comm.size:>2} {threads:>3} {copy_s * 1e3:>8.2f} {alone_s * 1e3:>8.2f} {exchange * 1e3:>9.2f} "
              f"{exchange / total * 1e9:>7.2f} {limit * 1e3:>8.2f} {exchange / limit:>7.2f} "
              f"{clock.median('exchange cpu') / clock.median('copy cpu') / COPIES:>6.2f} {reference * 1e3:>9.2f} "
              f"{reference / exchange:>6.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="1M,10M,100M", help="parameters, comma separated")
    parser.add_argument("--threads", default="1", help="of a rank, comma separated; 0: Entrain's default, and one of PyTorch")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--calls", type=int, default=9)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with entrain.Comm.from_env() as comm, entrain.Mesh(comm) as mesh:
        if comm.rank == 0:
            print("# ms; parameters, ranks, threads, copy, alone, exchange, ns a parameter, limit, exchange/limit, cpu, gloo, "
                  "gloo/exchange")
        for total in args.counts.split(","):
            for threads in args.threads.split(","):
                measure(comm, mesh, count_of(total), args, int(threads))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
