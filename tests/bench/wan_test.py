"""Runs bench/wan.py on two tiny cells and checks that its lines are complete: wan_test.py BUILD. Checks no times. Traces a tiny call by
bench/way_trace.py, and draws the picture of docs/lab again from its files. Exits with 77 (skipped) if no cluster can be made here, or if its
programs are not built; then only files are read and drawn."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else None
ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "wan.py"
TRACE = ROOT / "bench" / "way_trace.py"
PICTURE = ROOT / "docs" / "lab" / "wan-trace.svg"
TRACES = [[PICTURE.with_suffix("") / f"{name}.csv" for name in names]
          for names in (("all_reduce-before", "all_reduce-after", "plain-sockets"), ("edit-before", "edit-after"))]
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

    def test_a_call_is_traced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.csv")
            done = trace("--build", BUILD, "--delay", "10", "--calls", "1", "--out", path, "way-bench", "all_reduce", "1000000")
            self.assertEqual(done.returncode, 0, done.stderr)
            facts, *rows = path.read_text().splitlines()
            self.assertEqual(trace("--read", path).stdout, done.stdout)
        facts = json.loads(facts.removeprefix("# "))
        self.assertEqual((facts["command"], facts["sent_bytes"]), ("way-bench all_reduce 1000000", 1000000))
        self.assertEqual(rows[0], "ms,bytes")
        # Bytes between two samples count as if they had left evenly, so a few may count before the call.
        self.assertGreater(sum(int(row.split(",")[1]) for row in rows[1:]), 800000)


def trace(*arguments):
    return subprocess.run([TRACE, *arguments], capture_output=True, text=True, timeout=100)


class Traces(unittest.TestCase):
    def test_idle_time_ends_with_the_last_bytes(self):
        facts = {"label": "some", "rate": "1gbit", "step_ms": 5, "seconds": 0.03, "bound": 0.01, "sent_bytes": 1200000}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.csv")
            path.write_text(f"# {json.dumps(facts)}\nms,bytes\n0,0\n5,600000\n10,0\n15,50000\n20,550000\n25,0\n")
            done = trace("--read", path)
        self.assertEqual(done.stdout.splitlines()[-1], "| some | 0.030 | 0.010 | 0.015 | 1.2 | 100 % |", done.stderr)

    def test_the_picture_is_that_of_the_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "again.svg")
            done = trace("--read", *TRACES[0], "--read", *TRACES[1], "--picture", path)
            if "needs matplotlib" in done.stderr:
                self.skipTest("matplotlib is not installed")
            self.assertEqual(done.returncode, 0, done.stderr)
            drawn = path.read_text()
        self.assertLess(max(len(drawn), PICTURE.stat().st_size), 100_000)
        titles = re.findall(">([^<>]* s; link idle [^<>]*)<", drawn)
        self.assertEqual(len(titles), sum(map(len, TRACES)))
        self.assertEqual(re.findall(">([^<>]* s; link idle [^<>]*)<", PICTURE.read_text()), titles)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from cluster_test import obstacle

    why = obstacle()
    if not why and not (BUILD and (BUILD / "bench" / "way-bench").exists()):
        why = "way-bench is not built"
    if why:
        done = unittest.main(defaultTest="Traces", exit=False).result
        print("skipped:", why)
        sys.exit(77 if done.wasSuccessful() else 1)
    unittest.main()
