#!/usr/bin/env python3
"""Measures the time that a killed replica costs EDiT, and the time until another one takes its place. Run once for each rank, by bench/cluster.sh or a
launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, with the package entrain in PYTHONPATH:

    bench/cluster.sh --nodes 4 --rate 1gbit --delay 100 --build build/dev build/python/bin/python bench/elastic_times.py

Each rank is a replica of 5 layers of 30,000 elements that exchanges every 50 ms or so. Rank 1 is killed after round 4, and a new
process joins. Rank 0 prints the times from the kill to the end of that round, and from the start of the new process (with Python and
its packages) until it is taken in and until its first counted round is over. All ranks must use the same clock."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

KILLED_AFTER = 4
LAYERS = [30000] * 5
ROUNDS = 400  # at most


def note(directory, what):
    """Keeps the time of the first call for each text."""
    try:
        with open(os.path.join(directory, what), "x", encoding="utf-8") as file:
            file.write(str(time.time()))
    except (FileExistsError, FileNotFoundError):  # rank 0 has already read the notes
        pass


def train(rank, directory, joins):
    import numpy as np
    import entrain
    options = dict(outer_optimizer="sgd", on_loss="finish", admit="exchange", local_sgd_sync_interval=1, timeout=60)
    if joins:
        # The address of the others' store shows which interface leads to their hosts.
        store = entrain.Store.open(f"tcp://{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}")
        comm = entrain.Comm.create(store, 0, 1, name="alone", timeout=60)
        options["join"] = 60
    else:
        comm = entrain.Comm.from_env(timeout=60)
    mesh = entrain.Mesh(comm)
    shard = entrain.Shard(mesh, LAYERS)
    slab, grads = np.zeros(sum(LAYERS), np.float32), np.zeros(sum(LAYERS), np.float32)
    shard.bind(slab, grads)
    edit = entrain.EDiT(mesh, shard, **options)
    if joins:
        note(directory, "taken in")
    rounds_with_it = 0
    for _ in range(ROUNDS):
        began = edit.begin_forward()
        for layer in range(len(LAYERS)):
            edit.wait_layer(layer)
        info = edit.info()
        if rank == 0 and began and info.losses == 1:
            note(directory, "over")
        if began and info.joins > 0:
            note(directory, "counted")
            rounds_with_it += 1
            if rounds_with_it == 3:  # the slowest rank has seen two
                break
        time.sleep(0.05)
        slab += 0.01 * (rank + 1)
        if rank == 1 and not joins and info.rendezvous == KILLED_AFTER:
            note(directory, "killed")
            os.kill(os.getpid(), 9)
        edit.end_step()
    return rounds_with_it == 3


def main():
    rank = int(os.environ["RANK"])
    if len(sys.argv) > 1:
        good = train(rank, sys.argv[1], joins=len(sys.argv) > 2)
        sys.stdout.flush()
        os._exit(0 if good else 1)  # another rank may still need this rank's library
    directory = os.path.join(tempfile.gettempdir(), f"elastic-times-{os.environ['MASTER_PORT']}")
    os.makedirs(directory, exist_ok=True)
    code = subprocess.call([sys.executable, __file__, directory])
    if rank == 1:
        note(directory, "started")
        code = subprocess.call([sys.executable, __file__, directory, "joins"])
    if rank == 0:
        at = {}
        for path in glob.glob(os.path.join(directory, "*")):
            with open(path, encoding="utf-8") as file:
                at[os.path.basename(path)] = float(file.read())
        shutil.rmtree(directory)
        print(f"{os.environ['WORLD_SIZE']} replicas: killed, the round is over after {1000 * (at['over'] - at['killed']):.0f} ms; "
              f"a new process is taken in after {1000 * (at['taken in'] - at['started']):.0f} ms, and its first counted round is "
              f"over after {1000 * (at['counted'] - at['started']):.0f} ms")
    return code


if __name__ == "__main__":
    sys.exit(main())
