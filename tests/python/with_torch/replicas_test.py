"""The program of docs/python.md that loses a replica and takes it back, as it stands on the page."""
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("torch")
from conftest import ROOT, RUN, script  # noqa: E402

# Its steps are slow while the replacement starts, and quick otherwise.
PACE = """import os, time
pause, folder, rank, steps = time.sleep, os.path.dirname(__file__), os.environ["RANK"], 0


def paced(seconds):
    global steps
    steps += 1
    if steps == 15 and os.environ["ENTRAIN_RESTARTS"] == "0":
        print(f"replica {rank} has made 15 steps in process {os.getpid()}", flush=True)
    pause(0.2 if os.path.exists(f"{folder}/lost") and not os.path.exists(f"{folder}/back") else 0.01)


time.sleep = paced
"""


def test_the_program_of_the_page_loses_a_replica_and_takes_it_back(tmp_path):
    page = (ROOT / "docs/python.md").read_text().split("<!-- replicas.py -->\n\n")[1].split("\n    $ ")[0]
    program = tmp_path / "replicas.py"
    program.write_text(PACE + re.sub(r"^    ", "", page, flags=re.M))
    job = subprocess.Popen([RUN, "--elastic", "-n", "3", "--", sys.executable, program, "600"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
    limit = threading.Timer(150, job.kill)
    limit.start()
    try:
        text = ""
        for line in job.stdout:
            text += line
            if found := re.search(r"replica 1 has made 15 steps in process (\d+)", line):
                (tmp_path / "lost").touch()
                os.kill(int(found[1]), signal.SIGKILL)
            if re.search(r"replica 1 begins at step [1-9]", line):
                (tmp_path / "back").touch()
        assert job.wait(20) == 0, text
    finally:
        limit.cancel()
        job.kill()
        job.wait()
    assert re.search(r"EDiT: .*lost rank 1 ", text) and (tmp_path / "back").exists(), text
    ends = re.findall(r"\[(\d)\] 3 replicas after step 600, loss ([\d.]+)", text)
    assert sorted(rank for rank, _ in ends) == ["0", "1", "2"] and all(float(loss) < 0.1 for _, loss in ends), text


def test_a_plain_launcher_which_counts_no_restarts_serves_too():
    code = "from entrain.integrations import elastic; place = elastic.alone(); print(place.replica, place.replicas, place.restarted)"
    text = script(code, size=2)
    assert all(f"{rank} 2 False" in text for rank in range(2)), text
