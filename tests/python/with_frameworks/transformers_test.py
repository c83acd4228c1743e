"""EDiT inside transformers.Trainer."""
import pytest
from common import run, same

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

TRAINER = """
from transformers import Trainer, TrainingArguments, TrainerCallback
from entrain.integrations.transformers import EDiTCallback


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer_of(name, options=EDIT, callbacks=(), model=None, **arguments):
    arguments = {**dict(max_steps=STEPS, logging_steps=5, save_strategy="no"), **arguments}
    args = TrainingArguments(output_dir=os.path.join(directory, name), per_device_train_batch_size=BATCH, learning_rate=3e-3,
                             lr_scheduler_type="cosine", warmup_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
                             train_sampling_strategy="sequential", **arguments)
    model = build() if model is None else model
    trainer = Trainer(model=model, args=args, train_dataset=Rows(ROWS), eval_dataset=Rows(VALIDATION), callbacks=list(callbacks),
                      optimizers=(make(model), None))
    trainer.callback = EDiTCallback(trainer, **options)
    trainer.add_callback(trainer.callback)
    return trainer
"""


@pytest.mark.parametrize("size", [2, 4])
def test_it_has_the_bits_of_the_own_loop(tmp_path, size):
    found = run(TRAINER + """
report("own", *own_loop())
trainer = trainer_of("a")
trainer.train()
report("trainer", trainer.model, validate(trainer.model))
assert trainer.callback.info.steps == STEPS and trainer.callback.info.syncs == 4, trainer.callback.info
""", tmp_path, size=size)
    same(found, "own", "trainer")


def test_accumulation_autocast_and_an_epoch_with_a_short_last_step(tmp_path):
    found = run(TRAINER + """
report("own", *own_loop(micro=3, bf16=True))
trainer = trainer_of("a", gradient_accumulation_steps=3, bf16=True)
trainer.train()
trainer.model.forward = trainer.model._original_forward  # without autocast
report("trainer", trainer.model, validate(trainer.model))

# 7 batches for each rank in an epoch are steps of 3, 3 and 1.
trainer = trainer_of("b", gradient_accumulation_steps=3, max_steps=-1, num_train_epochs=3)
trainer.train_dataset = Rows(ROWS[:7 * size * BATCH])
trainer.train()
assert trainer.callback.info.steps == trainer.state.global_step == 9
report("epochs", trainer.model, validate(trainer.model))
""", tmp_path)
    same(found, "own", "trainer")
    same(found, "epochs")


def test_saves_wait_for_an_exchange_and_a_resumed_run_has_the_same_bits(tmp_path):
    found = run(TRAINER + """
import shutil

arguments = dict(save_strategy="steps", save_steps=5, save_total_limit=3)
trainer = trainer_of("a", **arguments)
trainer.train()
report("whole", trainer.model, validate(trainer.model))
report("own", *own_loop())  # saving has changed nothing
names = sorted(os.listdir(f"{directory}/a"))
assert names == ["checkpoint-10", "checkpoint-15", "checkpoint-6"], names
assert trainer.state.global_step == 15
for name in names:
    found = [n.rpartition("_")[0] if n.endswith(".pt") else n for n in sorted(os.listdir(f"{directory}/a/{name}/entrain"))]
    step = f"step-{int(name.rpartition('-')[2]):08}"
    assert found == [step + ".ckpt", *(f"{step}_{r:04}" for r in range(size))], found
torch.distributed.barrier()
trainer = trainer_of("a", **arguments)  # a run that begins anew replaces them
trainer.train()
report("anew", trainer.model, validate(trainer.model))

trainer = trainer_of("a", **arguments)
trainer.train(resume_from_checkpoint=f"{directory}/a/checkpoint-6")
report("resumed", trainer.model, validate(trainer.model))
torch.distributed.barrier()
if rank == 0:
    shutil.rmtree(f"{directory}/a/checkpoint-15")
    os.makedirs(f"{directory}/a/checkpoint-12/entrain")  # of a job that has ended while it saved
torch.distributed.barrier()
trainer = trainer_of("a", **{**arguments, "save_total_limit": 4})
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    trainer.train(resume_from_checkpoint=True)  # from the newest that is complete
assert any("checkpoint-12 is not complete" in str(one.message) for one in told), told
report("newest", trainer.model, validate(trainer.model))

# The inner optimizers of the replicas differ: with that of rank 0 on all ranks the run would be another.
import glob
files = [glob.glob(f"{directory}/a/checkpoint-6/entrain/*_{r:04}_*.pt")[0] for r in range(2)]
states = [torch.load(file)["states"]["optimizer"]["state"][0]["exp_avg"] for file in files]
assert not torch.equal(*states)

# In warm-up there is nothing but the optimizer.
trainer = trainer_of("w", save_strategy="steps", save_steps=1, save_total_limit=20)
trainer.train()
trainer = trainer_of("w")
trainer.train(resume_from_checkpoint=f"{directory}/w/checkpoint-1")
report("warm", trainer.model, validate(trainer.model))

try:
    trainer_of("empty").train(resume_from_checkpoint=True)
    raise SystemExit("it began anew")
except ValueError as error:
    assert "No valid checkpoint found" in str(error), error

# A checkpoint of a Trainer without EDiT is none.
os.makedirs(f"{directory}/none/checkpoint-6", exist_ok=True)
for name in os.listdir(f"{directory}/a/checkpoint-6"):
    if not name.startswith("entrain"):
        shutil.copy(f"{directory}/a/checkpoint-6/{name}", f"{directory}/none/checkpoint-6/{name}")
torch.distributed.barrier()
try:
    trainer_of("none").train(resume_from_checkpoint=f"{directory}/none/checkpoint-6")
    raise SystemExit("it resumed")
except entrain.InvalidArgument as error:
    assert "is missing: the checkpoint was made without EDiT" in str(error), error
""", tmp_path)
    same(found, "whole", "own", "anew", "resumed", "newest", "warm")


