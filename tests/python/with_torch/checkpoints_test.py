"""entrain.torch.Checkpoints: jobs that are interrupted, jobs that go on with other replicas, and saves that cannot be right."""
import pytest
from edit_test import run
from forks import script

pytest.importorskip("torch")

PROGRAM = """
import os, sys, warnings
import torch
from torch import distributed as dist, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import entrain, entrain.torch

torch.set_num_threads(1)
comm = entrain.Comm.from_env(timeout=60)
folder, form = sys.argv[1], sys.argv[2]
SHARDS = 2 if form == "sharded" else 1


class Position:  # of a data set
    def __init__(self):
        self.next = 100 * (comm.rank // SHARDS)

    def batch(self):
        self.next += 1
        return torch.randn(16, 6, generator=torch.Generator().manual_seed(self.next))

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


OPTIONS = dict(local_sgd_sync_interval=4, local_sgd_warmup_steps=0)
KIND = entrain.torch.EDiT
if form == "warm-up":
    OPTIONS["local_sgd_warmup_steps"] = 10
elif form == "overlap":
    OPTIONS["overlap_steps"] = 2
elif form == "async":
    KIND = entrain.torch.AEDiT
    OPTIONS = dict(local_sgd_sync_time=1e-6, min_total_global_steps=1, local_sgd_warmup_steps=0)  # an exchange at each step


class Job:
    def __init__(self, seed, name="saves", every=5, **how):
        torch.manual_seed(seed)
        norm = nn.Identity() if SHARDS > 1 else nn.BatchNorm1d(8)
        self.model = nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 6))
        if SHARDS > 1:
            mesh = init_device_mesh("cpu", (comm.size // SHARDS, SHARDS), mesh_dim_names=("replica", "shard"))["shard"]
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 40)
        self.data = Position()
        self.edit = KIND(self.model, self.optimizer, comm=comm, **OPTIONS)
        self.checkpoints = entrain.torch.Checkpoints(self.edit, os.path.join(folder, name), every=every,
                                                     states={"scheduler": self.scheduler}, data={"data": self.data}, **how)
        self.saved = []

    def go(self, first, last):
        for step in range(first, last):
            x = self.data.batch()
            self.optimizer.zero_grad()
            (self.model(x) - x).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            if self.checkpoints.step():
                self.saved.append(step + 1)
        return self

    def state(self):
        self.model.state_dict()  # waits for an exchange that `step` has begun
        parts = [*self.model.parameters(), *self.model.buffers(), torch.get_rng_state(), torch.tensor(self.data.next),
                 *(value for one in self.optimizer.state.values() for value in one.values()),
                 torch.tensor(self.optimizer.param_groups[0]["lr"])]
        return [(part.to_local() if hasattr(part, "to_local") else part).detach().clone() for part in parts]


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


def here(name="saves"):
    comm.barrier()  # rank 0 may still remove files
    return sorted(os.listdir(os.path.join(folder, name)))
"""

# In warm-up, where the anchors are made, and at exchanges.
RESUMED = """
if SHARDS > 1:
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/meet", comm.size), rank=comm.rank, world_size=comm.size)
whole = Job(0, "whole").go(0, 23)
end = whole.state()
whole.edit.close()
for stops in {"warm-up": (7, 11, 18)}.get(form, (11, 18)):
    name = f"until {stops}"
    part = Job(0, name).go(0, stops)
    saved = part.saved
    part.edit.close()
    comm.barrier()
    again = Job(7, name)
    torch.manual_seed(8)
    at = again.checkpoints.resume()
    assert at == saved[-1] <= stops and saved == [step for step in whole.saved if step <= stops], (at, saved, whole.saved)
    again.go(at, 23)
    assert saved + again.saved == whole.saved, (saved, again.saved, whole.saved)
    assert same(again.state(), end), (form, stops)
    again.edit.close()
    comm.barrier()
assert whole.saved[:3] == {"warm-up": [5, 10, 18], "async": [5, 10, 15]}.get(form, [8, 12, 16]), whole.saved
"""


@pytest.mark.parametrize("form, size", [("plain", 2), ("warm-up", 2), ("overlap", 2), ("async", 2), ("sharded", 4)])
def test_a_job_that_was_interrupted_ends_with_the_same_bits(form, size, tmp_path):
    script(PROGRAM + RESUMED, tmp_path, form, size=size, timeout=60)


