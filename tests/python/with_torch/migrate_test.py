"""The programs of docs/migrate do what the pages say. Those whose processes may die also lose one, which comes back."""
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, RUN, finish, methods_in, watched

pytest.importorskip("torch")

#: Kills rank 1 in its 30th step. The others are slow until its process is back, because importing torch takes longer than the run.
DEATH = """
import os, runpy, signal, sys, time
import torch
program, back = sys.argv[1:]
restarted, rank, compute, calls = os.environ["ENTRAIN_RESTARTS"] != "0", os.environ["RANK"], torch.nn.functional.mse_loss, 0
def mse_loss(*arguments):
    global calls
    calls += 1
    if restarted:
        open(back, "w").close()
    elif rank == "1" and calls == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    elif calls > 30 and not os.path.exists(back):
        time.sleep(0.3)  # the run would end before the process is back
    return compute(*arguments)
torch.nn.functional.mse_loss = mse_loss
runpy.run_path(program, run_name="__main__")
"""


def run(command, size, *flags, environment=None):
    command = [RUN, *flags, "-n", str(size), "--", sys.executable, *map(str, command)]
    return finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment), 240)


@pytest.mark.parametrize("name, size, replicas, syncs", [("ddp", 2, 2, 17), ("fsdp2", 4, 2, 11), ("atorch", 2, 2, 17)])
def test_synchronous_programs(name, size, replicas, syncs, tmp_path):
    text = run([ROOT / f"examples/migrate/from_{name}.py"], size, environment=watched(tmp_path / "methods"))
    loss, exchanges, count = re.search(r"loss ([\d.]+) after (\d+) exchanges of (\d) replicas", text).groups()
    assert float(loss) < 0.06 and (int(exchanges), int(count)) == (syncs, replicas), text
    assert methods_in(tmp_path / "methods") == {"edit"}


def test_opendiloco():
    text = run([ROOT / "examples/migrate/from_opendiloco.py"], 2, "--elastic")
    ends = re.findall(r"replica \d of 2: loss ([\d.]+), (\d+) bytes an exchange, norm ([\d.]+)", text)
    assert len(ends) == 2 and ends[0][2] == ends[1][2] and max(float(loss) for loss, _, _ in ends) < 0.1, text
    parameters = 8 * 64 + 64 + 64 + 1
    assert all(int(sent) < 0.5 * 4 * parameters for _, sent, _ in ends), text  # in f32 more than 4 bytes a parameter


@pytest.mark.parametrize("name", ["torchft", "pccl"])
def test_a_process_dies_and_comes_back(name, tmp_path):
    text = run(["-c", DEATH, ROOT / f"examples/migrate/from_{name}.py", tmp_path / "back"], 2, "--elastic")
    assert os.path.exists(tmp_path / "back") and "was killed by SIGKILL" in text and "did not take in" not in text, text
    ends = re.findall(r"of 2: loss ([\d.]+), (step|generation) (\d+), norm ([\d.]+)", text)
    assert len(ends) == 2 and len({row[1:] for row in ends}) == 1 and max(float(row[0]) for row in ends) < 0.2, text
    if name == "torchft":
        begins = [int(step) for step in re.findall(r"replica 1, process \d+, begins at step (\d+) of 400", text)]
        assert ends[0][2] == "400" and len(begins) == 2 and begins[0] == 0 < 20 <= begins[1] < 400, text
    else:
        assert ends[0][2] == "2", text  # a shrink, and a growth
