"""Runs the programs of docs/python.md with frameworks unchanged, on two processes."""
import os
import re
import subprocess
import sys

import pytest
from common import TINY
from conftest import ROOT, RUN, finish

pytest.importorskip("transformers")
SECTION = (ROOT / "docs/python.md").read_text().split("### With Trainer, Lightning, accelerate, torchtitan")[1].split("\n### ")[0]
PROGRAMS = {re.search(r"entrain\.integrations(?:\.| import )(\w+)", block).group(1): re.sub(r"^    ", "", block, flags=re.M)
            for block in re.findall(r"(?:^(?:    .*)?\n)+", SECTION, re.M) if "entrain.integrations" in block}

# What the programs suppose: a model, an optimizer, data.
BEFORE = """
os.chdir(directory)
rows = ROWS[:400].clone()
model = build()
optimizer = make(model)
data = [dict(input_ids=row, labels=row) for row in rows]
loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
if "lightning" in sys.argv:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return make(self.model)

    module = Module(model)
"""
AFTER = """
report("end", model, validate(model.to("cpu")))
"""


def test_there_is_a_program_for_each_framework():
    assert list(PROGRAMS) == ["transformers", "lightning", "accelerate", "torchtitan", "elastic"]


@pytest.mark.parametrize("framework, launcher", [
    ("transformers", "torchrun"), ("lightning", "torchrun"), ("lightning", "lightning"), ("accelerate", "torchrun"),
    ("elastic", "entrain-run")])
def test_it_trains_and_all_ranks_end_alike(framework, launcher, tmp_path):
    pytest.importorskip({"elastic": "transformers"}.get(framework, framework))
    program = tmp_path / "program.py"
    program.write_text(TINY + BEFORE + PROGRAMS[framework] + AFTER)
    command = [*(RUN, "--elastic", "-n", "2", "--") * (launcher == "entrain-run"), sys.executable,
               *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2") * (launcher == "torchrun")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
                   "ACCELERATE_USE_CPU": "true"}
    text = finish(subprocess.Popen([*command, program, tmp_path, framework], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=environment), timeout=150)
    ends = re.findall(r"end: rank \d loss ([\d.]+) sum ([\d.]+) bits", text)
    assert len(ends) == 2 and len(set(ends)) == 1, text
    assert float(ends[0][0]) < 5.5, text  # from 5.6
    assert "all replicas have made the same steps" not in text, text


def test_a_framework_that_does_not_see_the_other_processes_is_refused(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(TINY + BEFORE + PROGRAMS["accelerate"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RANK": "0", "WORLD_SIZE": "2"}
    found = subprocess.run([sys.executable, program, tmp_path, "accelerate"], capture_output=True, text=True, env=environment, timeout=150)
    assert "the launcher has started 2 processes, and the framework knows this one alone" in found.stderr, found.stderr


def test_processes_of_srun_are_refused_too(tmp_path):
    """The library knows srun's variables, and accelerate does not."""
    program = tmp_path / "program.py"
    program.write_text(TINY + BEFORE + PROGRAMS["accelerate"])
    place = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NNODES": "1",
             "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "ENTRAIN_STORE": f"file:{tmp_path / 'store'}"}
    (tmp_path / "store").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    environment.update(place, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true")
    tasks = [subprocess.Popen([sys.executable, program, tmp_path, "accelerate"], stderr=subprocess.PIPE, text=True,
                              env={**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(2)]
    for task in tasks:
        _, text = task.communicate(timeout=150)
        assert task.returncode and "the launcher has started 2 processes, and the framework knows this one alone" in text, text


def test_torchtitan_takes_the_configuration():
    pytest.importorskip("torchtitan")
    pytest.importorskip("triton")
    found = {}
    exec(PROGRAMS["torchtitan"], found)
    from entrain.integrations.torchtitan import EDiTTrainer
    config = found["my_config"]()
    assert config._owner is EDiTTrainer and config.edit == dict(local_sgd_sync_interval=100, local_sgd_warmup_steps=1000)
    EDiTTrainer._check(config)
