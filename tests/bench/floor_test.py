"""floor-bench's results, which it checks itself: every collective over shm and tcp, 2 to 4 ranks, sizes on both sides of
where it changes its way: floor_test.py PROGRAM."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv.pop())
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
               "send_recv")
# Powers of two and what lies between them: a line of 60 bytes, segments and pieces that are not whole, shares of uneven
# length.
SWEEPS = (("8", "2M", "2"), ("60", "1000004", "3"))


class Floor(unittest.TestCase):
    def lines(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "lines")
            done = subprocess.run([PROGRAM, *arguments, "--budget", "0", "--timeout", "20", "--json", file],
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
            return [json.loads(line) for line in file.read_text().splitlines()]

    def check(self, transport):
        for ranks in ("2", "3", "4"):
            for collective in COLLECTIVES:
                for least, most, factor in SWEEPS:
                    lines = self.lines(collective, "-n", ranks, "--transport", transport, "--min-bytes", least,
                                       "--max-bytes", most, "--factor", factor)
                    self.assertGreater(len(lines), 8)
                    for line in lines:
                        self.assertEqual((line["transport"], line["wrong"]), (transport, 0), line)
            barrier = self.lines("barrier", "-n", ranks, "--transport", transport)
            self.assertEqual([(line["transport"], line["wrong"]) for line in barrier], [(transport, 0)])

    def test_through_shared_memory(self):
        self.check("shm")

    def test_over_tcp(self):
        self.check("tcp")

    def test_a_transport_that_it_does_not_know_is_named(self):
        done = subprocess.run([PROGRAM, "barrier", "-n", "2", "--transport", "udp"], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--transport: udp not in {shm,tcp}", done.stderr)


if __name__ == "__main__":
    unittest.main()