def test_a_save_is_of_the_agreed_model_and_leaves_the_last_one_until_it_is_whole(tmp_path):
    run(TRAINER + """
from safetensors.torch import load_file


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 8:  # between two exchanges
            control.should_save = control.should_training_stop = True


trainer = trainer_of("stop")
trainer.add_callback(Stop())  # after EDiT's
trainer.train()
torch.distributed.barrier()
saved = load_file(f"{directory}/stop/checkpoint-8/model.safetensors")
own = trainer.model.state_dict()
assert trainer.callback.info.steps == 8 and saved and all(torch.equal(value, own[name]) for name, value in saved.items())

seen = []
trainer = trainer_of("last", save_strategy="steps", save_steps=6, save_total_limit=1)
save = trainer.callback._save_own


def note(*arguments):
    folder = f"{directory}/last"
    seen.append([name for name in (os.listdir(folder) if os.path.isdir(folder) else []) if os.path.exists(f"{folder}/{name}/trainer_state.json")])
    save(*arguments)


trainer.callback._save_own = note
trainer.train()
assert len(seen) > 1 and all(len(names) == 1 for names in seen[1:]), seen  # while EDiT's part is written, the one before is there
""", tmp_path)


def test_another_number_of_replicas_resumes(tmp_path):
    run(TRAINER + """
trainer_of("a", save_strategy="steps", save_steps=5).train()
""", tmp_path)
    found = run(TRAINER + """
trainer = trainer_of("a")
trainer.train(resume_from_checkpoint=f"{directory}/a/checkpoint-10")
assert trainer.callback.info.steps == trainer.state.global_step == STEPS, trainer.callback.info
assert all(state["step"] == STEPS for state in trainer.optimizer.optimizer.state.values())  # of one of the two
report("three", trainer.model, validate(trainer.model))
""", tmp_path, size=3)
    same(found, "three")


def test_evaluation_sees_the_agreed_parameters(tmp_path):
    found = run(TRAINER + """
class Note(TrainerCallback):
    def __init__(self):
        self.found = {}

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.found[state.global_step] = metrics["eval_loss"]


report("own", *own_loop(items=True, consensus_at=8))
note = Note()
trainer = trainer_of("a", callbacks=[note], eval_strategy="steps", eval_steps=8, max_steps=STEPS)
trainer.train()
report("trainer", trainer.model, validate(trainer.model))
print(f"evaluated: rank {rank} loss {note.found[8]:.6f} sum 0 bits 0")

# The best model is kept where it was evaluated and saved at one step.
note = Note()
trainer = trainer_of("b", callbacks=[note], eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=5,
                     load_best_model_at_end=True)
trainer.train()
assert sorted(note.found) == [6, 10, 15], note.found
best = min(note.found, key=note.found.get)
assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best}"), trainer.state.best_model_checkpoint
assert abs(validate(trainer.model) - note.found[best]) < 1e-5
report("best", trainer.model, validate(trainer.model))

note = Note()
trainer = trainer_of("c", callbacks=[note], eval_strategy="steps", eval_steps=5, save_strategy="best", metric_for_best_model="loss")
trainer.train()
assert sorted(note.found) == [6, 10, 15], note.found
assert os.path.isdir(f"{directory}/c/checkpoint-6")

# With overlap a replica's own parameters are never the agreed ones; the saved model has those.
options = dict(EDIT, preset="streaming-diloco", overlap_steps=2)
arguments = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
trainer = trainer_of("d", options, **arguments)
trainer.train()
report("overlap", trainer.model, validate(trainer.model))
saved = LlamaForCausalLM.from_pretrained(f"{directory}/d/checkpoint-10")
losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
assert abs(validate(saved) - losses[10]) < 1e-5, (validate(saved), losses)
again = trainer_of("d", options, **arguments)
again.train(resume_from_checkpoint=f"{directory}/d/checkpoint-10")
report("overlap resumed", again.model, validate(again.model))
""", tmp_path)
    same(found, "own", "trainer")
    for rank, (loss, _, _) in found["evaluated"].items():
        assert float(loss) == pytest.approx(float(found["own consensus"][rank][0]), abs=1e-5)
    same(found, "best")
    same(found, "overlap", "overlap resumed")


