"""Runs examples/compare.py with the real programs of a build folder: compare_report_test.py BUILD. Exits
with 77 if no Python here has matplotlib."""

import csv
import html.parser
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples/compare.py"
BUILD = PYTHON = None  # set below
OK, FAILED, BAD_USAGE, LEFT_OUT = 0, 1, 2, 75
WORDS = "--methods ddp,diloco --seeds 2 --ranks 2 --steps 12 --lr 5e-3".split()
FLAGS = "--layers 1 --hidden-size 12 --heads 2 --seq-length 16 --val-batches 4".split()


def has_matplotlib(python):
    try:
        words = [python, "-c", "import matplotlib"]
        return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


class Page(html.parser.HTMLParser):
    """The text of a page, and every element that could make a browser load a file."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.loads, self.ids = "", [], [], []
        self.feed(text)

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            elif key in ("src", "href", "xlink:href", "data", "srcset") and not value.startswith(
                "#"
            ):
                self.loads.append((tag, key, value))


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.top = pathlib.Path(folder.name)
        words = "the quick brown fox jumps over a lazy dog and then sleeps".split()
        (cls.top / "text").write_text(
            " ".join(words[at * at % 7 + at % 5] for at in range(6000)), encoding="utf-8"
        )
        cls.first = cls.call("out", *WORDS, "--", *FLAGS)

    @classmethod
    def call(cls, out, *words):
        where = ["--build", BUILD, "--data", cls.top / "text", "--out", cls.top / out]
        return subprocess.run(
            [PYTHON, "-B", SCRIPT, *where, *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def rows(self, out):
        with open(self.top / out / "report.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def page(self, out):
        return Page((self.top / out / "report.html").read_text(encoding="utf-8"))

    def test_the_numbers_are_those_of_the_summaries(self):
        self.assertEqual(self.first.returncode, OK, self.first.stdout + self.first.stderr)
        rows = self.rows("out")
        self.assertEqual([row["status"] for row in rows], ["done"] * 4)
        self.assertEqual({row["tokens"] for row in rows}, {str(12 * 4 * 16 * 2)})
        for row in rows:
            path = self.top / "out/runs" / f"{row['run']}.json"
            summary = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(summary["method"], row["entry"])
            self.assertEqual(str(summary["seed"]), row["seed"])
            for key, value in summary.items():
                text = json.dumps(value) if isinstance(value, list) else str(value)
                self.assertEqual(row[key], "" if value is None else text, key)
            sent = summary["bytes_sent_sync"] + summary["bytes_sent_shard"]
            self.assertGreater(sent, 0)
            self.assertAlmostEqual(float(row["bytes_per_token"]) * summary["tokens"], sent * 2)
            self.assertLessEqual(float(row["seconds_to_target"]), summary["wall_s"])

    def test_curves_have_all_runs_and_the_losses_of_their_records(self):
        with open(self.top / "out/curves.csv", encoding="utf-8", newline="") as file:
            points = list(csv.DictReader(file))
        for row in self.rows("out"):
            with open(self.top / "out/runs" / f"{row['run']}.jsonl", encoding="utf-8") as file:
                losses = [json.loads(line)["loss"] for line in file]
            own = [float(point["loss"]) for point in points if point["run"] == row["run"]]
            self.assertEqual(len(own), 12)
            self.assertAlmostEqual(math.fsum(own) / 12, math.fsum(losses) / len(losses), places=5)

    def test_the_page_needs_nothing_else_and_has_every_run(self):
        page = self.page("out")
        self.assertEqual(page.loads, [])
        self.assertNotIn("script", page.tags)
        for forbidden in ("http:", "https:", "@import", "url(//", "src="):
            self.assertNotIn(forbidden, (self.top / "out/report.html").read_text(encoding="utf-8"))
        self.assertGreaterEqual(page.tags.count("svg"), 5)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        for row in self.rows("out"):
            self.assertIn(row["run"], page.text)
            self.assertIn(f"{float(row['val_loss']):.4f}", page.text)
        for said in ("Entrain 1.", "examples/compare.sh", "2 ranks", "against ddp"):
            self.assertIn(said, page.text)

    def test_runs_that_are_there_are_not_made_again(self):
        kept = {path: path.stat().st_mtime_ns for path in (self.top / "out/runs").iterdir()}
        again = self.call("out", *WORDS, "--", *FLAGS)
        self.assertEqual(again.returncode, OK, again.stderr)
        self.assertNotIn("[", again.stdout)
        now = {path: path.stat().st_mtime_ns for path in (self.top / "out/runs").iterdir()}
        self.assertEqual(now, kept)

    def test_a_run_that_fails_is_reported_and_the_others_go_on(self):
        wrong = ["--method-flags", "ddp=--outer-lr 0.5", "--seeds", "1"]
        done = self.call("failing", *WORDS, *wrong, "--", *FLAGS)
        self.assertEqual(done.returncode, FAILED, done.stdout + done.stderr)
        self.assertIn("1 of 2 runs failed", done.stdout)
        failed, good = self.rows("failing")
        self.assertEqual((failed["status"], failed["entry"]), ("failed", "ddp"))
        self.assertIn("--outer-lr has no effect with --method ddp", failed["reason"])
        self.assertEqual((good["status"], good["entry"]), ("done", "diloco"))
        page = self.page("failing")
        self.assertIn("1 of 2 runs failed", page.text)
        self.assertIn("--outer-lr has no effect with --method ddp", page.text)

    def test_only_the_best_rate_of_the_first_seed_is_given_another(self):
        words = ["--methods", "ddp", "--lr", "1e-5:5e-3", "--tune-seeds", "1"]
        done = self.call("tuned", *WORDS, *words, "--", *FLAGS)
        self.assertEqual(done.returncode, OK, done.stdout + done.stderr)
        made = [(row["seed"], row["lr"]) for row in self.rows("tuned")]
        self.assertEqual(made, [("1", "1e-5"), ("1", "5e-3"), ("2", "5e-3")])
        self.assertIn("mean validation loss of seed 1", self.page("tuned").text)

    def test_what_there_is_no_time_for_is_left_for_another_call(self):
        done = self.call("short", *WORDS, "--seconds", "0.001", "--", *FLAGS)
        self.assertEqual(done.returncode, LEFT_OUT, done.stdout + done.stderr)
        self.assertEqual([row["status"] for row in self.rows("short")], ["not made"] * 4)
        self.assertIn("4 of 4 runs are still to be made", self.page("short").text)

    def test_bad_usage_is_one_line(self):
        for words, line in (
            (["--methods", "best"], "compare.py: --methods: 'best' is not one of ddp, "),
            (["--fast"], "compare.py: error: unrecognized arguments: --fast"),
        ):
            done = self.call("bad", *words)
            self.assertEqual(done.returncode, BAD_USAGE)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertTrue(done.stderr.startswith(line), done.stderr)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1))
    PYTHON = next(filter(has_matplotlib, ("/usr/bin/python3", sys.executable)), None)
    if PYTHON is None:
        print("skipped: no Python here has matplotlib")
        sys.exit(77)
    unittest.main()
