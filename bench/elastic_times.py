#!/usr/bin/env python3
"""Measures two times, with EDiT or with ACCO: how long the other ranks are delayed if a replica is killed, and how long it takes until a new process
replaces it. Runs once for each rank, under bench/cluster.sh or a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. PYTHONPATH must
contain the package entrain:

    bench/cluster.sh --nodes 4 --rate 1gbit --delay 100 --build build/dev build/python/bin/python bench/elastic_times.py [edit|acco]

edit: each rank is a replica of 5 layers of 30,000 elements. The replicas exchange about every 50 ms. acco: each rank computes for 50 ms at a time.
Meanwhile 150,000 gradients cross the network, and AdamW takes a step. Rank 1 is killed after round 4, and a new process joins. Rank 0 prints three times:
from the kill to the end of the interrupted round; from the start of the new process (with Python and its packages) until it is a member; from the same
start until its first counted round is over. All ranks must use the same clock."""
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
COMPUTES = 0.05  # seconds of a step


def note(directory, what):
    """Writes the time of the call to the file `what`. Later calls for the same file do nothing."""
    try:
        with open(os.path.join(directory, what), "x", encoding="utf-8") as file:
            file.write(str(time.time()))
    except (FileExistsError, FileNotFoundError):  # rank 0 has already read the notes
        pass


def join_alone(entrain):
    """Opens the members' store, and creates in it a communicator of this process alone. The store's address shows which interface leads to the members'
    hosts."""
    store = entrain.Store.open("env:")
    return store, entrain.Comm.create(store, 0, 1, name="alone", timeout=60)


class Notes:
    """Notes the times of the events of one rank."""

    def __init__(self, rank, directory, joins):
        self.rank, self.directory, self.joins, self.rounds_with_it = rank, directory, joins, 0

    def after_round(self, losses, joins, rounds):
        """Must be called after each round of this rank. Returns true after the third round with the newcomer. By then the slowest rank has had two such
        rounds."""
        if self.rank == 0 and losses == 1:
            note(self.directory, "over")
        if joins > 0:
            note(self.directory, "counted")
            self.rounds_with_it += 1
        if self.rank == 1 and not self.joins and rounds == KILLED_AFTER:
            note(self.directory, "killed")
            os.kill(os.getpid(), 9)
        return self.rounds_with_it == 3


def train_edit(notes):
    import numpy as np
    import entrain
    options = dict(outer_optimizer="sgd", on_loss="finish", admit="exchange", local_sgd_sync_interval=1, timeout=60)
    if notes.joins:
        _, comm = join_alone(entrain)
        options["join"] = 60
    else:
        comm = entrain.Comm.from_env(timeout=60)
    mesh = entrain.Mesh(comm)
    shard = entrain.Shard(mesh, LAYERS)
    slab, grads = np.zeros(sum(LAYERS), np.float32), np.zeros(sum(LAYERS), np.float32)
    shard.bind(slab, grads)
    edit = entrain.EDiT(mesh, shard, **options)
    if notes.joins:
        note(notes.directory, "taken in")
    for _ in range(ROUNDS):
        began = edit.begin_forward()
        for layer in range(len(LAYERS)):
            edit.wait_layer(layer)
        info = edit.info()
        if began and notes.after_round(info.losses, info.joins, info.rendezvous):
            return True
        time.sleep(COMPUTES)
        slab += 0.01 * (notes.rank + 1)
        edit.end_step()
    return False


def train_acco(notes):
    import numpy as np
    import entrain
    options = dict(lr=0.01, on_loss="finish", admit="exchange", admit_name="times", timeout=60)
    if notes.joins:
        options["admit_store"], comm = join_alone(entrain)
        options["join"] = 60
    else:
        comm = entrain.Comm.from_env(timeout=60)
    acco = entrain.ACCO(comm, np.zeros(sum(LAYERS), np.float32), entrain.Optim.adamw(), **options)
    if notes.joins:
        note(notes.directory, "taken in")
    rounds = 0
    while rounds < ROUNDS:
        time.sleep(COMPUTES)
        acco.gradients += 0.01 * (notes.rank + 1)
        acco.add(1, 1)
        if acco.poll():
            acco.install()
            rounds += 1
            info = acco.info()
            if notes.after_round(info.losses, info.joins, rounds):
                return True
    return False


def main():
    method, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("edit", [])
    if method not in ("edit", "acco"):
        sys.exit(f"elastic_times.py: {method}: expected edit or acco")
    if "RANK" not in os.environ:
        sys.exit("elastic_times.py: RANK is not set; bench/cluster.sh or a launcher starts one process for each rank")
    rank = int(os.environ["RANK"])
    if rest:
        good = {"edit": train_edit, "acco": train_acco}[method](Notes(rank, rest[0], joins=len(rest) > 1))
        sys.stdout.flush()
        os._exit(0 if good else 1)  # without exit handlers: they would close communicators that other ranks may still use
    directory = os.path.join(tempfile.gettempdir(), f"elastic-times-{os.environ['MASTER_PORT']}")
    os.makedirs(directory, exist_ok=True)
    code = subprocess.call([sys.executable, __file__, method, directory])
    if rank == 1:
        note(directory, "started")
        code = subprocess.call([sys.executable, __file__, method, directory, "joins"])
    if rank == 0:
        at = {}
        for path in glob.glob(os.path.join(directory, "*")):
            with open(path, encoding="utf-8") as file:
                at[os.path.basename(path)] = float(file.read())
        shutil.rmtree(directory)
        print(f"{method}, {os.environ['WORLD_SIZE']} replicas: killed, the round is over after {1000 * (at['over'] - at['killed']):.0f} ms; "
              f"a new process is taken in after {1000 * (at['taken in'] - at['started']):.0f} ms, and its first counted round is "
              f"over after {1000 * (at['counted'] - at['started']):.0f} ms")
    return code


if __name__ == "__main__":
    sys.exit(main())
