"""EDiT inside torchtitan's trainer, on the CPU."""
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from common import run, same
from conftest import ROOT
import entrain

pytest.importorskip("torchtitan")
pytest.importorskip("triton")  # torchtitan imports it

# torchtitan knows accelerators only. Here it is told that the CPU is one. Its attention has no backward pass there, so the model has
# PyTorch's own. `shards` processes are a torchrun of their own, whose torch.distributed has these ranks and a port of its own.
TITAN = """
import os, sys, types
shards, *ports = map(int, sys.argv[2:])
process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
replica, replicas = process // shards, processes // shards
store = os.environ["ENTRAIN_STORE"]
os.environ.update(EDIT_REPLICA=str(replica), EDIT_REPLICAS=str(replicas), RANK=str(process % shards), WORLD_SIZE=str(shards),
                  LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[replica]))
import torch, torch._utils, torch.distributed as dist
torch._utils._get_available_device_type = lambda: "cpu"
for name, value in dict(get_device_name=lambda *a: "cpu", get_device_properties=lambda *a: types.SimpleNamespace(total_memory=1 << 30),
                        memory_stats=lambda *a: {{}}, reset_peak_memory_stats=lambda *a: None, empty_cache=lambda: None,
                        set_device=lambda device: None, current_device=lambda: 0, device_count=lambda: 1).items():
    setattr(torch.cpu, name, value)
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = lambda *arguments: None  # of a later PyTorch
import logging, warnings
warnings.filterwarnings("ignore")
from dataclasses import dataclass
import entrain.torch
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer
from entrain.integrations.torchtitan import with_edit

directory = sys.argv[1]
LENGTH, BATCH, STEPS = 32, 4, 14
EDIT = dict(local_sgd_sync_interval=4, local_sgd_warmup_steps=4)
TEXT = torch.frombuffer(bytearray(open({file!r}, "rb").read()), dtype=torch.uint8).long()


class Rows(torch.utils.data.IterableDataset):
    limit = 1 << 30

    def __init__(self, rank, size):
        self.rank, self.size, self.count = rank, size, 0

    def __iter__(self):
        while self.count < self.limit:
            first = (self.count * self.size + self.rank) * LENGTH % (len(TEXT) - LENGTH)
            self.count += 1
            row = TEXT[first:first + LENGTH + 1]
            yield {{"input": row[:-1], "positions": torch.arange(LENGTH)}}, row[1:]

    def state_dict(self):
        return {{"count": self.count}}

    def load_state_dict(self, state):
        self.count = state["count"]


class Loader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, snapshot_every_n_steps=None):
        super().__init__(Rows(dp_rank, dp_world_size), dp_rank, dp_world_size, batch_size=local_batch_size)


class Bytes(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, tokenizer_path=None):
        super().__init__()

    def encode(self, *arguments, **keywords):
        raise NotImplementedError

    decode = encode

    def get_vocab_size(self):
        return 256


def config_of(name, interval=None, steps=STEPS):
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for _, _, parent, attribute in spec.model.traverse(FlexAttention.Config):
        setattr(parent, attribute, ScaledDotProductAttention.Config())
    return Trainer.Config(
        model_spec=spec, loss=CrossEntropyLoss.Config(), optimizer=default_adamw(lr=1e-3), tokenizer=Bytes.Config(),
        dataloader=Loader.Config(), lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2), activation_checkpoint=None,
        training=TrainingConfig(local_batch_size=BATCH, seq_len=LENGTH, steps=steps, disable_cuda_graphs=True,
                                mixed_precision_param="float32"),
        checkpoint=CheckpointManager.Config(enable=interval is not None, interval=interval or 1, last_save_model_only=False),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"), debug=DebugConfig(seed=1), dump_folder=os.path.join(directory, name))


def report(what, trainer, loss=0.0):
    parts = [p.to_local() if hasattr(p, "to_local") else p for p in trainer.model_parts[0].parameters()]
    bits = hash(b"".join(p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in parts))
    total = sum(float(p.detach().double().abs().sum()) for p in parts)
    print(f"{{what}}: rank {{process}} loss {{loss:.6f}} sum {{total:.9f}} bits {{bits:x}}".replace("-", "m"), flush=True)


@torch.no_grad()
def validate(trainer):
    x = TEXT[-LENGTH * 16 - 1:-1].view(16, LENGTH), TEXT[-LENGTH * 16:].view(16, LENGTH)
    model = trainer.model_parts[0].eval()
    pred = model(x[0], positions=torch.arange(LENGTH).expand(16, -1))
    return torch.nn.functional.cross_entropy(pred.float().flatten(0, 1), x[1].flatten()).item()
""".format(file=str(ROOT / "docs/python.md"))


