"""Runs the programs limits_bench, kernel_bench, endpoint_bench, overlap_bench, reduction_bench and layer_sync_bench,
and checks their output. Usage: own_test.py FOLDER ENTRAIN_RUN. Without arguments it exits with 77 (skipped)."""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER, RUN = (pathlib.Path(word) for word in sys.argv[1:3]) if len(sys.argv) == 3 else (None, None)


class Own(unittest.TestCase):
    def call(self, *command):
        """Runs the program. Returns its output and its JSON lines."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "lines")
            done = subprocess.run([*command, "--json", file], capture_output=True, text=True, timeout=100)
            return done, [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "needs two cores")
    def test_limits(self):
        done, lines = self.call(FOLDER / "limits_bench", "--sizes", "64K", "--repeats", "2", "--budget", "0.001")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        names = [line["limit"] for line in lines]
        for name in ("memcpy", "sum of f32, c = a + b", "all_reduce of 2 ranks, all buffers mapped",
                     "process_vm_readv, one way", "a line to the other core, one way", "tcp over loopback, one way"):
            self.assertIn(name, names)
        for line in lines:
            self.assertGreater(line["median"], 0)
            worst_first = line["best"] <= line["median"] if line["unit"] in ("ns", "us") else line["best"] >= line["median"]
            self.assertTrue(worst_first, line)

    def test_kernels_of_every_table(self):
        done = subprocess.run([FOLDER / "kernel_bench", "--benchmark_filter=/combine._sum/f32/(1024|65536)$",
                               "--benchmark_min_time=0.001", "--benchmark_format=json"], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["benchmarks"]
        self.assertIn("base/combine2_sum/f32/65536", [row["name"] for row in rows])
        for row in rows:
            self.assertGreater(row["bytes_per_second"], 0, row)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "needs two cores")
    def test_endpoints_of_every_transport(self):
        done, lines = self.call(FOLDER / "endpoint_bench", "--max-bytes", "512K", "--factor", "256", "--budget", "0.001")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([(line["transport"], line["bytes"]) for line in lines],
                         [(name, size) for name in ("inproc", "shm", "shm-pushed", "tcp") for size in (8, 2048, 512 << 10)])
        for line in lines:
            self.assertGreater(line["least_us"], 0)
            self.assertLessEqual(line["least_us"], line["one_way_us"])
            self.assertGreater(line["in_a_row_gbs"], 0)

    def test_overlap_under_a_launcher(self):
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            done, lines = self.call(RUN, "-n", "2", FOLDER / "overlap_bench", "--bytes", "300K", "--calls", "2",
                                    "--collective", collective)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual([line["exchange"] for line in lines], ["entrain tcp", "bare sockets"])
            for line in lines:
                self.assertEqual((line["collective"], line["ranks"]), (collective, 2))
                self.assertTrue(0 <= line["hidden"] <= 1, line)
                self.assertGreater(line["slow_down"], -1)
                self.assertGreater(min(line["alone_us"], line["compute_us"], line["together_us"]), 0)

    def test_reductions_beside_a_sum(self):
        done, lines = self.call(RUN, "-n", "4", FOLDER / "reduction_bench", "--bytes", "1M", "--calls", "3")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        bytes_of = {line["way"]: line["bytes_times_sum"] for line in lines}
        self.assertTrue(all(line["us"] > 0 for line in lines))
        self.assertEqual(bytes_of["gta by three sums"], 3)
        for way, most in (("weighted", 1.05), ("gta", 1.05), ("gta, magnitude 0.01", 0.1), ("gta, bf16", 0.51),
                          ("gta, int8", 0.27), ("gta, int4", 0.15)):
            self.assertLess(bytes_of[way], most, way)

    def test_layer_syncs_beside_their_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "rows")
            done = subprocess.run([RUN, "-n", "4", FOLDER / "layer_sync_bench", "--shards", "2", "--bytes", "256K",
                                   "--layers", "3", "--calls", "2", "--compute", "sleep", "--prefetch", "0,1",
                                   "--variants", "plain,diloco,edit,gta,edit-int8,gta-sparse", "--csv", file],
                                  capture_output=True, text=True, timeout=100)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            rows = list(csv.DictReader(file.read_text().splitlines()))
        self.assertEqual([(row["variant"], row["prefetch"]) for row in rows],
                         [(name, ahead) for name in ("plain", "diloco", "edit", "gta", "edit-int8", "gta-sparse")
                          for ahead in ("0", "1")])
        for row in rows:
            self.assertEqual((row["replicas"], row["shards"], row["layer_bytes"]), ("2", "2", "262144"))
            for column in ("alone_us", "by_hand_us", "sync_us", "compute_us", "first_us"):
                self.assertGreater(float(row[column]), 0)
            self.assertGreaterEqual(float(row["exposed_share"]), 0)
            share = int(row["bytes_sent"]) / 262144
            least, most = {"edit-int8": (0.25, 0.27), "gta-sparse": (0.05, 0.2)}.get(row["variant"], (1, 1.01))
            self.assertTrue(least <= share <= most, row)

    def test_wrong_arguments_are_named(self):
        for command, says in (([FOLDER / "endpoint_bench", "--transport", "rdma"], "rdma"),
                              ([FOLDER / "endpoint_bench", "--min-bytes", "2", "--max-bytes", "1"], "--min-bytes: 2"),
                              ([FOLDER / "overlap_bench", "--collective", "scan"], '--collective: "scan"'),
                              ([FOLDER / "overlap_bench", "--bytes", "x"], "--bytes"),
                              ([FOLDER / "reduction_bench", "--bytes", "x"], "--bytes"),
                              ([FOLDER / "layer_sync_bench", "--variants", "edit,x"], '--variants: "x"'),
                              ([FOLDER / "layer_sync_bench", "--bytes", "1M,7"], '--bytes: "7"'),
                              ([FOLDER / "layer_sync_bench", "--prefetch", "x"], '--prefetch: "x"'),
                              ([FOLDER / "layer_sync_bench", "--compute", "nap"], '--compute: "nap"'),
                              ([FOLDER / "limits_bench", "--sizes", "1"], "--sizes")):
            done = subprocess.run(command, capture_output=True, text=True, timeout=100)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr)

    def test_overlap_needs_a_launcher(self):
        bare = {name: value for name, value in os.environ.items() if "RANK" not in name}
        done = subprocess.run([FOLDER / "overlap_bench"], capture_output=True, text=True, timeout=100, env=bare)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no launcher is recognised", done.stderr)


if __name__ == "__main__":
    if FOLDER is None:
        print("skipped: this build has no benchmarks")
        sys.exit(77)
    del sys.argv[1:]
    unittest.main()
