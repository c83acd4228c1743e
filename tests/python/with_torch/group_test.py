"""Tests the back end "entrain" of torch.distributed in processes: group_checks.py on 2 and 4 ranks, and failures."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import forks
import pytest

pytest.importorskip("torch")

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "group_checks.py"
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), re.M)


def start(rank, size, folder, code=None):
    """Starts one rank; with `code`, a rank of a program that has `dist`, `rank`, `size` and an initialised group."""
    return forks.Process(PROGRAM.read_text() if code is None else PREAMBLE + code, rank, size, folder)


PREAMBLE = """
import datetime, os, signal, sys, time, torch, torch.distributed as dist, entrain, entrain.torch
torch.set_num_threads(1)
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("cpu:entrain", store=dist.FileStore(folder + "/store", size), rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=30))
dist.barrier()
print("ready", flush=True)
"""


def until_ready(process):
    for line in process.stdout:
        if line == "ready\n":
            return
    pytest.fail("a rank ended before it was ready")


def finish(process, timeout=60):
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"a rank hangs: {process.communicate()[0]}")


@pytest.fixture(scope="module", params=[2, 4])
def results(request, tmp_path_factory):
    """Returns, for each check, (rank, traceback) of the ranks that failed; None for checks that were not reached."""
    size, folder = request.param, tmp_path_factory.mktemp("ranks")
    ranks = [start(rank, size, folder) for rank in range(size)]
    texts = [finish(process, 300) for process in ranks]
    found = {}
    for rank in range(size):
        for line in (folder / f"rank-{rank}").read_text().splitlines():
            name, text = json.loads(line)
            found.setdefault(name, []).extend([(rank, text)] if text else [])
    ended_well = all(process.returncode == 0 for process in ranks)
    assert ended_well or any(found.values()), texts
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_of_all_ranks(results, name):
    assert name in results, "not reached: a check before it failed"
    assert not results[name], "\n".join(f"rank {rank}: {text}" for rank, text in results[name])


def test_a_killed_rank_is_named_within_two_seconds(tmp_path):
    body = """
if rank == 1:
    print("waiting", flush=True)
    time.sleep(60)  # until it is killed
try:
    dist.all_reduce(torch.ones(1000))
except entrain.PeerLost as failure:
    print(failure.record.guilty_rank, failure, flush=True)
"""
    ranks = [start(rank, 2, tmp_path, body) for rank in range(2)]
    for process in ranks:
        until_ready(process)
    assert ranks[1].stdout.readline() == "waiting\n"
    ranks[1].kill()
    killed = time.monotonic()
    line = ranks[0].stdout.readline()
    assert time.monotonic() - killed < 2, line
    assert line.startswith("1 all_reduce") and "rank 1" in line, line
    for process in ranks:
        finish(process)


def test_a_missing_rank_is_named_at_the_deadline(tmp_path):
    body = """
if rank == 1:
    sys.stdin.readline()
    os._exit(0)
begin = time.monotonic()
try:
    dist.group.WORLD.monitored_barrier(datetime.timedelta(milliseconds=300))
except entrain.TimedOut as failure:
    print(time.monotonic() - begin, failure, flush=True)
"""
    ranks = [start(rank, 2, tmp_path, body) for rank in range(2)]
    for process in ranks:
        until_ready(process)
    taken, text = ranks[0].stdout.readline().split(" ", 1)
    assert 0.3 <= float(taken) < 2 and "rank 1" in text and "it has not started the call" in text, text
    for process in ranks:
        finish(process)


def test_all_missing_ranks_are_named_at_the_deadline(tmp_path):
    body = """
if rank > 0:
    sys.stdin.readline()
    os._exit(0)
try:
    dist.group.WORLD.monitored_barrier(datetime.timedelta(milliseconds=300), wait_all_ranks=True)
except entrain.TimedOut as failure:
    print(failure, flush=True)
"""
    ranks = [start(rank, 3, tmp_path, body) for rank in range(3)]
    for process in ranks:
        until_ready(process)
    text = ranks[0].stdout.readline()
    assert text.endswith("late ranks: 1, 2\n"), text
    for process in ranks:
        finish(process)


@pytest.mark.parametrize("call", ["dist.all_reduce(torch.ones(5))", "dist.barrier()", "dist.recv(torch.ones(5), 1)",
                                  "dist.all_reduce(torch.ones(5), async_op=True).wait()"])
def test_control_c_ends_a_wait(tmp_path, call):
    body = f"""
if rank == 1:
    sys.stdin.readline()
    os._exit(0)
try:
    print("begin", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""
    ranks = [start(rank, 2, tmp_path, body) for rank in range(2)]
    for process in ranks:
        until_ready(process)
    assert ranks[0].stdout.readline() == "begin\n"
    while pathlib.Path(f"/proc/{ranks[0].pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        pass  # it is not in the call yet
    ranks[0].send_signal(signal.SIGINT)
    sent = time.monotonic()
    line = ranks[0].stdout.readline()
    assert line == "interrupted\n", line + finish(ranks[0])
    assert time.monotonic() - sent < 0.2
    for process in ranks:
        finish(process)


def test_memory_that_the_collector_gives_back_while_some_is_taken():
    import gc
    import threading

    from entrain.torch import _tensors

    class Taken(list):
        """An object that returns memory when the garbage collector frees it."""

        def __init__(self):
            super().__init__([self])
            self.buffers = _tensors.Buffers("test")
            self.buffers._taken = [_tensors._scratch.take(1 << 16)]

    def take():
        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(200):
                Taken()
        finally:
            gc.set_threshold(*before)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_under_torchrun(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import torch, torch.distributed as dist, entrain.torch
dist.init_process_group("entrain")
tensor = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
group = dist.new_group([1])
open(f"%s/{dist.get_rank()}", "w").write(str(tensor.tolist()))
dist.destroy_process_group()
""" % tmp_path)
    process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                                str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = finish(process, 120)
    assert process.returncode == 0, text
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["[3.0, 3.0, 3.0]"] * 2
