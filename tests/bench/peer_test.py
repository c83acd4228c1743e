"""Runs a program of bench/ that measures a peer, and checks its output: peer_test.py PROGRAM. Without a program it
exits with 77 (skipped)."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else None


def processes_with(text):
    """Returns the command lines of running processes that contain `text`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if text in command and int(path.parent.name) != os.getpid():
            found.append(command)
    return found


class Peer(unittest.TestCase):
    def call(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100)

    def test_every_algorithm_gives_a_line_and_the_right_result(self):
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "lines")
                done = self.call(collective, "-n", "2", "--min-bytes", "8", "--max-bytes", "64K", "--factor", "8192",
                                 "--budget", "0", "--json", file)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                lines = [json.loads(line) for line in file.read_text().splitlines()]
            names = {line["algorithm"] for line in lines}
            self.assertEqual(len(lines), 2 * len(names), lines)
            for line in lines:
                self.assertEqual((line["collective"], line["ranks"], line["wrong"]), (collective, 2, 0))
                self.assertIn(line["bytes"], (8, 64 << 10))
                self.assertIn(line["transport"], ("shm", "tcp"))
                self.assertGreater(line["median_us"], 0)

    def test_wrong_arguments_are_named(self):
        cases = [(["all_sum", "-n", "2"], 'COLLECTIVE: "all_sum"'),
                 (["all_reduce", "-n", "2", "--algorithm", "x"], '--algorithm: "x"'),
                 (["all_reduce", "-n", "2", "--min-bytes", "9", "--max-bytes", "8"], "--min-bytes: 9")]
        for arguments, says in cases:
            done = self.call(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

    def test_when_the_time_is_up_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            one = re.search("all_reduce: +([a-z_]+)", self.call("--help").stdout).group(1)
            done = self.call("all_reduce", "-n", "2", "--algorithm", one, "--min-bytes", "16M", "--max-bytes", "16M",
                             "--budget", "3600", "--timeout", "1", "--json", folder + "/lines")
            self.assertEqual(done.returncode, 124, done.stderr)
            self.assertIn(f"{one} did not end within 1 s", done.stderr)
            self.assertLess(time.monotonic() - start, 20)
            while left := processes_with(folder):  # a killed process may need a moment to end
                self.assertLess(time.monotonic() - start, 30, left)
                time.sleep(0.05)


if __name__ == "__main__":
    if PROGRAM is None:
        print("skipped: this build has no such program")
        sys.exit(77)
    unittest.main()
