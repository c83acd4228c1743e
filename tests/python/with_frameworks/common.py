"""Programs of the tests with frameworks: a tiny Llama that learns the bytes of a file of this repository."""
import os
import re

from conftest import ROOT, script

# Every framework feeds rank r the batches r, r + N, r + 2 N, ... of the rows in their order, so its bits can be compared to those
# of `own_loop`.
TINY = """
import os, sys, warnings
import numpy, torch
import entrain.torch
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
directory = sys.argv[1]
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LENGTH, BATCH, STEPS, WARMUP = 32, 4, 15, 2
EDIT = dict(local_sgd_sync_interval=4, local_sgd_warmup_steps=WARMUP)
TEXT = torch.frombuffer(bytearray(open({file!r}, "rb").read()), dtype=torch.uint8).long()
ROWS = TEXT[:len(TEXT) // LENGTH * LENGTH].view(-1, LENGTH)
VALIDATION = ROWS[-16:]
assert len(ROWS) > STEPS * BATCH * size + 16


def build():
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=LENGTH))


def make(model):
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=3e-3, weight_decay=0.1)


class LoRA(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.a = torch.nn.Parameter(torch.randn(4, inner.in_features) * 0.02)
        self.b = torch.nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x):
        return self.inner(x) + x @ self.a.T @ self.b.T


def adapted():
    "The model, frozen, with adapters."
    model = build_whole().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj, layer.self_attn.v_proj = LoRA(layer.self_attn.q_proj), LoRA(layer.self_attn.v_proj)
    return model


build_whole = build


class Stream(torch.utils.data.IterableDataset):
    "Data without a length, of another one on each rank."
    def __init__(self, wrap=lambda row: row):
        self.wrap = wrap

    def __iter__(self):
        return map(self.wrap, ROWS[:(9 + 8 * rank) * BATCH])


def refused(match, function):
    try:
        function()
    except entrain.InvalidArgument as error:
        assert match in str(error), error
    else:
        raise SystemExit(f"{{match}}: it was accepted")


def rows_of(batch):
    return ROWS[batch * BATCH:(batch + 1) * BATCH]


def loss_of(model, x, count=None):
    return model(input_ids=x, labels=x, **({{}} if count is None else {{"num_items_in_batch": torch.tensor(count)}})).loss


def checksum(model):
    return sum(float(p.detach().double().abs().sum()) for p in model.parameters()), hash(b"".join(
        p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in model.parameters()))


def report(what, model, loss):
    total, bits = checksum(model)
    print(f"{{what}}: rank {{rank}} loss {{loss:.6f}} sum {{total:.9f}} bits {{bits:x}}".replace("-", "m"), flush=True)


@torch.no_grad()
def validate(model):
    model.eval()
    loss = loss_of(model, VALIDATION).item()
    model.train()
    return loss


def own_loop(micro=1, items=True, clip=1.0, schedule=True, steps=STEPS, bf16=False, consensus_at=None):
    "The loop without a framework. items: the loss is a sum over a number of tokens, as in Trainer. consensus_at: prints the loss there."
    model = build().train()
    optimizer = make(model)
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=steps)
    batch = rank
    with entrain.torch.EDiT(model, optimizer, **EDIT) as edit:
        for step in range(steps):
            for number in range(micro):
                x = rows_of(batch)
                batch += size
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = loss_of(model, x, micro * BATCH * (LENGTH - 1)) if items else loss_of(model, x) / micro
                loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule:
                scheduler.step()
            optimizer.zero_grad()
            if step + 1 == consensus_at:
                with edit.consensus():
                    report("own consensus", model, validate(model))
        edit.synchronize()
        assert edit.info.steps == steps
    return model, validate(model)
""".format(file=str(ROOT / "docs/python.md"))

LINE = re.compile(r"([\w ]+): rank (\d+) loss ([\d.]+) sum ([\d.]+) bits (\w+)")


def run(code, *arguments, size=2, timeout=150, program=TINY):
    """Runs the program on `size` ranks. Returns for each label of `report` the reports of all ranks, as tuples of loss, sum and bits."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    text = script(program + code, *arguments, size=size, timeout=timeout, env=environment)
    print(text)
    found = {}
    for label, rank, *values in LINE.findall(text):
        found.setdefault(label.strip(), {})[int(rank)] = tuple(values)
    for label, reports in found.items():
        assert sorted(reports) == list(range(size)), f"{label} on the ranks {sorted(reports)}:\n{text}"
    return found


def same(found, *labels):
    """Checks that the runs ended with equal bits on all ranks."""
    assert len({report for label in labels for report in found[label].values()}) == 1, found
