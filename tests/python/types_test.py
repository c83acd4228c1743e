"""Checks that the type hints are complete and correct."""
import subprocess
import sys

from conftest import ROOT


def test_mypy_strict():
    subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", ROOT / "build/python/mypy"], cwd=ROOT / "python", check=True)
