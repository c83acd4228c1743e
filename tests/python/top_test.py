"""entrain-top in a terminal: ranks, rates, and who waits for whom."""
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from conftest import RUN, finish, start
from entrain.top import Top, _difference

LATE = """
import entrain, numpy, os, sys
comm = entrain.Comm.from_env()
comm.all_reduce(numpy.ones(100_000, numpy.float32))
print(comm.rank, os.getpid(), flush=True)
if comm.rank == 2:
    open(sys.argv[1]).read()  # until the test opens the pipe
comm.all_reduce(numpy.ones(100_000, numpy.float32))
"""


@contextlib.contextmanager
def late_job(folder):
    """Four ranks, three of which wait for rank 2. Yields their processes."""
    gate = folder / "gate"
    os.mkfifo(gate)
    job = start(LATE, gate, size=4)
    try:
        pids = {}
        while len(pids) < 4:
            line = job.stdout.readline()
            assert line, "the job has ended"
            found = re.search(r"(\d+) (\d+)$", line)
            if found:
                pids[int(found[1])] = int(found[2])
        top, end = Top(pids.values()), time.monotonic() + 30
        while not any("not started by rank 2 (" in line for line in top.look()):
            assert time.monotonic() < end, "\n".join(top.look())
            time.sleep(0.05)
        yield [pids[rank] for rank in range(4)]
    finally:
        with open(gate, "w"):  # rank 2 goes on
            pass
        finish(job)


class Terminal:
    """A program in a terminal of 30 lines and 120 columns."""

    def __init__(self, *command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LINES="30", COLUMNS="120")
            os.execv(command[0], list(command))
        self.before = termios.tcgetattr(self.fd)
        self.text = ""

    @property
    def shown(self):
        """The text without control sequences."""
        return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\([A-Z]|[=>])", " ", self.text)

    def until(self, pattern, timeout=30):
        """Reads until the text has the pattern."""
        end = time.monotonic() + timeout
        while not re.search(pattern, self.shown):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {pattern} in {self.text!r}"
            try:
                self.text += os.read(self.fd, 65536).decode()
            except OSError:  # it has ended
                pytest.fail(f"ended without {pattern}: {self.text!r}")

    def end(self, timeout=30):
        """Waits for the end. Returns the exit status."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            try:
                found = os.read(self.fd, 65536) if ready else b""
            except OSError:
                break
            self.text += found.decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_it_names_the_rank_for_which_others_wait_and_ends_at_q(tmp_path):
    with late_job(tmp_path) as pids:
        top = Terminal(sys.executable, "-m", "entrain.top", "--interval", "0.3", *map(str, pids))
        top.until(r"all_reduce #\d+ of world, [\d.]+ s: not started by rank 2 \(process \d+\)")
        for rank, pid in enumerate(pids):
            assert re.search(rf" {rank} +{pid} ", top.shown), (rank, pid, top.shown)
        assert len(re.findall(r"waits +[\d.]+ s +all_reduce #\d+ of world: rank 2\b", top.shown)) == 3, top.shown
        assert "computes" in top.shown and "4 processes, 3 wait" in top.shown
        os.write(top.fd, b"q")
        assert top.end() == 0
        # The first screen is back, and the terminal's modes are those of the beginning.
        assert "\x1b[?1049l" in top.text.rpartition("rank 2")[2]
        assert termios.tcgetattr(top.fd)[:4] == top.before[:4]


def test_ctrl_c_leaves_the_terminal_sane(tmp_path):
    with late_job(tmp_path) as pids:
        top = Terminal(sys.executable, "-m", "entrain.top", "--interval", "0.3", *map(str, pids))
        top.until("RANK")
        os.write(top.fd, b"\x03")
        assert top.end() == 0
        assert "\x1b[?1049l" in top.text and "Traceback" not in top.text
        assert termios.tcgetattr(top.fd)[:4] == top.before[:4]


def test_a_stopped_rank_is_named_without_a_terminal(tmp_path):
    with late_job(tmp_path) as pids:
        os.kill(pids[1], signal.SIGSTOP)
        try:
            found = subprocess.run([sys.executable, "-m", "entrain.top", "--once", "--interval", "0.1", *map(str, pids)],
                                   stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
        finally:
            os.kill(pids[1], signal.SIGCONT)
        assert re.search(rf" 1 +{pids[1]} .*no answer +it is stopped", found), found
        assert f"not started by rank 2 (process {pids[2]}); no answer of rank 1\n" in found, found


def test_without_a_terminal_it_says_what_to_do():
    found = subprocess.run([sys.executable, "-m", "entrain.top"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert found.returncode == 2 and "take --once" in found.stderr


def test_rates_count_calls_that_the_recorder_has_lost():
    def dump(executor, inline, sizes):
        calls = [{"path": path, "bytes": size} for path, size in sizes] + [{"torn": True}]
        return {"communicators": [{"id": "a", "calls_submitted": executor, "calls_inline": inline, "calls": calls}]}

    before = dump(10, 5, [])
    assert _difference(before, dump(12, 5, [("executor", 9), ("executor", 4), ("executor", 6)])) == (2, 10)
    assert _difference(before, dump(20, 6, [("executor", 4), ("executor", 6), ("inline", 1)])) == (11, 51)
    assert _difference({"communicators": []}, dump(1, 0, [("executor", 7)])) == (1, 7)
    assert _difference(before, before) == (0, 0)


def test_ranks_of_other_hosts_are_not_called_silent():
    """Of four ranks on two hosts, those of this host are seen."""
    members = [{"process": f"p{rank}", "world_rank": rank, "host": "ab"[rank // 2]} for rank in range(4)]

    def dump(rank, started):
        call = {"number": 8, "tag": None, "operation": "all_reduce", "peer": None, "bytes": 4, "path": "executor", "state": "receiving",
                "started_s_ago": 1.4, "state_s": 1.4, "receives_from": [3], "sends_to": []}
        return {"communicators": [{"id": "x", "name": "world", "generation": 0, "rank": rank, "size": 4, "members": members, "ended": None,
                                   "started": [{"tag": None, "collectives": started}], "calls_submitted": started, "calls_inline": 0,
                                   "calls": [call] if started == 8 else []}]}

    def lines(*dumps):
        return Top([1, 2])._blocked(dict(enumerate(dumps)))

    assert lines(dump(0, 8), dump(1, 8)) == ["  all_reduce #8 of world, 1.4 s: not known, on other hosts: rank 2, rank 3"]
    late, = lines(dump(0, 8), dump(1, 7))
    assert "not started by rank 1 (process 1); not known, on other hosts: rank 2, rank 3" in late
    silent, = lines(dump(0, 8))
    assert "no answer of rank 1; not known, on other hosts" in silent


ELASTIC = """
import entrain, numpy, os, sys, time
restarted = os.environ["ENTRAIN_RESTARTS"] != "0"
if restarted:
    print(f"again {os.environ['RANK']} {os.getpid()}.", flush=True)