OTHERS = """
from entrain import Comm
first = Job(0).go(0, 9)
kept = comm.all_gather(first.optimizer.state[first.model[0].weight]["exp_avg"])
first.checkpoints.save()
moments = comm.all_gather(first.optimizer.state[first.model[0].weight]["exp_avg"].clone())
saved_at, rate = first.edit.info.steps, first.optimizer.param_groups[0]["lr"]
first.edit.close()
everybody = comm
fewer = comm.split(0 if comm.rank < 2 else 1)
comm = fewer
if everybody.rank < 2:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        job = Job(3)
        assert job.checkpoints.resume() == saved_at == 9
    assert any("'data'" in str(one.message) for one in told) == (comm.rank == 0), told
    assert job.data.next == 100 * comm.rank and abs(job.optimizer.param_groups[0]["lr"] - rate) < 1e-12
    # Each has the moments of a replica that was there.
    assert torch.equal(job.optimizer.state[job.model[0].weight]["exp_avg"], torch.as_tensor(moments[comm.rank]))
    job.go(9, 17)
    assert job.edit.info.syncs > 0
    job.checkpoints.save()
    job.edit.close()
everybody.barrier()
comm = everybody
job = Job(4)
assert job.checkpoints.resume() == 17
rows = comm.all_gather(job.optimizer.state[job.model[0].weight]["exp_avg"])
assert [torch.equal(torch.as_tensor(rows[rank]), torch.as_tensor(rows[rank % 2])) for rank in range(3)] == [True] * 3
assert not torch.equal(torch.as_tensor(rows[0]), torch.as_tensor(rows[1]))
job.go(17, 25)
job.edit.close()
"""


def test_other_numbers_of_replicas_go_on_with_warm_optimizers(tmp_path):
    script(PROGRAM + OTHERS, tmp_path, "plain", size=3)


SEAMS = """
job = Job(0, every=0, keep=2)
job.go(0, 6)
assert job.saved == [] and job.checkpoints.save() == "step-00000006" and job.edit.info.syncs == 2  # one at 4, one made here
if comm.rank == 1:
    job.checkpoints.save_soon()
job.go(6, 9)
assert job.saved == [8], job.saved
job.checkpoints._every = 3
job.go(9, 17)
assert job.saved == [8, 12, 16], job.saved
assert [name for name in here() if name.endswith(".ckpt")] == ["step-00000012.ckpt", "step-00000016.ckpt"] and len(here()) == 6, here()

# A disk that fails on one rank: nobody hangs, and the older ones stay.
class Broken(Position):
    def state_dict(self):
        if comm.rank == 1:
            raise OSError("no space left")
        return super().state_dict()

job.checkpoints._data["data"] = Broken()
try:
    job.go(17, 21)
    raise SystemExit("saved")
except (OSError, entrain.FailedPrecondition) as error:
    assert ("no space left" if comm.rank == 1 else "1 other ranks could not write") in str(error), error
job.checkpoints._data["data"] = job.data
job.go(20, 24)
assert job.saved[-1] == 24, job.saved
job.edit.close()
comm.barrier()

# A run that begins anew in the same directory.
anew = Job(0)
try:
    anew.go(0, 9)
    raise SystemExit("saved")
except entrain.FailedPrecondition as error:
    assert "has 2 checkpoints of an earlier run; call resume before the first step" in str(error), error
anew.edit.close()
comm.barrier()
# The newest has lost a file, so the one before it counts.
if comm.rank == 0:
    os.unlink(os.path.join(folder, "saves", next(name for name in os.listdir(folder + "/saves") if name.startswith("step-00000024_0001"))))
comm.barrier()
older = Job(1)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert older.checkpoints.resume() == 16
assert comm.rank or any("step-00000024" in str(one.message) for one in told), told
older.edit.close()
comm.barrier()
over = Job(2, overwrite=True).go(0, 9)
assert over.saved == [8] and [name for name in here() if name.endswith(".ckpt")] == ["step-00000008.ckpt"] and len(here()) == 3, here()
over.go(9, 13)
assert len(here()) == 6, here()
over.edit.close()
for how, says in [(dict(every=-1), "every is -1"), (dict(states={"rate": 3}), "rate is 3"), (dict(keep=0), "keep is 0"),
                  (dict(states={"data": over.data}, data={"data": over.data}), "['data']")]:
    with Job(0).edit as edit:
        try:
            entrain.torch.Checkpoints(edit, folder, **how)
            raise SystemExit("taken")
        except entrain.InvalidArgument as error:
            assert says in str(error), error
    comm.barrier()
"""


def test_saves_by_wish_and_saves_that_fail(tmp_path):
    script(PROGRAM + SEAMS, tmp_path, "plain", size=2)


def test_buffers_that_the_model_makes_later_and_parameters_after_a_step(tmp_path):
    run("""
class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.training:
            self.mean = x.mean(0) if self.mean is None else 0.5 * (self.mean + x.mean(0))
        return self.inner(x)


def job():
    torch.manual_seed(3)
    model = Lazy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    edit = entrain.torch.EDiT(model, optimizer, comm=comm, local_sgd_sync_interval=2, local_sgd_warmup_steps=0)
    return model, optimizer, edit, entrain.torch.Checkpoints(edit, DIRECTORY, every=4)


model, optimizer, edit, checkpoints = job()
torch.manual_seed(comm.rank)
seen = []
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    checkpoints.step()
    seen.append(flat(model).clone())
    assert not edit._exchanging, "what follows may read parameters"
for step in (1, 3):
    same_everywhere(comm, seen[step])
mean = model.mean.clone()
edit.close()
comm.barrier()
model, optimizer, edit, checkpoints = job()
assert checkpoints.resume() == 4
assert torch.equal(model.mean, mean)
edit.close()
""", 2, DIRECTORY=str(tmp_path))
