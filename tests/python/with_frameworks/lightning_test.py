"""EDiT inside lightning.Trainer."""
import pytest
from common import run, same

pytest.importorskip("transformers")
pytest.importorskip("lightning")

LIGHTNING = """
import logging as python_logging
import lightning
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader, DistributedSampler
from entrain.integrations.lightning import EDiTStrategy

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch"):
    python_logging.getLogger(name).setLevel(python_logging.ERROR)


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build()
        self.validated = {}

    def training_step(self, batch, index):
        loss = loss_of(self.model, batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.validated[self.trainer.global_step] = loss_of(self.model, batch).item()

    def configure_optimizers(self):
        optimizer = make(self.model)
        scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def loader(rows):
    return DataLoader(rows, batch_size=BATCH, shuffle=False)


def order(rows):
    "Lets own_loop see the rows in the order in which Lightning's sampler gives them."
    global rows_of
    mine = list(DistributedSampler(rows, num_replicas=size, rank=rank, shuffle=True, seed=0))
    rows_of = lambda batch: rows[mine[batch // size * BATCH:(batch // size + 1) * BATCH]]


def trainer_of(options=EDIT, callbacks=(), **arguments):
    arguments = {**dict(max_steps=STEPS, max_epochs=-1, gradient_clip_val=1.0), **arguments}
    return Trainer(strategy=EDiTStrategy(**options), accelerator="cpu", devices=size, callbacks=list(callbacks), logger=False,
                   enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                   enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks), default_root_dir=directory, **arguments)
"""


def test_it_has_the_bits_of_the_own_loop(tmp_path):
    found = run(LIGHTNING + """
some, more = ROWS[:STEPS * BATCH * size], ROWS[:2 * STEPS * BATCH * size]
order(some)
report("own", *own_loop(items=False))
order(more)
report("own accumulated", *own_loop(items=False, micro=2, bf16=True))

module = Module()
trainer = trainer_of()
trainer.fit(module, loader(some))
assert isinstance(trainer.train_dataloader.sampler, DistributedSampler)
info = trainer.strategy.info
assert info.steps == STEPS and info.syncs == 4, info
report("lightning", module.model, validate(module.model))

module = Module()
trainer = trainer_of(accumulate_grad_batches=2, precision="bf16-mixed")
trainer.fit(module, loader(more))
assert trainer.strategy.info.steps == STEPS, trainer.strategy.info
report("accumulated", module.model, validate(module.model))
""", tmp_path)
    same(found, "own", "lightning")
    same(found, "own accumulated", "accumulated")


def test_validation_sees_the_agreed_parameters(tmp_path):
    found = run(LIGHTNING + """
some = ROWS[:STEPS * BATCH * size]
order(some)
report("own", *own_loop(items=False, consensus_at=8))
module = Module()
trainer = trainer_of(val_check_interval=8)
trainer.fit(module, loader(some), DataLoader(VALIDATION, batch_size=16, sampler=range(16)))
report("lightning", module.model, validate(module.model))
print(f"validated: rank {rank} loss {module.validated[8]:.6f} sum 0 bits 0")
""", tmp_path)
    same(found, "own", "lightning")  # validation has changed nothing
    losses = [float(loss) for loss, _, _ in found["validated"].values()]  # of a part of the rows each
    assert sum(losses) / 2 == pytest.approx(float(found["own consensus"][0][0]), abs=1e-5)


def test_validation_where_exchanges_overlap_steps(tmp_path):
    found = run(LIGHTNING + """
module = Module()
trainer = trainer_of(dict(EDIT, preset="streaming-diloco", overlap_steps=2), val_check_interval=3)
trainer.fit(module, loader(ROWS[:STEPS * BATCH * size]), DataLoader(VALIDATION, batch_size=16, sampler=range(16)))
assert sorted(module.validated) == list(range(3, STEPS + 1, 3)), module.validated
report("overlap", module.model, validate(module.model))
""", tmp_path)
    same(found, "overlap", "overlap")


