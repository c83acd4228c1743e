"""The numbered examples and the demo do what they say."""
import re
import subprocess
import sys
from xml.etree import ElementTree

from conftest import example, finish, methods_in, watched


def test_01_all_reduce():
    assert example("01_all_reduce.py", size=3).count("[6. 6. 6. 6.]") == 3
    assert "rank 0 of 1: [1. 1. 1. 1.]" in example("01_all_reduce.py")


def test_02_numpy_edit():
    text = example("02_numpy_edit.py", size=2)
    results = re.findall(r"all replicas have (\[.*?\])", text, re.S)
    results = [re.sub(r"\n\[\d\]", "", result) for result in results]
    assert len(results) == 2 and results[0] == results[1], text
    params = [float(number) for number in results[0].strip("[]").split()]
    assert abs(params[0] + 1) < 0.02 and abs(params[8] - 0.5) < 0.02, text


def test_demo(tmp_path):
    command = [sys.executable, "-m", "entrain.demo", "--ranks", "2", "--steps", "200", "--picture", str(tmp_path / "demo.svg")]
    text = finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=watched(tmp_path / "methods")), 120)
    assert methods_in(tmp_path / "methods") == {"edit", "diloco", "acco", "post-local-sgd/published"}  # ddp is a warm-up without end
    methods = ("ddp", "diloco", "edit", "acco")
    losses = {method: [float(loss) for loss in re.findall(rf"{method}  *step .*loss ([\d.]+)", text)] for method in methods}
    assert all(len(found) == 5 and found[-1] < found[0] for found in losses.values()), text
    assert float(re.search(r"edit sends ([\d.]+) times less", text).group(1)) > 4, text
    picture = ElementTree.parse(tmp_path / "demo.svg").getroot()
    curves = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(curve.get("points").split()) for curve in curves] == [200 - 200 // 40 + 1] * len(methods)
    assert all(0 <= float(number) <= 340 for curve in curves for number in re.findall(r",([\d.-]+)", curve.get("points")))
