"""bench/compare.py with programs that answer, fail, crash and hang in place of the real ones, and with given lines."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402  (the path comes first)
import compare_tables as tables  # noqa: E402

PROGRAMS = ("tools/entrain-perf", "bench/floor-bench", "bench/openmpi-bench", "bench/mpich-bench", "bench/gloo-bench")


def line(library, transport, algorithm, median, **more):
    return {"library": library, "round": 0, "collective": "all_reduce", "bytes": 8, "ranks": 2, "transport": transport,
            "algorithm": algorithm, "median_us": median, "p95_us": median, "algbw_gbs": 1, "busbw_gbs": 1, "meet_us": 0.1,
            "wrong": 0, **more}


def answer(transport, algorithm, median, wrong=0):
    """A shell script that writes a line to the file of --json, its last argument, and refuses to have no collective."""
    said = json.dumps(line("", transport, algorithm, median, wrong=wrong))
    return f"for last; do :; done\necho '{said}' > $last\n"


def alive(stat):
    try:
        return stat.read_text().split()[2] != "Z"
    except OSError:
        return False


class Measure(unittest.TestCase):
    def test_exit_code_signal_and_time_are_named(self):
        cases = [("echo alas >&2; exit 3", "exit code 3: alas"), ("kill -SEGV $$", "killed by SIGSEGV"),
                 ("exec sleep 60", "no end within 0.3 s")]
        for script, says in cases:
            lines, failure, _ = compare.measure(["sh", "-c", script], 0.3 if "sleep" in script else 30)
            self.assertEqual(lines, [])
            self.assertIn(f"sh -c '{script}'", failure)
            self.assertIn(says, failure)
            self.assertEqual(failure.count("\n"), 0)

    def test_what_was_written_before_a_crash_is_kept(self):
        script = """for last; do :; done; printf '{"a": 1}\\n{"a": ' > $last; kill -9 $$"""
        lines, failure, _ = compare.measure(["sh", "-c", script, "sh"], 30)
        self.assertEqual(lines, [{"a": 1}])
        self.assertIn("killed by SIGKILL", failure)

    def test_what_a_hanging_program_started_is_ended_too(self):
        with tempfile.TemporaryDirectory() as folder:
            pid = pathlib.Path(folder, "pid")
            compare.measure(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"], 0.5)
            state = pathlib.Path("/proc", pid.read_text().strip(), "stat")
            until = time.monotonic() + 10  # it was killed, and dies when it gets a core
            while alive(state) and time.monotonic() < until:
                time.sleep(0.01)
            self.assertFalse(alive(state))


class Tables(unittest.TestCase):
    def rows(self, lines):
        return [row for row in tables.table(lines, "all_reduce", 2) if row.startswith("| ")][1:]

    def test_medians_ratios_and_the_best_peer(self):
        lines = [line("entrain", "shm", "direct", time) for time in (9, 2, 3)]  # median 3
        lines += [line("entrain", "tcp", "ring", 8), line("floor", "shm", "floor", 2)]
        lines += [line("openmpi", "shm", "cma", time) for time in (1, 4, 4)]  # median 4
        lines += [line("mpich", "shm", "shm", 6), line("openmpi", "tcp", "tcp", 10), line("gloo", "tcp", "ring", 5)]
        self.assertEqual(self.rows(lines), [
            "| 8 | 3.00 | 4.00 openmpi cma | 0.75 | 2.00 | **1.50** | 8.00 | 5.00 gloo ring | **1.60** |"])
        said = "\n".join(tables.summary(lines))
        self.assertIn("shm, beside the best peer: ahead in 1 of 1 cells", said)
        self.assertIn("all_reduce 8 on 2: 1.60", said)
        self.assertIn("up to 1.15 times the bare exchange's time: shm in 0 of 1 cells", said)
        self.assertNotIn("1.50", said)

    def test_a_missing_or_wrong_peer_leaves_its_cell_empty(self):
        lines = [line("entrain", "shm", "direct", 3), line("openmpi", "shm", "cma", 1, wrong=2)]
        self.assertEqual(self.rows(lines), ["| 8 | 3.00 |  |  |  |  |  |  |  |"])

    def test_times_from_when_the_cores_were_far_apart_do_not_count(self):
        lines = [line("entrain", "shm", "direct", time, meet_us=far) for time, far in ((1, 0.1), (9, 0.5), (9, 0.5))]
        times = ((2, 0.1), (2, 0.1), (8, 0.5), (8, 0.5))
        lines += [line("openmpi", "shm", "cma", time, meet_us=far) for time, far in times]
        lines += [line("gloo", "tcp", "ring", 4, meet_us=None)]
        self.assertEqual(self.rows(lines), ["| 8 | 1.00 | 2.00 openmpi cma | 0.50 |  |  |  | 4.00 gloo ring |  |"])
        self.assertIn("4 of 8 times left out", "\n".join(tables.summary(lines)))

    def test_where_one_side_had_no_good_time_all_times_count(self):
        lines = [line("entrain", "shm", "direct", time, meet_us=far) for time, far in ((1, 0.1), (9, 0.5), (9, 0.5))]
        lines += [line("openmpi", "shm", "cma", 8, meet_us=0.5), line("floor", "shm", "floor", 1, meet_us=0.1)]
        self.assertEqual(self.rows(lines), ["| 8 | 9.00 | 8.00 openmpi cma | **1.12** | 1.00 | **9.00** |  |  |  |"])

    def test_csv_has_a_row_for_each_contender(self):
        lines = [line("entrain", "shm", "direct", time) for time in (2, 4)] + [line("gloo", "tcp", "ring", 5)]
        lines += [line("floor", "shm", "floor", 1)]
        rows = tables.csv_text(lines).splitlines()
        self.assertEqual(rows[1:], ["all_reduce,2,8,entrain,shm,direct,2,3.0,2,4,3.0,1.0,1.0",
                                    "all_reduce,2,8,gloo,tcp,ring,1,5,5,5,5,1,1",
                                    "all_reduce,2,8,floor,shm,floor,1,1,1,1,1,1,1"])


class Program(unittest.TestCase):
    def run_with(self, *arguments, **scripts):
        with tempfile.TemporaryDirectory() as build:
            for name in PROGRAMS:
                short = name.split("/")[1].split("-")[0]
                path = pathlib.Path(build, name)
                path.parent.mkdir(exist_ok=True)
                if short in scripts:
                    path.write_text("#!/bin/sh\n" + scripts[short])
                    path.chmod(0o755)
            done = subprocess.run(
                [sys.executable, "-B", ROOT / "bench/compare.py", "--build", build, "--ranks", "2", "--rounds", "1",
                 "--collectives", "all_reduce", "--max-bytes", "8", "--transports", "shm", "--out", build + "/kept",
                 *arguments], capture_output=True, text=True, timeout=50)
            kept = pathlib.Path(build, "kept.jsonl")
            return done, [json.loads(one) for one in kept.read_text().splitlines()] if kept.exists() else []

    ENTRAIN, FLOOR, OPENMPI = answer("shm", "x", 3), answer("shm", "floor", 2), answer("shm", "cma", 4)

    def test_all_sides_are_in_the_table(self):
        done, kept = self.run_with(entrain=self.ENTRAIN, floor=self.FLOOR, openmpi=self.OPENMPI,
                                   mpich=answer("tcp", "tcp", 9))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("| 8 | 3.00 | 4.00 openmpi cma | 0.75 | 2.00 | **1.50** |  | 9.00 mpich tcp |  |", done.stdout)
        self.assertIn("gloo-bench is not in", done.stdout)
        self.assertEqual([one.get("library") for one in kept], [None, "entrain", "floor", "openmpi", "mpich"])
        self.assertEqual(set(kept[0]), {"machine", "date", "command"})

    def test_the_bare_exchange_is_run_for_what_it_has(self):
        names = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,gather,scatter,all_to_all,barrier,send_recv"
        lines = {over: json.dumps(line("", over, "x", 2)) for over in ("shm", "tcp")}
        # Prints a line for the requested collective ($1) and, for Entrain, for the transport after --transport.
        script = f"""case "$*" in *"--transport tcp"*) said='{lines["tcp"]}' ;; *) said='{lines["shm"]}' ;; esac
            for last; do :; done; echo "$said" | sed "s/all_reduce/$1/" > $last"""
        done, kept = self.run_with("--collectives", names, "--transports", "shm,tcp", "--without", "openmpi,mpich,gloo",
                                   entrain=script, floor=script)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.count("| 8 | 2.00 |  |  | 2.00 | 1.00 | 2.00 |  |  |"), 4)
        self.assertEqual(done.stdout.count("| 8 | 2.00 |  |  |  |  | 2.00 |  |  |"), 6)
        self.assertEqual({one["collective"] for one in kept[1:] if one["library"] == "floor"},
                         {"all_reduce", "reduce_scatter", "all_gather", "send_recv"})

    def test_a_peer_that_fails_is_named_and_empty(self):
        done, kept = self.run_with(entrain=self.ENTRAIN, floor=self.FLOOR, openmpi="echo alas >&2; exit 9")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("| 8 | 3.00 |  |  | 2.00 |", done.stdout)
        self.assertIn("exit code 9: alas", done.stdout)
        self.assertEqual(len(kept), 3)

    def test_our_failure_and_our_wrong_elements_fail_it(self):
        done, _ = self.run_with(entrain="exit 9", floor=self.FLOOR)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit code 9", done.stderr)
        done, _ = self.run_with(entrain=answer("shm", "x", 3, wrong=7), floor=self.FLOOR)
        self.assertEqual(done.returncode, 1)
        self.assertIn("7 wrong elements", done.stderr)

    def test_any_other_library_and_reading_again(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "other")
            other.write_text("#!/bin/sh\n" + answer("shm", "fast", 1))
            other.chmod(0o755)
            done, kept = self.run_with("--peer", f"mine={other} --flag", entrain=self.ENTRAIN, floor=self.FLOOR)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("1.00 mine fast | **3.00**", done.stdout)
            files = []
            for name, lines in (("a", kept[:2]), ("b", kept[2:])):
                files.append(pathlib.Path(folder, name))
                files[-1].write_text("".join(json.dumps(one) + "\n" for one in lines))
            done, _ = self.run_with("--read", *files)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"# {kept[0]['machine']}; {kept[0]['date']}; {kept[0]['command']}", done.stdout)
            self.assertIn("1.00 mine fast | **3.00**", done.stdout)

    def test_wrong_arguments_are_named(self):
        for arguments, says in ((["--peer", "x"], "--peer"), (["--without", "nccl"], "nccl"),
                                (["--rounds", "0"], "--rounds"), ([], "entrain-perf does not exist")):
            done, _ = self.run_with(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
