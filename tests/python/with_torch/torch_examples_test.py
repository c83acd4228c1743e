"""The examples that need PyTorch do what they say, with tiny settings."""
import re
import subprocess
import sys

import pytest
from conftest import ROOT, RUN, finish

pytest.importorskip("torch")


def example(name, size, *arguments, timeout=150):
    command = [RUN, "-n", size, "--", sys.executable, ROOT / "examples/python" / name, *arguments]
    return finish(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), timeout)


def test_04_torch_edit_gpt():
    text = example("04_torch_edit_gpt.py", 2, "--data", ROOT / "README.md", "--steps", 20, "--interval", 4, "--warmup", 3,
                   "--width", 32, "--layers", 2, "--length", 32, "--batch", 4)
    ends = re.findall(r"validation loss ([\d.]+) -> ([\d.]+), (\d) exchanges, anchors ([0-9a-f]{16})", text)
    assert len(ends) == 2 and ends[0] == ends[1], text
    before, after, exchanges, checksum = ends[0]
    assert float(after) < float(before) - 0.5 and int(exchanges) == 5 and int(checksum, 16), text