def test_a_resumed_run_has_the_same_bits(tmp_path):
    found = run(LIGHTNING + """
# Epochs of 5 steps, so the saves at 5 and 10 are between the exchanges at 6, 10 and 14.
some = ROWS[:5 * BATCH * size]


def fit(label, name, path=None, options=EDIT, epochs=3, keep=-1):
    saves = ModelCheckpoint(dirpath=os.path.join(directory, name), filename="{step}", save_top_k=keep)
    module = Module()
    trainer = trainer_of(options, callbacks=[saves], max_epochs=epochs, max_steps=-1)
    trainer.fit(module, loader(some), ckpt_path=path)
    report(label, module.model, validate(module.model))
    return trainer


assert fit("whole", "a").strategy.info.syncs == 5  # at 6, 10 and 14, and at the saves at 5 and 15
assert fit("kept", "b", keep=1).strategy.info.syncs == 5
for name, steps in (("a", (5, 10, 15)), ("b", (15,))):
    names = sorted(os.listdir(f"{directory}/{name}"))
    assert names == sorted(f"step={step}.ckpt{end}" for step in steps for end in ("", *(f".entrain-{r}" for r in range(size)))), names
fit("resumed", "r", f"{directory}/a/step=10.ckpt")
states = [torch.load(f"{directory}/a/step=10.ckpt.entrain-{r}")["optimizer"]["state"][0]["exp_avg"] for r in range(2)]
assert not torch.equal(*states)

# save_last="link", and a job that ended while it replaced a checkpoint.
import shutil
if rank == 0:
    os.symlink("step=10.ckpt", f"{directory}/a/last.ckpt")
    shutil.copytree(f"{directory}/a", f"{directory}/mixed")
    shutil.copy(f"{directory}/a/step=5.ckpt.entrain-1", f"{directory}/mixed/step=10.ckpt.entrain-1")
torch.distributed.barrier()
fit("linked", "l", f"{directory}/a/last.ckpt")
strategy = EDiTStrategy(**EDIT)
strategy._lightning_module = Module()
strategy._lightning_module.trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
strategy._lightning_module.trainer.state.fn = TrainerFn.FITTING
strategy._own = lambda path: f"{path}.entrain-1"
try:
    strategy.load_checkpoint(f"{directory}/mixed/step=10.ckpt", weights_only=False)
    raise SystemExit("it was taken")
except entrain.InvalidArgument as error:
    assert "is of another save than the files beside it" in str(error), error

# In warm-up.
warm = dict(EDIT, local_sgd_warmup_steps=7)
fit("warm", "c", options=warm)
fit("first", "d", options=warm, epochs=1)
fit("warm resumed", "e", f"{directory}/d/step=5.ckpt", options=warm)

os.unlink(f"{directory}/d/step=5.ckpt.entrain-{rank}")
try:
    fit("none", "f", f"{directory}/d/step=5.ckpt")
    raise SystemExit("it resumed")
except entrain.InvalidArgument as error:
    assert "is missing: the checkpoint was made without EDiT" in str(error), error
""", tmp_path)
    same(found, "whole", "kept", "resumed", "linked")
    same(found, "warm", "warm resumed")


def test_a_replica_does_not_wait_for_another_one_between_exchanges(tmp_path):
    run(LIGHTNING + """
import time


class Free(Module):
    def training_step(self, batch, index):
        path, step = f"{directory}/ahead", self.trainer.global_step
        if rank == 1 and step == 8:
            open(path, "w").close()
        end = time.monotonic() + 60
        while rank == 0 and step == 2 and not os.path.exists(path):
            assert time.monotonic() < end, "rank 1 waits for rank 0"
            time.sleep(0.01)
        return loss_of(self.model, batch)


module = Free()
trainer_of(dict(local_sgd_sync_interval=100, local_sgd_warmup_steps=0), gradient_clip_val=None).fit(module, loader(ROWS[:STEPS * BATCH * size]))
report("free", module.model, validate(module.model))
""", tmp_path)


def test_adapters_a_short_last_step_and_the_best_model(tmp_path):
    found = run(LIGHTNING + """
some = ROWS[:STEPS * BATCH * size]
order(some)
build = adapted
report("own", *own_loop(items=False))
module = Module()
trainer_of().fit(module, loader(some))
report("adapters", module.model, validate(module.model))
build = build_whole

# 7 batches are steps of 3, 3 and 1.
module = Module()
trainer = trainer_of(accumulate_grad_batches=3, max_steps=-1, max_epochs=2)
trainer.fit(module, loader(ROWS[:7 * BATCH * size]))
assert trainer.global_step == trainer.strategy.info.steps == 6
report("short", module.model, validate(module.model))


class Judged(Module):
    def validation_step(self, batch, index):
        self.log("judged", loss_of(self.model, batch), sync_dist=True)


saves = ModelCheckpoint(dirpath=f"{directory}/best", save_top_k=1, monitor="judged")
trainer_of(callbacks=[saves], val_check_interval=5).fit(Judged(), loader(some), loader(VALIDATION))
module = Judged()
module.load_state_dict(torch.load(saves.best_model_path)["state_dict"])
loss = validate(module.model)
assert abs(loss - saves.best_model_score) < 1e-4, (loss, saves.best_model_score)
report("best", module.model, loss)

module = Module()
streams = DataLoader(Stream(), batch_size=BATCH)
trainer_of().fit(module, streams)
report("stream", module.model, validate(module.model))
refused("[-1, -1] batches in an epoch", lambda: trainer_of(max_steps=-1, max_epochs=1).fit(Module(), streams))
""", tmp_path)
    same(found, "own", "adapters")
    for label in ("short", "best", "stream"):
        same(found, label)


def test_what_cannot_be_right_is_refused(tmp_path):
    run(LIGHTNING + """
class Two(Module):
    automatic_optimization = False

    def configure_optimizers(self):
        return make(self.model), make(self.model)


for match, function in (("use_async", lambda: trainer_of(dict(use_async=True))),
                        ("returned 2 optimizers", lambda: trainer_of(gradient_clip_val=None).fit(Two(), loader(ROWS)))):
    try:
        function()
    except entrain.InvalidArgument as error:
        assert match in str(error), error
    else:
        raise SystemExit(f"{match}: it was accepted")
""", tmp_path, size=0)
