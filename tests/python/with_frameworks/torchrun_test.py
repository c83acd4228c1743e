"""One torchrun for each replica: a process is killed, torchrun starts the processes of its replica again, and they join the others."""
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
import entrain  # noqa: E402

PROGRAM = """
import hashlib, os, signal, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import entrain.torch
from entrain.integrations import elastic

STEPS = 60
torch.set_num_threads(1)
dist.init_process_group("entrain")
place = elastic.torchrun(join=60)
torch.manual_seed(place.replica + 10 * place.restarted)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
edit = entrain.torch.DiLoCo(model, optimizer, local_sgd_sync_interval=4, hand_over={"optimizer": optimizer}, **place.options)
begun = edit.info.steps
while edit.info.steps < STEPS:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * place.replica + edit.info.steps))
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
    if edit.info.steps == 20 and place.replica == 1 and not place.restarted and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # The lost replica comes back meanwhile.
    time.sleep(1.0 if edit.replicas < place.replicas else 0)
edit.synchronize()
whole = torch.cat([param.full_tensor().detach().flatten() for param in model.parameters()])
steps = {int(state["step"]) for state in optimizer.state.values()}
line = (f"replica {place.replica} rank {dist.get_rank()} began {begun} adam {steps} norms {int(model[1].num_batches_tracked)} "
        f"bits {hashlib.sha256(whole.numpy().tobytes()).hexdigest()}")
os.write(1, f"{line}\\n".encode())  # whole, whatever the other rank writes
edit.close()
dist.destroy_process_group()
"""


def test_a_replica_whose_processes_torchrun_starts_again_joins(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with entrain.Store.serve("tcp://127.0.0.1:0") as store:
        agents = [subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "4", program],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "ENTRAIN_STORE": store.url, "EDIT_REPLICA": str(replica), "EDIT_REPLICAS": "2", "ENTRAIN_TIMEOUT": "60s",
                 "OMP_NUM_THREADS": "1"}) for replica in range(2)]
        try:
            texts = [agent.communicate(timeout=120)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.terminate()  # torchrun ends its processes
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(texts)
    found = [re.findall(r"replica (\d) rank (\d) began (\d+) adam \{(\d+)\} norms (\d+) bits (\w+)", text) for text in texts]
    assert [[row[:2] for row in rows] for rows in map(sorted, found)] == [[("0", "0"), ("0", "1")], [("1", "0"), ("1", "1")]], texts
    assert {row[2] for row in found[0]} == {"0"} and all(int(row[2]) > 0 for row in found[1]), found
    rows = found[0] + found[1]
    assert len({row[5] for row in rows}) == 1 and {row[3:5] for row in rows} == {("60", "60")}, rows  # the newcomer has what a member had


def test_what_is_missing_is_named(tmp_path):
    for variables, says in [({}, "ENTRAIN_STORE, EDIT_REPLICA, EDIT_REPLICAS, RANK, WORLD_SIZE not set"),
                            (dict(ENTRAIN_STORE="tcp://127.0.0.1:1", EDIT_REPLICA="2", EDIT_REPLICAS="2", RANK="0", WORLD_SIZE="1"),
                             "EDIT_REPLICA is 2; expected 0 to 1")]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDIT_", "RANK", "WORLD_"))}
        done = subprocess.run([sys.executable, "-c", "from entrain.integrations import elastic; elastic.torchrun()"], capture_output=True,
                              text=True, env={**clean, **variables}, timeout=60)
        assert says in done.stderr, done.stderr
