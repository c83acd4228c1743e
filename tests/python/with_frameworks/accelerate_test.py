"""EDiT inside programs that use accelerate.Accelerator."""
import pytest
from common import run, same

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

LOOP = """
from accelerate import Accelerator, DataLoaderConfiguration
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from entrain.integrations.accelerate import prepare


def loop(label, micro=1, save=None, load=None, consensus_at=None, precision="no"):
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro, mixed_precision=precision, step_scheduler_with_optimizer=False)
    model = build()
    optimizer = make(model)
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
    edit, model, optimizer, loader, scheduler = prepare(
        accelerator, model, optimizer, DataLoader(ROWS[:micro * STEPS * BATCH * size], batch_size=BATCH), scheduler, **EDIT)
    assert not isinstance(model, DistributedDataParallel)
    if load:
        accelerator.load_state(load)
        loader = accelerator.skip_first_batches(loader, edit.info.steps * micro)
    for batch in loader:
        if save and edit.begin_step() and edit.info.steps == 6:
            accelerator.save_state(save)
            accelerator.wait_for_everyone()
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if accelerator.sync_gradients:
                scheduler.step()
            optimizer.zero_grad()
        if edit.info.steps == consensus_at:
            with edit.consensus():
                report("consensus", model, validate(model))
    edit.synchronize()
    assert edit.info.steps == STEPS, edit.info
    edit.close()
    report(label, model, validate(accelerator.unwrap_model(model, keep_fp32_wrapper=False)))
    return accelerator
"""


def test_it_has_the_bits_of_the_own_loop(tmp_path):
    found = run(LOOP + """
report("own", *own_loop(items=False, consensus_at=8))
report("own accumulated", *own_loop(items=False, micro=2, bf16=True))
loop("accelerate", consensus_at=8)
loop("accumulated", micro=2, precision="bf16")
""", tmp_path)
    same(found, "own", "accelerate")
    same(found, "own consensus", "consensus")
    same(found, "own accumulated", "accumulated")


def test_a_resumed_run_has_the_same_bits(tmp_path):
    found = run(LOOP + """
report("own", *own_loop(items=False))
path = f"{directory}/state"
loop("whole", save=path)
assert {f"entrain-{r}.pt" for r in range(size)} < set(os.listdir(path)), os.listdir(path)
loop("resumed", load=path)
from safetensors.torch import load_file
assert set(load_file(f"{path}/model.safetensors")) == set(build().state_dict()), "parameters are missing"
states = [torch.load(f"{path}/entrain-{r}.pt")["optimizer"]["state"][0]["exp_avg"] for r in range(2)]
assert not torch.equal(*states)
torch.distributed.barrier()
os.unlink(f"{path}/entrain-{rank}.pt")
try:
    loop("none", load=path)
    raise SystemExit("it resumed")
except entrain.InvalidArgument as error:
    assert "is missing: the checkpoint was made without EDiT" in str(error), error
""", tmp_path)
    same(found, "own", "whole", "resumed")


def test_adapters_and_a_short_last_step(tmp_path):
    found = run(LOOP + """
build = adapted
report("own", *own_loop(items=False))
loop("adapters")
STEPS = 6
from accelerate.state import AcceleratorState


def short(rows, epochs):
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = build_whole()
    optimizer = make(model)
    edit, model, optimizer, loader = prepare(accelerator, model, optimizer, DataLoader(rows, batch_size=BATCH), **EDIT)
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
    edit.synchronize()
    assert edit.info.steps == STEPS, edit.info  # 7 batches are steps of 3, 3 and 1
    report("short", model, validate(accelerator.unwrap_model(model)))
    edit.close()


short(ROWS[:7 * 2 * BATCH], 2)


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(ROWS[:7 * 2 * BATCH])


short(Rows(), 2)  # rank 0 reads, and sends
""", tmp_path)
    same(found, "own", "adapters")
    same(found, "short")


def test_what_cannot_be_right_is_refused(tmp_path):
    run(LOOP + """
from accelerate.utils import DistributedType

accelerator = Accelerator(cpu=True)
model = build()
for match, options in (("use_async", dict(use_async=True)), ("use_async", dict(config=entrain.EditConfig(use_async=True)))):
    try:
        prepare(accelerator, model, make(model), **options)
    except entrain.InvalidArgument as error:
        assert match in str(error), error
    else:
        raise SystemExit(f"{match}: it was accepted")
import types
from entrain.integrations.accelerate import _State
other = Accelerator(cpu=True)
_State(other, types.SimpleNamespace(comm=types.SimpleNamespace(size=2)))  # as with entrain.integrations.elastic
refused("the accelerator knows 1 of 2 processes", lambda: other.save_state(directory))
accelerator.state.distributed_type = DistributedType.FSDP
try:
    prepare(accelerator, model, make(model))
except entrain.InvalidArgument as error:
    assert "FSDP" in str(error), error
else:
    raise SystemExit("FSDP was accepted")
""", tmp_path, size=0)