def test_a_model_that_is_no_pretrained_model_is_saved_whole(tmp_path):
    found = run(TRAINER + """
from safetensors.torch import load_file


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, input_ids, labels):
        return {"loss": loss_of(self.inner, input_ids)}


trainer = trainer_of("a", model=Plain(), save_strategy="steps", save_steps=6, max_steps=6)
trainer.train()
saved = load_file(f"{directory}/a/checkpoint-6/model.safetensors")
now = trainer.model.state_dict()
assert saved.keys() == now.keys() and all(torch.equal(saved[name], now[name]) for name in now)
report("plain", trainer.model, validate(trainer.model.inner))
""", tmp_path)
    same(found, "plain")


def test_adapters_streams_and_recomputed_activations(tmp_path):
    found = run(TRAINER + """
for name, more in (("a", {}), ("b", dict(gradient_checkpointing=True))):
    trainer = trainer_of(name, model=adapted(), save_strategy="steps", save_steps=5, **more)
    trainer.train()
    report(f"adapters {name}", trainer.model, validate(trainer.model))
trainer = trainer_of("a", model=adapted())
trainer.train(resume_from_checkpoint=f"{directory}/a/checkpoint-10")
report("adapters resumed", trainer.model, validate(trainer.model))
build = adapted
report("own", *own_loop())
build = build_whole


def stream(name, **arguments):
    trainer = trainer_of(name, accelerator_config=dict(dispatch_batches=False), gradient_accumulation_steps=2, **arguments)
    trainer.train_dataset = Stream(lambda row: {"input_ids": row, "labels": row})  # one ends earlier, and begins again
    trainer.train()
    assert trainer.state.global_step == trainer.callback.info.steps == STEPS
    report("stream", trainer.model, validate(trainer.model))


stream("c")
refused('save_strategy is "epoch"', lambda: stream("d", save_strategy="epoch"))
refused('eval_strategy is "epoch"', lambda: stream("e", eval_strategy="epoch"))

# The best of two epochs, each of which ends with a short step.
trainer = trainer_of("f", max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=3, load_best_model_at_end=True,
                     eval_strategy="epoch", save_strategy="epoch")
trainer.train_dataset = Rows(ROWS[:7 * 2 * BATCH - 3])
trainer.train()
assert trainer.state.global_step == trainer.callback.info.steps == trainer.lr_scheduler.last_epoch == 6
report("epochs", trainer.model, validate(trainer.model))

trainer = trainer_of("g", max_steps=-1, num_train_epochs=1)
trainer.train_dataset = Rows(ROWS[:80 * (rank + 1)])
refused("the replicas would make [10, 20] steps", trainer.train)
""", tmp_path)
    same(found, "adapters a", "adapters b", "adapters resumed", "own")
    same(found, "stream")
    same(found, "epochs")


def test_what_cannot_be_right_is_refused(tmp_path):
    run(TRAINER + """
import entrain

refused("expected the Trainer", lambda: EDiTCallback(4, local_sgd_sync_interval=4))
refused("use_async", lambda: trainer_of("a", dict(use_async=True)))
refused("use_async", lambda: trainer_of("a", dict(preset="a-edit")))
refused("auto_find_batch_size", lambda: trainer_of("a", auto_find_batch_size=True))
refused("enable_jit_checkpoint", lambda: trainer_of("a", enable_jit_checkpoint=True))
trainer = trainer_of("a")
trainer.is_fsdp_enabled = True
refused("fsdp, deepspeed", lambda: EDiTCallback(trainer))
""", tmp_path, size=0)
