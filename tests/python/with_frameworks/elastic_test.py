"""A replica inside transformers.Trainer, accelerate and Lightning is killed, and comes back."""
import os
import re
import subprocess
import sys

import pytest
from common import TINY
from conftest import RUN

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

PROGRAM = """
import signal, time
from entrain.integrations import elastic
place = elastic.alone(join=60)
STEPS = 60
size = place.replicas
ROWS = ROWS[place.replica::size]


def may_die(step, edit):
    if place.replica == 1 and not place.restarted and step == 25:
        os.kill(os.getpid(), signal.SIGKILL)
    # The others wait for the replica that comes back: importing the framework takes more time than the rest of the run.
    time.sleep(0.5 if edit.replicas < size else 0)


def finish(model, edit_steps, optimizer, begun):
    adam = int(min(state["step"] for state in optimizer.state.values()))
    print(f"replica {place.replica} restarted {place.restarted} began {begun} ended {edit_steps} adam {adam} "
          f"loss {validate(model):.6f} bits {checksum(model)[1]:x}", flush=True)
"""

TRAINER = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from entrain.integrations.transformers import EDiTCallback

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return {"input_ids": ROWS[index], "labels": ROWS[index]}

class Die(TrainerCallback):
    begun = 0

    def on_step_begin(self, args, state, control, **kwargs):
        self.begun = self.begun or state.global_step + 1

    def on_step_end(self, args, state, control, **kwargs):
        may_die(state.global_step, edit.edit)

def run(steps, callbacks, resume=None):
    global edit
    args = TrainingArguments(output_dir=directory + "/run", per_device_train_batch_size=BATCH, learning_rate=3e-3, max_steps=steps,
                             lr_scheduler_type="cosine", report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="steps",
                             save_steps=20, eval_strategy="steps", eval_steps=15, logging_steps=100)
    model = build()
    trainer = Trainer(model=model, args=args, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks,
                      optimizers=(make(model), None))
    edit = EDiTCallback(trainer, local_sgd_sync_interval=4, local_sgd_warmup_steps=2, **place.options)
    trainer.add_callback(edit)
    trainer.train(resume_from_checkpoint=resume)
    return trainer

die = Die()
trainer = run(STEPS, [die])
assert trainer.state.global_step == edit.info.steps == STEPS and edit.info.replicas == size, (trainer.state.global_step, edit.info)
assert abs(trainer.lr_scheduler.get_last_lr()[0]) < 1e-9  # the end of the cosine
finish(trainer.model, edit.info.steps, trainer.optimizer.optimizer, die.begun)
"""

ACCELERATE = """
from accelerate import Accelerator
from entrain.integrations.accelerate import prepare

accelerator = Accelerator(cpu=True)
model = build().train()
optimizer = make(model)
scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
loader = torch.utils.data.DataLoader(ROWS, batch_size=BATCH)
edit, model, prepared, loader = prepare(accelerator, model, optimizer, loader, local_sgd_sync_interval=4,
                                        hand_over={"optimizer": optimizer, "scheduler": scheduler}, **place.options)
begun = edit.info.steps + 1
while edit.info.steps < STEPS:
    for x in loader:
        accelerator.backward(loss_of(model, x))
        prepared.step()
        scheduler.step()
        prepared.zero_grad()
        may_die(edit.info.steps, edit)
        if edit.info.steps == STEPS:
            break
edit.synchronize()
finish(model, edit.info.steps, optimizer, begun)
"""

LIGHTNING = """
import logging as python_logging
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from entrain.integrations.lightning import EDiTStrategy

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch"):
    python_logging.getLogger(name).setLevel(python_logging.ERROR)


