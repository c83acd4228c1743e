"""Compares every collective of torch.distributed on the back ends "entrain" and "gloo", in the same processes, in
alternation:

    python bench/torch_collectives.py --processes 2 4 [--sizes 1024 65536 ...] [--seconds 0.4] [--only all_reduce ...]

A cell is median(gloo) / median(entrain) over rounds. A round is a barrier, then the number of calls that take about a
millisecond. The slowest rank's time counts. Both back ends run in each round, in alternating order. A size is the
bytes of the larger buffer of a rank: the input of reduce_scatter, the output of all_gather. Tables are Markdown."""
import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time

KIB = 1024
SIZES = [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, KIB * KIB, 4 * KIB * KIB, 16 * KIB * KIB, 64 * KIB * KIB]


def calls(torch, dist, size, rank, count, group):
    """Returns name -> a function that makes one blocking call with `count` f32 elements in the larger buffer."""
    part = max(1, count // size)
    whole, other = torch.ones(part * size), torch.ones(part * size)
    single = torch.ones(part)
    apart = [torch.ones(part) for _ in range(size)]
    from_apart = [torch.ones(part) for _ in range(size)]
    after, before = (rank + 1) % size, (rank - 1) % size

    def ring():
        sent = dist.isend(whole, after, group=group)
        dist.recv(other, before, group=group)
        sent.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "reduce": lambda: dist.reduce(whole, 0, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, single, group=group),
        "all_gather": lambda: dist.all_gather(apart, single, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(single, whole, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(single, apart, group=group),
        "gather": lambda: dist.gather(single, apart if rank == 0 else None, 0, group=group),
        "scatter": lambda: dist.scatter(single, apart if rank == 0 else None, 0, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole, group=group),
        "all_to_all": lambda: dist.all_to_all(apart, from_apart, group=group),
        "send and recv, ring": ring,
        "barrier": lambda: dist.barrier(group=group),
    }


def timed(call, times):
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def supported(call):
    try:
        call()
        return True
    except (RuntimeError, ValueError, NotImplementedError):
        return False


class Cell:
    """One collective at one size."""

    def __init__(self, torch, dist, ours, gloo, seconds):
        self.torch, self.dist, self.ours, self.gloo, self.seconds = torch, dist, ours, gloo, seconds

    def agree(self, value):
        """Returns the largest value of all ranks."""
        tensor = self.torch.tensor([value], dtype=self.torch.float64)
        self.dist.all_reduce(tensor, self.dist.ReduceOp.MAX, group=self.ours)
        return tensor.item()

    def measure(self, mine, theirs):
        """Returns the median seconds on entrain, and on gloo (or None)."""
        pair = [mine] + ([theirs] if supported(theirs) else [])
        cost = self.agree(sum(timed(call, 3) for call in pair) / len(pair))
        times = max(1, min(100, round(1e-3 / cost)))
        rounds = max(5, min(400, round(self.seconds / (cost * times * len(pair)))))
        samples = [[] for _ in pair]
        for number in range(rounds):
            for which in range(len(pair)):
                which = (which + number) % len(pair)
                self.dist.barrier(group=self.ours)
                samples[which].append(timed(pair[which], times))
        slowest = []
        for mine_only in samples:
            tensor = self.torch.tensor(mine_only, dtype=self.torch.float64)
            self.dist.all_reduce(tensor, self.dist.ReduceOp.MAX, group=self.ours)
            slowest.append(statistics.median(tensor.tolist()))
        return slowest[0], slowest[1] if len(pair) == 2 else None


def rank_main(arguments):
    import torch
    import torch.distributed as dist

    import entrain.torch  # noqa: F401
    rank, size = arguments.rank, arguments.of
    torch.set_num_threads(1)
    minutes = datetime.timedelta(minutes=3)
    dist.init_process_group("entrain", store=dist.FileStore(os.path.join(arguments.folder, "store"), size), rank=rank,
                            world_size=size, timeout=minutes)
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo", timeout=minutes)
    cell = Cell(torch, dist, ours, gloo, arguments.seconds)
    rows = {}
    for nbytes in [4, *arguments.sizes]:
        mine, theirs = (calls(torch, dist, size, rank, max(1, nbytes // 4), group) for group in (ours, gloo))
        for name in mine:
            if arguments.only and name not in arguments.only or (name == "barrier" and nbytes != 4):
                continue
            rows.setdefault(name, {})[nbytes] = cell.measure(mine[name], theirs[name])
    if rank == 0:
        report(rows, arguments.sizes, size)
    dist.destroy_process_group()


def text_of(nbytes):
    return f"{nbytes} B" if nbytes < KIB else f"{nbytes // KIB} KiB" if nbytes < KIB * KIB else f"{nbytes // KIB // KIB} MiB"


def time_of(seconds):
    return "" if seconds is None else f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def report(rows, sizes, processes):
    print(f"\n{processes} processes, gloo / entrain\n\n| | " + " | ".join(map(text_of, sizes)) + " |")
    print("|---|" + "---:|" * len(sizes))
    for name, cells in rows.items():
        ratios = [(f"{cells[size][1] / cells[size][0]:.2f}" if cells[size][1] else "–") if size in cells else ""
                  for size in sizes]
        if any(ratios):
            print(f"| {name} | " + " | ".join(ratios) + " |")
    shown = [size for size in (4, 64 * KIB, KIB * KIB, 64 * KIB * KIB) if size == 4 or size in sizes]
    print(f"\n{processes} processes, time of a call: entrain, gloo\n\n| | " + " | ".join(map(text_of, shown)) + " |")
    print("|---|" + "---:|" * len(shown))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(", ".join(filter(None, map(time_of, cells.get(size, ())))) for size in shown) + " |",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a cell")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return rank_main(arguments)
    print(f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    for size in arguments.processes:
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank), "--of", str(size), "--folder", folder])
                     for rank in range(size)]
            if any([rank.wait() for rank in ranks]):
                sys.exit("a rank failed")
    print(f"\nload {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
