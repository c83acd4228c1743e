"""Checks that the trainer in C++ and EDiT around a PyTorch module train the same model to the same losses (a small
bench/torch_gpt_loss.py)."""
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT, RUN

pytest.importorskip("torch")
BUILD = pathlib.Path(RUN).resolve().parent.parent
TRAINER = BUILD / "examples/trainer/entrain-train"


@pytest.mark.skipif(not TRAINER.exists(), reason=f"there is no {TRAINER}")
def test_losses_are_those_of_the_trainer(tmp_path):
    spec = importlib.util.spec_from_file_location("torch_gpt_loss", ROOT / "bench/torch_gpt_loss.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    args = bench.parse(["--build", str(BUILD), "--data", str(ROOT / "README.md"), "--ranks", "2", "--steps", "40", "--interval", "4",
                        "--warmup", "5", "--width", "32", "--layers", "2", "--length", "32", "--batch", "4", "--val-batches", "8"])
    trainer, torchs = bench.compare(args, tmp_path, 100)
    assert trainer["syncs"] == torchs["syncs"] == 9
    assert len(torchs["losses"]) == 2
    for replica, losses in enumerate(torchs["losses"]):
        assert losses == pytest.approx(trainer["losses"][replica], rel=1e-5)
        assert losses[-1] < losses[0] - 1
    assert torchs["val_loss"] == pytest.approx(trainer["val_loss"], rel=1e-5)


def run(*words):
    subprocess.run([str(word) for word in (RUN, "-n", "2", "--", *words)], check=True, timeout=100)


def torch_run(tmp_path, *flags):
    """Runs examples/torch_gpt.py on two ranks. Returns its summary, and each replica's training losses."""
    summary, log = tmp_path / "torch.json", tmp_path / "torch.jsonl"
    run(sys.executable, ROOT / "examples/torch_gpt.py", *SMALL, *flags, "--summary", summary, "--log", log)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return json.loads(summary.read_text()), {
        replica: [one["loss"] for one in records if one["replica"] == replica] for replica in range(2)}


SMALL = ("--data", ROOT / "README.md", "--steps", "40", "--hidden-size", "32", "--layers", "2", "--heads", "4", "--seq-length", "32",
         "--batch-size", "4", "--val-batches", "8")
LOCAL = ("--local-sgd-warmup-steps", "5", "--local-sgd-sync-interval", "4")


@pytest.mark.skipif(not TRAINER.exists(), reason=f"there is no {TRAINER}")
@pytest.mark.parametrize("flags", [("--method", "ddp"), ("--method", "diloco", *LOCAL, "--lr-warmup-steps", "8")], ids=lambda flags: flags[1])
def test_runs_with_adamw_are_those_of_the_trainer(tmp_path, flags):
    found, _ = torch_run(tmp_path, *flags, "--optimizer", "adamw")
    run(TRAINER, *SMALL, *flags, "--summary", tmp_path / "trainer.json")
    trainer = json.loads((tmp_path / "trainer.json").read_text())
    for name in ("params", "steps", "tokens", "replica_steps"):
        assert found[name] == trainer[name]
    assert found["val_loss"] == pytest.approx(trainer["val_loss"], rel=1e-4)
    assert found["final_train_loss"] == pytest.approx(trainer["final_train_loss"], rel=1e-4)


def test_muon_steps_the_matrices_of_the_blocks(tmp_path):
    by_muon, losses = torch_run(tmp_path, "--method", "diloco", *LOCAL, "--optimizer", "muon")
    by_adamw, _ = torch_run(tmp_path, "--method", "diloco", *LOCAL, "--optimizer", "adamw")
    assert by_muon["syncs"] == 9
    assert by_muon["val_loss"] != pytest.approx(by_adamw["val_loss"], rel=1e-3)
    for replica in range(2):
        assert len(losses[replica]) == 40
        assert losses[replica][-1] < losses[replica][0] - 1