class Module(LightningModule):
    begun = 0

    def __init__(self):
        super().__init__()
        self.model = build()

    def training_step(self, batch, index):
        self.begun = self.begun or self.trainer.global_step + 1
        loss = loss_of(self.model, batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", loss_of(self.model, batch))

    def configure_optimizers(self):
        optimizer = make(self.model)
        scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Die(Callback):
    def on_train_batch_end(self, trainer, module, *unused):
        may_die(trainer.global_step, trainer.strategy.edit)


strategy = EDiTStrategy(local_sgd_sync_interval=4, local_sgd_warmup_steps=2, **place.options)
saves = ModelCheckpoint(dirpath=directory + "/run", filename="{step}", every_n_train_steps=20, save_top_k=-1)
trainer = Trainer(strategy=strategy, accelerator="cpu", devices=1, max_steps=STEPS, max_epochs=-1, callbacks=[Die(), saves],
                  logger=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, val_check_interval=15,
                  default_root_dir=directory)
module = Module()
trainer.fit(module, torch.utils.data.DataLoader(ROWS, batch_size=BATCH, shuffle=False),
            torch.utils.data.DataLoader(VALIDATION, batch_size=16))
assert trainer.global_step == strategy.info.steps == STEPS and strategy.info.replicas == size, (trainer.global_step, strategy.info)
assert abs(module.lr_schedulers().get_last_lr()[0]) < 1e-9
if strategy.is_global_zero:
    saved = torch.load(directory + "/run/step=60.ckpt")["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())
finish(module.model, strategy.info.steps, module.optimizers().optimizer, module.begun)
"""

CODES = {"transformers": TRAINER, "accelerate": ACCELERATE, "lightning": LIGHTNING}
LINE = re.compile(r"replica (\d) restarted (\w+) began (\d+) ended (\d+) adam (\d+) loss ([\d.]+) bits (-?\w+)")


def start(code, directory, program=PROGRAM, size=3):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                   "ENTRAIN_TIMEOUT": "60s"}
    done = subprocess.run([RUN, "--elastic", "-n", str(size), "--", sys.executable, "-c", TINY + program + code, str(directory)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, env=environment)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    return [(int(replica), restarted == "True", int(began), int(ended), int(adam), float(loss), bits)
            for replica, restarted, began, ended, adam, loss, bits in LINE.findall(done.stdout)]


@pytest.mark.parametrize("framework", ["transformers", "accelerate", "lightning"])
def test_a_replica_that_is_killed_comes_back(framework, tmp_path):
    pytest.importorskip(framework)
    found = sorted(start(CODES[framework], tmp_path))
    assert [row[:2] for row in found] == [(0, False), (1, True), (2, False)], found
    assert found[1][2] > 25 and found[0][2] == 1 and all(row[3] == 60 for row in found), found
    # The newcomer has the optimizer of a member, which has made all steps.
    assert all(row[4] == 60 for row in found), found
    assert len({row[5:] for row in found}) == 1 and found[0][5] < 4.0, found
    if framework == "lightning":
        assert sorted(os.listdir(tmp_path / "run")) == ["step=20.ckpt", "step=40.ckpt", "step=60.ckpt"]
    if framework == "transformers":
        saved = sorted(os.listdir(tmp_path / "run"), key=lambda name: int(name.rpartition("-")[2]))
        assert len(saved) == 3 and saved[-1] == "checkpoint-60", saved
        for name in saved:
            files = os.listdir(tmp_path / "run" / name / "entrain")
            assert sum(file.endswith(".pt") for file in files) in (2, 3), files
            assert "trainer_state.json" in os.listdir(tmp_path / "run" / name), name
        # All three go on from the newest; two of them go on from there, with warm optimizers.
        again = TRAINER.replace("run(STEPS, [die])", "run(STEPS + 12, [die], resume=True)").replace("== STEPS and", "== STEPS + 12 and")
        found = sorted(start(again.replace("may_die(state.global_step, edit.edit)", "pass"), tmp_path))
        assert [(row[0], row[3], row[4]) for row in found] == [(0, 72, 72), (1, 72, 72), (2, 72, 72)], found


@pytest.mark.parametrize("framework", list(CODES))
def test_replicas_of_a_edit_do_not_wait_for_a_slow_one(framework, tmp_path):
    pytest.importorskip(framework)
    options = 'place.options.update(preset="a-edit", local_sgd_sync_time=0.05)'
    program = PROGRAM.replace("size = place.replicas", f"size = place.replicas\n{options}")
    before = program.index("    if place.replica == 1")
    # Replica 1 is slow.
    program = program[:before] + "    time.sleep(0.02 * place.replica)\n\n\ndef finish" + program.partition("def finish")[2]
    code = re.sub(r"local_sgd_sync_interval=4,\s*", "", CODES[framework])
    code = code.replace("edit.synchronize()\nfinish", "edit.leave()\nfinish")
    if framework == "transformers":
        with pytest.raises(AssertionError, match="A-EDiT, and save_strategy is"):
            start(code, tmp_path, program, size=2)
        code = re.sub(r'save_strategy="steps",\s*save_steps=20', 'save_strategy="no"', code)
    found = sorted(start(code, tmp_path, program, size=2))
    assert [row[3:5] for row in found] == [(60, 60), (60, 60)] and len({row[5:] for row in found}) == 1 and found[0][5] < 4.0, found
