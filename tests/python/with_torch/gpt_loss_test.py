"""Checks that the trainer in C++ and EDiT around a PyTorch module train the same model to the same losses (a small
bench/torch_gpt_loss.py)."""
import importlib.util
import pathlib

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