FIT = """
def fit(name, **arguments):
    trainer = with_edit(config_of(name, **arguments), **EDIT).build()
    for module in trainer.model_parts[0].modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):  # gloo has no scaled sums
            module.set_force_sum_reduction_for_comms(True)
    trainer.train()
    report(name if "steps" not in arguments else "first", trainer, validate(trainer))
    info = trainer.edit.info
    trainer.close()
    dist.destroy_process_group()
    del ports[:2]
    os.environ["MASTER_PORT"] = str(ports[replica])  # the next one meets elsewhere
    return info
"""


def ports(count):
    """Returns free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return numbers


def test_it_has_the_bits_of_edit_around_the_same_model_and_resumes(tmp_path):
    found = run(FIT + """
info = fit("plain")
assert info.steps == STEPS and info.syncs == 3 and info.replicas == replicas, info

# The same trainer without the integration, with EDiT beside it and the data divided by hand.
config = config_of("beside")
trainer = config.build()
trainer.dataloader = Loader(None, dp_world_size=replicas, dp_rank=replica, tokenizer=None, seq_len=LENGTH, local_batch_size=BATCH)
comm = entrain.Comm.create(entrain.Store.open(store), replica, replicas, name="beside")
edit = entrain.torch.EDiT(trainer.model_parts[0], trainer.optimizers.optimizers[0], comm=comm, **EDIT)
trainer.train()
edit.synchronize()
report("beside", trainer, validate(trainer))
edit.close()
trainer.close()
dist.destroy_process_group()

fit("saved", interval=8)
fit("again", interval=8, steps=STEPS)
import shutil
assert sorted(os.listdir(f"{directory}/again/replica-{replica}/checkpoint")) == ["step-14", "step-8"]
shutil.rmtree(f"{directory}/again/replica-{replica}/checkpoint/step-14")
fit("again", interval=8)

for match, options, spoil in (("use_async", dict(EDIT, use_async=True), {}), ("checkpoint.interval is 6", EDIT, dict(interval=6)),
                              ("local_sgd_sync_interval is missing", {}, {})):
    try:
        with_edit(config_of("refused", **spoil), **options).build()
    except entrain.InvalidArgument as error:
        assert match in str(error), error
    else:
        raise SystemExit(f"{match}: it was accepted")

Rows.limit = 6 * BATCH
try:
    fit("short")
    raise SystemExit("it trained without data")
except entrain.InvalidArgument as error:
    assert "the data ended behind step 6" in str(error), error
""", tmp_path, 1, *ports(12), program=TITAN, timeout=240)
    same(found, "plain", "beside", "saved", "again")


def test_a_replica_of_two_processes(tmp_path):
    found = run(FIT + """
info = fit("plain")
assert info.steps == STEPS and info.syncs == 3 and info.replicas == replicas == 2, info
fit("saved", interval=8)
import shutil
if process % shards == 0:
    shutil.rmtree(f"{directory}/saved/replica-{replica}/checkpoint/step-14")
