"""Checks that the type hints are complete and correct."""
import subprocess
import sys

from conftest import ROOT


def test_mypy_strict():
    subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", ROOT / "build/python/mypy"], cwd=ROOT, check=True)


def test_an_editor_sees_every_option(tmp_path):
    """Names, types and words of options are checked where they are written."""
    program = tmp_path / "program.py"
    program.write_text("""
import entrain
def of(mesh: entrain.Mesh, shard: entrain.Shard, comm: entrain.Comm) -> None:
    entrain.EDiT(mesh, shard, local_sgd_sync_interval=16, outer_optimizer="sgd", interval_schedule=lambda exchanges, steps: 2)
    entrain.EDiT(mesh, shard, local_sgd_sync_intervall=16)
    entrain.EDiT(mesh, shard, outer_optimizer="sdg")
    entrain.EDiT(mesh, shard, fragments="2")
    entrain.ACCO(comm, [0.0], None, method="dpu", limit=3)
    entrain.ACCO(comm, [0.0], None, method="pdu")
""")
    found = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", ROOT / "build/python/mypy", program], cwd=ROOT,
                           stdout=subprocess.PIPE, text=True)
    lines = [int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line]
    assert lines == [5, 6, 7, 9], found.stdout
