"""docs/operate.md: its recipes, its hang and its formulas, as they stand on the page."""
import os
import re
import subprocess
import sys
import time

import pytest

from conftest import ROOT, RUN, finish, script, start

PAGE = (ROOT / "docs/operate.md").read_text()
PERF = os.path.join(os.path.dirname(RUN), "entrain-perf")


def block(mark):
    """Returns the indented block behind a mark."""
    lines = PAGE.split(f"<!-- {mark} -->\n\n")[1].splitlines()
    end = next(index for index, line in enumerate(lines) if line and not line.startswith("    ") or not line and
               not lines[index + 1].startswith("    ") or line.startswith("    $"))
    return re.sub(r"^    ", "", "\n".join(lines[:end]), flags=re.M)


SECURED = """
import entrain, numpy
comm = entrain.Comm.from_env()
assert comm.transport(1 - comm.rank) == "tcp"
print(comm.all_reduce(numpy.ones(4)))
"""


@pytest.mark.parametrize("recipe", ["key", "certificates"])
def test_the_recipes_secure_a_job(recipe, tmp_path):
    # env -0 tells what the recipe has exported.
    exported = subprocess.run(["sh", "-e", "-c", block(f"recipe {recipe}") + "\nenv -0"], cwd=tmp_path, stdout=subprocess.PIPE, check=True,
                              stderr=subprocess.DEVNULL, timeout=60).stdout.decode()
    variables = dict(entry.split("=", 1) for entry in exported.split("\0") if entry.startswith("ENTRAIN_"))
    named = [path for path in variables.values() if path.startswith(str(tmp_path))]
    assert len(named) == {"key": 1, "certificates": 3}[recipe]
    secret = variables["ENTRAIN_KEY_FILE" if recipe == "key" else "ENTRAIN_TLS_KEY"]
    assert os.stat(secret).st_mode & 0o077 == 0
    environment = {**os.environ, **variables, "ENTRAIN_TRANSPORTS": "tcp", "ENTRAIN_TLS": "all"}
    assert script(SECURED, size=2, env=environment).count("[2. 2. 2. 2.]") == 2


def test_the_hang_is_found(tmp_path):
    gate = tmp_path / "data"
    os.mkfifo(gate)
    job = start("import os; print('pid', os.environ['RANK'], os.getpid(), flush=True)\n" + block("hang.py"), gate, size=4)
    try:
        pids = {}
        while len(pids) < 4:
            found = re.search(r"pid (\d) (\d+)", job.stdout.readline())
            pids.update({int(found[1]): int(found[2])} if found else {})

        def page():
            names = []
            for rank, pid in pids.items():
                dump = subprocess.run([PERF, "--flight-of", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
                if dump.returncode != 0:  # it has no communicator yet
                    return ""
                names.append(tmp_path / f"{rank}.json")
                names[-1].write_bytes(dump.stdout)
            return subprocess.run([PERF, "--flight", *names], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout

        # Of all that wait, directly or not, it names the one process that waits for nobody, once all the others have come so far.
        end, text = time.monotonic() + 60, page()
        while not re.search(r"receiving for .*: ranks 0, 1; receives from ranks 2, 3", text) or "receiving for" not in text.split("world/1:")[-1]:
            assert time.monotonic() < end, text
            time.sleep(0.1)
            text = page()
        assert re.search(rf"^culprit: rank (1 of world/1|3 of world) \(.*pid {pids[3]}.*it has not called all_reduce #\d", text, re.M), text
        assert re.search(rf"culprit: rank 3 of world \(.*pid {pids[3]}", text), text
        top = subprocess.run([sys.executable, "-m", "entrain.top", "--once", "--interval", "1", *map(str, pids.values())],
                             stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
        assert re.search(rf" 2 +{pids[2]} .* waits .*world/1: rank 3$", top, re.M), top
        assert f"not started by rank 3 (process {pids[3]})" in top
    finally:
        with open(gate, "w"):
            pass
        finish(job)


CAPACITY = """
import os, re, sys, numpy, entrain


def taken():
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # that of the list itself
            pass
    sockets = {name for name in names if name.startswith("socket:")}
    listening = [line.split()[9] for table in ("tcp", "tcp6") for line in open(f"/proc/net/{table}").readlines()[1:] if line.split()[3] == "0A"]
    rollup = open("/proc/self/smaps_rollup").read()
    sizes = [int(re.search(rf"^{name}:\\s+(\\d+) kB", rollup, re.M)[1]) for name in ("Pss_Shmem", "Private_Dirty")]
    return (len(names), len(os.listdir("/proc/self/task")), sum(f"socket:[{inode}]" in sockets for inode in listening), *sizes,
            sum("/dev/shm/" in name for name in names))


before = taken()
comm = entrain.Comm.from_env()
created = taken()
comm.barrier()
for other in range(1, comm.size):  # large messages with all others
    to, of = (comm.rank + other) % comm.size, (comm.rank - other) % comm.size
    work = comm.send(numpy.ones(1 << 21, numpy.uint8), to, async_=True)
    comm.recv(numpy.empty(1 << 21, numpy.uint8), of)
    work.wait()
comm.all_reduce(numpy.ones(1 << 18, numpy.float32))
comm.duplicate().barrier()
comm.barrier()
after = taken()
files = open("/proc/self/maps").read().count("/dev/shm/") + after[5]
print("capacity", comm.rank, after[0] - before[0], after[1] - before[1], after[2], files, created[3] - before[3], after[3] - before[3],
      created[4] - before[4], flush=True)
comm.barrier()
"""


def formulas():
    table = PAGE.split("\n## Capacity\n")[1]
    return {(cells[1].strip(), cells[2].strip()): cells[3].strip(" `") for line in table.splitlines()
            if len(cells := line.split("|")) == 5 and cells[3].strip().startswith("`")}


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer takes descriptors and memory of its own")
@pytest.mark.parametrize("transports, size", [("", 2), ("", 4), ("", 8), ("", 16), ("shm", 8), ("tcp", 2), ("tcp", 8)])
def test_capacity_is_what_the_formulas_say(transports, size):
    environment = {name: text for name, text in os.environ.items() if name != "ENTRAIN_TRANSPORTS"}
    if transports:
        environment["ENTRAIN_TRANSPORTS"] = transports
    found = re.findall(r"capacity" + r" (-?\d+)" * 8, script(CAPACITY, size=size, env=environment, timeout=120))
    assert len(found) == size
    by_name = formulas()
    assert len(by_name) == 9

    def due(what, way=""):
        names = [name for name in by_name if name[0].startswith(what) and name[1].startswith(way)]
        assert len(names) == 1, (what, way, by_name)
        return eval(by_name[names[0]], {"p": 0 if transports == "tcp" and what.startswith("shared") else size - 1, "q": 0})

    for rank, descriptors, threads, ports, files, small, large, private in (map(int, row) for row in found):
        print(f"{size} {transports}: rank {rank}: {descriptors} {threads} {ports} {files} shared {small} {large} private {private}")
        assert descriptors == due("descriptors", {"": "shm, with tcp", "shm": "shm alone", "tcp": "tcp alone"}[transports])
        assert ports == due("listening ports", "shm alone" if transports == "shm" else "otherwise")
        assert threads == due("threads") and files == due("files in `/dev/shm`")
        assert small <= due("shared memory in KiB, before") and large <= due("shared memory in KiB, after")
