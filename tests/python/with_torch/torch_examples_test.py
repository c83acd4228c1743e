"""The examples that need PyTorch do what they say, with tiny settings."""
import re

import pytest
from conftest import ROOT, example

pytest.importorskip("torch")
TINY_GPT = ["--data", ROOT / "README.md", "--width", 32, "--layers", 2, "--length", 32, "--batch", 4]


def test_03_torch_ddp():
    text = example("03_torch_ddp.py", size=2, timeout=150)
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]
    norms = re.findall(r"rank \d of 2: norm of the parameters ([\d.]+)", text)
    assert len(losses) == 5 and losses[-1] < 0.3 * losses[0], text
    assert len(norms) == 2 and norms[0] == norms[1], text


def test_04_torch_edit_gpt():
    text = example("04_torch_edit_gpt.py", *TINY_GPT, "--steps", 20, "--interval", 4, "--warmup", 3, size=2, timeout=150)
    ends = re.findall(r"validation loss ([\d.]+) -> ([\d.]+), (\d) exchanges, anchors ([0-9a-f]{16})", text)
    assert len(ends) == 2 and ends[0] == ends[1], text
    before, after, exchanges, checksum = ends[0]
    assert float(after) < float(before) - 0.5 and int(exchanges) == 5 and int(checksum, 16), text


def test_05_torch_fsdp2_aedit():
    text = example("05_torch_fsdp2_aedit.py", "--seconds", 6, "--sync-time", 2.5, "--sleep", 0.6, "--width", 32,
                   size=4, timeout=150)
    found = re.findall(r"replica (\d)( \(slow\))?: (\d+) steps in ([\d.]+) s, of which ([\d.]+) s waiting in (\d+) "
                       r"exchanges; loss ([\d.]+) -> ([\d.]+), anchors ([0-9a-f]{16})", text)
    assert sorted(row[0] for row in found) == list("0011"), text
    steps = {slow: int(count) for _, slow, count, *_ in found}
    assert steps[""] > 1.5 * steps[" (slow)"], text  # in lock step both would make the same number
    assert len({row[5] for row in found}) == 1 and int(found[0][5]) >= 2, text
    assert sum(float(row[7]) for row in found) < 0.8 * sum(float(row[6]) for row in found), text
    checksums = sorted(row[8] for row in found)  # each shard has one
    assert checksums[0] == checksums[1] != checksums[2] == checksums[3], text


@pytest.mark.parametrize("method", ["acco", "zero1"])
def test_06_torch_acco(method):
    text = example("06_torch_acco.py", *TINY_GPT, "--method", method, "--steps", 30, size=2, timeout=150)
    found = re.findall(r"rank \d: (\d+) micro-batches in .*; loss ([\d.]+) -> ([\d.]+); all ranks: (\d+) steps on (\d+) bytes, "
                       r"norm of the parameters ([\d.]+)", text)
    assert len(found) == 2 and found[0][3:] == found[1][3:] and found[0][3] == "30", text
    microbatches = sum(int(row[0]) for row in found)
    assert 30 * 2 <= microbatches and int(found[0][4]) <= microbatches * 4 * 32, text
    for _, before, after, *_ in found:
        assert float(after) < float(before) - 1, text


def test_07_resume(tmp_path):
    def run(size, *arguments):
        text = example("07_resume.py", "--steps", 60, "--width", 32, *arguments, size=size, timeout=150)
        found = re.findall(r"(\d x \d): steps (\d+) to (\d+), validation loss ([\d.]+) -> ([\d.]+)", text)
        assert len(found) == size and len(set(found)) == 1, text
        return found[0]

    saved = run(4, "--shards", 2, "--save", tmp_path / "first")
    plain = run(3, "--load", tmp_path / "first", "--save", tmp_path / "second")
    again = run(2, "--shards", 2, "--load", tmp_path / "second")
    assert [row[:3] for row in (saved, plain, again)] == [("2 x 2", "0", "60"), ("3 x 1", "60", "120"), ("1 x 2", "120", "180")]
    # Each run continues from the previous one, up to the order of sums.
    for before, after in ((saved, plain), (plain, again)):
        assert abs(float(before[4]) - float(after[3])) < 1e-4, (before, after)
    assert float(again[4]) < float(saved[4]) < float(saved[3])