fit("saved", interval=8, steps=STEPS)
""", tmp_path, 2, *ports(8), program=TITAN, size=4, timeout=400)
    assert found["plain"] == found["saved"] == found["first"]
    for rank in range(2):  # the same part of the model in both replicas
        assert found["plain"][rank][1:] == found["plain"][rank + 2][1:], found


ELASTIC = """
import signal, time

EDIT = dict(EDIT, join=60.0)
STEPS = int(os.environ.get("TEST_STEPS", "60"))
restarted = "ENTRAIN_RESTARTS" in os.environ and os.environ["ENTRAIN_RESTARTS"] != "0"
os.environ["MASTER_PORT"] = str(ports[replica + replicas * restarted])
trainer = with_edit(config_of("run", interval=20, steps=STEPS), **EDIT).build()
begun, step = [], trainer.train_step


def train_step(data_iterator):
    begun.append(trainer.step)
    step(data_iterator)
    if replica == 1 and not restarted and trainer.step == 25 and STEPS == 60:
        os.kill(os.getpid(), signal.SIGKILL)
    # The others wait for the replica that comes back: importing torchtitan takes more time than the rest of the run.
    time.sleep(0.5 if trainer.edit.replicas < replicas else 0)


trainer.train_step = train_step
trainer.train()
info, optimizer = trainer.edit.info, trainer.optimizers.optimizers[0]
assert info.replicas == replicas and abs(trainer.lr_schedulers.schedulers[0].last_epoch) == STEPS, info
adam = int(min(float(state["step"]) for state in optimizer.state.values()))
parts = [p.to_local() if hasattr(p, "to_local") else p for p in trainer.model_parts[0].parameters()]
bits = hash(b"".join(p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in parts))
print(f"replica {replica} restarted {restarted} began {begun[0]} ended {info.steps} adam {adam} bits {bits:x}", flush=True)
trainer.close()
dist.destroy_process_group()
"""


def start_elastic(directory, steps):
    numbers = [str(port) for port in ports(6)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "ENTRAIN_TIMEOUT": "60s", "TEST_STEPS": str(steps),
                   "WORLD_SIZE": "3"}
    with entrain.Store.serve("tcp://127.0.0.1:0") as store:
        def start(replica, restarts):
            return subprocess.Popen([sys.executable, "-c", TITAN + ELASTIC, str(directory), "1", *numbers], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, env={**environment, "ENTRAIN_STORE": store.url,
                                                                              "RANK": str(replica), "ENTRAIN_RESTARTS": str(restarts)})
        processes, texts = [start(replica, 0) for replica in range(3)], ["", "", ""]
        try:
            for replica in (1, 0, 2):
                texts[replica] = processes[replica].communicate(timeout=150)[0]
                if processes[replica].returncode == -signal.SIGKILL:  # as a supervisor does
                    processes[replica] = start(replica, 1)
                    texts[replica] += processes[replica].communicate(timeout=150)[0]
        finally:
            for process in processes:
                process.kill()
    text = "\n".join(texts)
    assert all(process.returncode == 0 for process in processes), text
    return sorted(re.findall(r"replica (\d) restarted (\w+) began (\d+) ended (\d+) adam (\d+) bits (-?\w+)", text))


def test_a_replica_that_is_killed_comes_back(tmp_path):
    found = start_elastic(tmp_path, 60)
    assert [row[:2] for row in found] == [("0", "False"), ("1", "True"), ("2", "False")], found
    assert int(found[1][2]) > 25 and found[0][2] == "1" and {row[3:5] for row in found} == {("60", "60")}, found
    assert len({row[5] for row in found}) == 1, found
    # All go on from the newest checkpoint that all of them have. Replica 1 was away at step 40, unless it was quick.
    (tmp_path / "run/replica-1/checkpoint/step-60").rename(tmp_path / "lost")
    found = start_elastic(tmp_path, 64)
    assert found[0][2] in ("21", "41") and {row[2:5] for row in found} == {(found[0][2], "64", "64")}, found
    assert len({row[5] for row in found}) == 1, found
