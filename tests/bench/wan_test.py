"""Runs bench/wan.py on two tiny cells and checks that its lines are complete: wan_test.py BUILD. Checks no times. Exits with 77
(skipped) if no cluster can be made here, or if its programs are not built."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else None
SCRIPT = pathlib.Path(__file__).parents[2] / "bench" / "wan.py"
CALLS = ("first", "later", "silent")


class Wan(unittest.TestCase):
    def call(self, *arguments):
        return subprocess.run([SCRIPT, "--build", BUILD, *arguments], capture_output=True, text=True, timeout=100)

    def test_lines_are_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = pathlib.Path(folder, "wan")
            done = self.call("--rate", "1gbit", "--delay", "2", "--loss", "0.5", "--nodes", "2,3", "--sites", "2", "--bytes", "64K",
                             "--params", "16384", "--layers", "2", "--calls", "2", "--silence", "0.1", "--connections", "1,4", "--out", prefix)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = [json.loads(line) for line in prefix.with_suffix(".jsonl").read_text().splitlines()]
            self.assertEqual(prefix.with_suffix(".md").read_text(), done.stdout)
            self.assertEqual(self.call("--read", prefix.with_suffix(".jsonl")).stdout, done.stdout)
        wanted = {(nodes, "way-bench", subject, None, call)
                  for nodes in (2, 3) for subject in ("all_reduce", "edit", "acco", "zero1") for call in CALLS}
        wanted |= {(nodes, "plain-sockets", "exchange", count, call) for nodes in (2, 3) for count in (1, 4) for call in CALLS}
        if (BUILD / "bench" / "gloo-way").exists():
            wanted |= {(nodes, "gloo-way", "all_reduce", None, call) for nodes in (2, 3) for call in CALLS}
        found = [(line["nodes"], line["program"], line["subject"], line.get("connections"), line["call"]) for line in lines]
        self.assertEqual(sorted(found, key=str), sorted(wanted, key=str))
        for line in lines:
            self.assertEqual((line["rate"], line["delay_ms"], line["loss"], sum(line["sites"]), line["bytes"]),
                             ("1gbit", 2, 0.5, line["nodes"], 65536))
            self.assertTrue(0 < line["least"] <= line["seconds"] <= line["most"], line)
            self.assertGreater(min(line["bound"], line["sent_bytes"], line["round_trip_found"]), 0)
            self.assertIn("round_trips", line)
        # The table has a head, a rule, and a row for each subject of each cell.
        self.assertEqual(sum(line.startswith("|") for line in done.stdout.splitlines()), 2 + 8, done.stdout)

    def test_a_program_that_fails_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = pathlib.Path(folder, "wan")
            done = self.call("--rate", "1gbit", "--delay", "0", "--loss", "0", "--nodes", "2", "--sites", "2", "--bytes", "64K",
                             "--subjects", "all_reduce", "--connections", "x", "--gloo", "none", "--silence", "0", "--out", prefix)
            lines = [json.loads(line) for line in prefix.with_suffix(".jsonl").read_text().splitlines()]
        self.assertEqual(done.returncode, 1)
        self.assertIn("wan.py: failed with 2: plain-sockets", done.stderr)
        self.assertEqual([line.get("call", line.get("failed")) for line in lines], ["first", "later", 2])

    def test_wrong_arguments_are_named(self):
        done = self.call("--subjects", "all_reduce,sync")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn('--subjects: "sync"', done.stderr)
        self.assertIn("no cell is left", self.call("--sites", "1", "--delay", "20").stderr)

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from cluster_test import obstacle

    why = obstacle()
    if not why and not (BUILD and (BUILD / "bench" / "way-bench").exists()):
        why = "way-bench is not built"
    if why:
        print("skipped:", why)
        sys.exit(77)
    unittest.main()
