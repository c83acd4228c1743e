"""The examples that need JAX do what they say."""
import re

import pytest
from conftest import example

pytest.importorskip("jax")


def norms(text):
    """Returns the last line of both ranks, which shows that their parameters are equal."""
    found = re.findall(r"rank \d: .*norm of the parameters ([\d.]+)", text)
    assert len(found) == 2 and found[0] == found[1], text


def test_08_jax_edit():
    text = example("08_jax_edit.py", size=2, timeout=150)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), \d+ exchanges", text)]
    assert len(losses) == 5 and losses[-1] < 0.05 and "38 exchanges" in text, text
    norms(text)


def test_09_jax_acco():
    text = example("09_jax_acco.py", size=2, timeout=150)
    for before, after in re.findall(r"loss ([\d.]+) -> ([\d.]+)", text):
        assert float(after) < 0.3 * float(before), text
    assert text.count(": 300 steps on ") == 2, text
    norms(text)
