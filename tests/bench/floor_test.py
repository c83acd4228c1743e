"""Runs floor-bench, which checks its own results: all its collectives, 2 to 4 ranks, sizes that it copies and sizes
that it reads. Usage: floor_test.py PROGRAM."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv.pop())
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "send_recv")
# Powers of two and sizes between them, which give incomplete pieces and shares of uneven length.
SWEEPS = (("8", "2M", "2"), ("60", "1000004", "3"))


class Floor(unittest.TestCase):
    def lines(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "lines")
            done = subprocess.run([PROGRAM, *arguments, "--budget", "0", "--timeout", "20", "--json", file],
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
            return [json.loads(line) for line in file.read_text().splitlines()]

    def test_every_element_is_right(self):
        for ranks in ("2", "3", "4"):
            for collective in COLLECTIVES:
                for least, most, factor in SWEEPS:
                    lines = self.lines(collective, "-n", ranks, "--min-bytes", least, "--max-bytes", most, "--factor", factor)
                    self.assertGreater(len(lines), 8)
                    for line in lines:
                        self.assertEqual((line["transport"], line["wrong"]), ("shm", 0), line)

    def test_what_it_does_not_have_is_named(self):
        done = subprocess.run([PROGRAM, "broadcast", "-n", "2"], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2)
        self.assertIn("broadcast", done.stderr)


if __name__ == "__main__":
    unittest.main()
