"""Runs the programs of python/README.md, and that of docs/learn, unchanged. Each runs the method that it is called by."""
import re

import pytest
from conftest import ROOT, methods_in, script, watched

pytest.importorskip("torch")
SECTION = (ROOT / "python/README.md").read_text().split("## A first hour")[1].split("\n## ")[0]
PROGRAMS = {re.search(r"entrain\.torch\.(\w+)\(", block).group(1): re.sub(r"^    ", "", block, flags=re.M)
            for block in re.findall(r"(?:^    .*\n)+", SECTION, re.M) if block.startswith("    import torch")}


def test_there_is_a_program_for_each_method():
    assert list(PROGRAMS) == ["EDiT", "AEDiT", "ACCO"]


@pytest.mark.parametrize("method", PROGRAMS)
def test_it_trains_and_all_ranks_end_alike(method, tmp_path):
    text = script(PROGRAMS[method], size=2, timeout=150, env={**watched(tmp_path / "methods"), "OMP_NUM_THREADS": "1"})
    assert methods_in(tmp_path / "methods") == {{"EDiT": "edit", "AEDiT": "a-edit", "ACCO": "acco"}[method]}
    found = re.findall(r"loss ([\d.]+), (exchanges|steps) (\d+), norm ([\d.]+)", text)
    assert len(found) == 2 and found[0][1:] == found[1][1:] and int(found[0][2]) > 0, text
    assert sum(float(loss) for loss, *_ in found) < 1, text  # each is that of one batch; the variance of the target is 1


def test_no_replica_of_decoupled_diloco_waits_for_the_slow_one(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/learn/decoupled-diloco.md").read_text(), re.S).group(1)
    text = script(code, size=4, timeout=150, env={**watched(tmp_path / "methods"), "OMP_NUM_THREADS": "1"})
    assert methods_in(tmp_path / "methods") == {"decoupled-diloco"}
    found = re.findall(r"replica (\d): ([\d.]+) s, (\d+) rounds without it, loss [\d.]+, norm ([\d.]+)", text)
    assert len(found) == 4 and len({norm for *_, norm in found}) == 1, text
    seconds = {int(replica): float(spent) for replica, spent, *_ in found}
    assert all(spent < seconds[0] for replica, spent in seconds.items() if replica != 0), text
