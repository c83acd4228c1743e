"""bench/compare.py with programs that answer, fail, crash and hang in place of the real ones."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402  (the path comes first)

# The last argument is the file of --json.
ANSWER = """for last; do :; done
echo '{"collective": "barrier", "ranks": 2, "transport": "shm", "algorithm": "x", "median_us": 4.5, "wrong": WRONG}' > $last
"""


class Measure(unittest.TestCase):
    def test_exit_code_signal_and_time_are_named(self):
        cases = [("echo alas >&2; exit 3", "exit code 3: alas"), ("kill -SEGV $$", "killed by SIGSEGV"),
                 ("exec sleep 60", "no end within 0.3 s")]
        for script, says in cases:
            lines, failure = compare.measure(["sh", "-c", script], 0.3 if "sleep" in script else 30)
            self.assertEqual(lines, [])
            self.assertIn(f"sh -c '{script}'", failure)
            self.assertIn(says, failure)
            self.assertEqual(failure.count("\n"), 0)

    def test_what_was_written_before_a_crash_is_kept(self):
        script = """for last; do :; done; printf '{"a": 1}\\n{"a": ' > $last; kill -9 $$"""
        lines, failure = compare.measure(["sh", "-c", script, "sh"], 30)
        self.assertEqual(lines, [{"a": 1}])
        self.assertIn("killed by SIGKILL", failure)


class Program(unittest.TestCase):
    def run_with(self, entrain, gloo):
        with tempfile.TemporaryDirectory() as build:
            for name, script in (("tools/entrain-perf", entrain), ("bench/gloo-bench", gloo)):
                path = pathlib.Path(build, name)
                path.parent.mkdir()
                path.write_text("#!/bin/sh\n" + script)
                path.chmod(0o755)
            kept = pathlib.Path(build, "kept.jsonl")
            done = subprocess.run(
                [sys.executable, "-B", ROOT / "bench/compare.py", "--build", build, "--ranks", "2", "--rounds", "1",
                 "--collectives", "barrier", "--transports", "shm", "--json", kept],
                capture_output=True, text=True, timeout=50)
            return done, [json.loads(line) for line in kept.read_text().splitlines()]

    def test_both_sides_of_a_barrier_are_in_the_table(self):
        answer = ANSWER.replace("WRONG", "0")
        done, kept = self.run_with(answer, answer)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("| - | 4.50 | 4.50 (x) | 1.00 |", done.stdout)
        self.assertEqual([line["library"] for line in kept], ["entrain", "gloo"])

    def test_a_side_that_fails_fails_the_whole(self):
        answer = ANSWER.replace("WRONG", "0")
        for sides in ((answer, "exit 9"), ("exit 9", answer)):
            done, kept = self.run_with(*sides)
            self.assertEqual(done.returncode, 1)
            self.assertIn("exit code 9", done.stderr)
            self.assertIn("failed", done.stdout)
            self.assertEqual(len(kept), 1)

    def test_wrong_elements_fail_it_too(self):
        done, _ = self.run_with(ANSWER.replace("WRONG", "7"), ANSWER.replace("WRONG", "0"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("7 wrong elements", done.stderr)


if __name__ == "__main__":
    unittest.main()