comm = entrain.Comm.from_env()
world = comm  # kept after the loss
print(f"pid {os.environ['RANK']} {os.getpid()}.", flush=True)
while True:
    try:
        grow, stop = comm.all_reduce(numpy.array([os.path.exists(path) for path in sys.argv[1:]], numpy.int32), op="max")
        if stop:
            break
        if grow and comm.size == 2:
            comm = comm.grow(min_newcomers=1, wait=30) or comm
    except entrain.PeerLost:
        comm = comm.shrink()
    time.sleep(0.02)  # computes
"""


def test_a_survived_loss_is_a_note_and_the_replacement_is_seen_before_and_after_it_joins(tmp_path):
    grow, stop = tmp_path / "grow", tmp_path / "stop"
    job = subprocess.Popen([RUN, "--elastic", "-n", "3", "--", sys.executable, "-c", ELASTIC, grow, stop], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    try:
        pids = {}

        def heard(pattern):
            while True:
                line = job.stdout.readline()
                assert line, "the job has ended"
                if found := re.search(pattern, line):
                    return int(found[1]), int(found[2])

        while len(pids) < 3:
            rank, pid = heard(r"pid (\d) (\d+)\.")
            pids[rank] = pid
        top = Top()  # looks at all processes of this user, so others may be in the picture, too

        def until(*patterns):
            end = time.monotonic() + 30
            while True:
                # The tables of this job: one, whose first line is the program and its start.
                mine = [table for table in "\n".join(top.look()).split("\n\n") if re.search(rf" {pids[0]} ", table)]
                if len(mine) == 1 and all(re.search(pattern, mine[0], re.M) for pattern in patterns):
                    return mine[0]
                assert time.monotonic() < end, (patterns, mine)
                time.sleep(0.05)

        table = until(*(rf" {rank} +{pid} " for rank, pid in pids.items()))
        assert re.match(r"python\S* -c import entrain, numpy, os.*…, since [\d: -]+\n", table), table
        os.kill(pids[1], signal.SIGKILL)
        rank, again = heard(r"again (\d) (\d+)\.")
        assert rank == 1
        survivor = r"(computes|waits).*"
        after = until(rf"^ +1 +{again} .* joins +[\d.]+ s +was started again", *(rf"^ +{rank} +{pids[rank]} .* {survivor}" for rank in (0, 2)))
        assert " ended " not in after, after
        until(rf"^ +0 +{pids[0]} .* computes +after .*lost rank 1 ")
        grow.touch()
        assert heard(r"pid (\d) (\d+)\.") == (1, again)
        until(rf"^ +1 +{again} .* (computes|waits) ")
        # In the communicator that has grown it is rank 2; all lines call it 1, as the column does.
        os.kill(again, signal.SIGSTOP)
        try:
            until(*(rf"^ +{rank} +{pids[rank]} .* waits .* all_reduce #\d+ of [^:]*: rank 1$" for rank in (0, 2)), r": no answer of rank 1$")
        finally:
            os.kill(again, signal.SIGCONT)
        stop.touch()
        finish(job)
    finally:
        job.kill()


def test_a_process_whose_communicators_have_all_ended_has_ended():
    def comm(ended, size=2, generation=0):
        return {"id": f"{ended} {size} {generation}", "name": "world", "rank": 0, "size": size, "generation": generation, "calls": [],
                "ended": {"message": "world: lost rank 1"} if ended else None}

    def shown(*comms):
        line = Top()._line(os.getpid(), {"communicators": list(comms)}, 0.0)
        return line.state, line.text

    lost = comm(True)
    assert shown(lost) == ("ended", "world: lost rank 1")
    assert shown(lost, comm(False, size=1)) == ("ended", "world: lost rank 1")  # a rank's communicator with itself
    assert shown(lost, comm(False, size=1, generation=1)) == ("computes", "after world: lost rank 1")  # the last survivor
    assert shown(lost, comm(False, size=2, generation=1)) == ("computes", "after world: lost rank 1")
    assert shown(comm(False)) == ("computes", "")
