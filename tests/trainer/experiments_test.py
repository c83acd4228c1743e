"""examples/experiments.py with a program that answers in place of the real ones, and its tables of
given results."""

import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples/experiments.py"
sys.path.insert(0, str(ROOT / "examples"))
import experiment_tables as tables  # noqa: E402  (the path comes first)
import experiments  # noqa: E402
import optimizers  # noqa: E402

ALL = sum(count for _, count in experiments.EXPERIMENTS.values())
SUMMARY = {
    "tokens": 4000,
    "tokens_per_s": 9000.0,
    "val_loss": 1.5,
    "replica_steps": [10, 30, 30, 30],
    "rejections": 2,
    "idle_share": [0.001, 0.02, 0.03, 0.04],
    "val_accuracy": 0.25,
    "sharpness": [0.125, 0.5],
    "sample": "no",
    "params": 80112,
    "wall_s": 2.0,
    "replica_microbatches": [10, 30, 30, 30],
    "dropped_microbatches": 4,
}


class Tables(unittest.TestCase):
    def test_markdown_has_a_heading_and_aligns_numbers(self):
        self.assertEqual(
            tables.markdown([["a", "b", "c"], ["x", "1", "2"]]),
            "| a | b | c |\n|---|---:|---:|\n| x | 1 | 2 |\n",
        )

    def test_quality_takes_the_rate_with_the_best_mean_and_compares_with_ddp(self):
        rows = tables.quality(
            {
                "ddp": {0.1: [1.9, 2.7], 0.2: [2.0, 2.2]},
                "edit": {0.1: [2.1, 2.142], 0.2: [2.3, 2.3]},
            }
        )
        self.assertEqual(rows[0][-4:], ["its seed 1", "its seed 2", "mean", "against ddp"])
        ddp = ["ddp", "2.3000", "2.1000", "0.2", "2.0000", "2.2000", "2.1000", ""]
        self.assertEqual(rows[1], ddp)
        edit = ["edit", "2.1210", "2.3000", "0.1", "2.1000", "2.1420", "2.1210", "+1.00 %"]
        self.assertEqual(rows[2], edit)
        rows = tables.quality({"a": {0.1: [2.0]}, "b": {0.1: [1.9]}}, "a")
        self.assertEqual([row[-1] for row in rows], ["against a", "", "-5.00 %"])

    def test_excursion_is_the_worst_of_the_others_against_the_same_step_without_shuffling(self):
        def run(losses):
            return [
                {"step": step + 1, "replica": replica, "loss": loss}
                for step, row in enumerate(losses)
                for replica, loss in enumerate(row)
            ]

        quiet = tables.clean_losses(run([(3, 3, 3), (2, 9, 2), (1, 1, 2)]), 1)
        spiked = tables.clean_losses(run([(3, 3, 3), (2.5, 50, 2.7), (1, 1, 2.4)]), 1)
        self.assertEqual(quiet, {1: 3, 2: 2, 3: 1.5})
        self.assertAlmostEqual(tables.worst_excursion(quiet, spiked, 1), 0.6)
        self.assertAlmostEqual(tables.worst_excursion(quiet, spiked, 3), 0.2)

    def test_spikes_compares_the_worst_seed_with_dilocos(self):
        def seed(worst, armed, rejections):
            return {
                "worst": worst,
                "worst_armed": armed,
                "rejections": rejections,
                "rejections_quiet": 1,
                "val_loss": 2,
                "val_loss_quiet": 1.5,
            }

        rows = tables.spikes(
            {
                "diloco": [seed(0.4, 0.2, 0), seed(0.3, 0.1, 0)],
                "edit": [seed(0.05, 0.05, 3), seed(0.1, 0.02, 4)],
            }
        )
        self.assertEqual(rows[1][:6], ["diloco", "0.400", "", "0.200", "", "0 0"])
        edit = ["edit", "0.100", "0.25", "0.050", "0.25", "3 4", "1 1", "2.0000", "1.5000"]
        self.assertEqual(rows[2], edit)

    def test_monte_carlo_is_that_of_the_literature(self):
        known = {
            ("random", 0.5): (0.667, 0.839, 0.870),
            ("random", 1): (0.5, 0.722, 0.781),
            ("random", 4): (0.2, 0.394, 0.452),
            ("fixed", 0.5): (0.667, 0.667, 0.894),
            ("fixed", 1): (0.5, 0.5, 0.875),
            ("fixed", 4): (0.2, 0.2, 0.650),
            ("none", 0): (1, 1, 1),
        }
        for key, shares in known.items():
            for method, share in zip(("ddp", "edit", "a-edit"), shares):
                self.assertAlmostEqual(
                    tables.predict(method, *key), share, delta=0.008, msg=f"{method} {key}"
                )

    def test_share_of_ideal_counts_the_tokens_that_replicas_would_make_without_waiting(self):
        # 100 steps of 40 tokens; four replicas that make one in 10 ms would make 16000 a second.
        self.assertAlmostEqual(tables.share_of_ideal(SUMMARY, 10), 9000 / 16000)

    def test_stragglers_names_methods_that_are_apart(self):
        rows = tables.stragglers(
            {("random", 1): {"ddp": 0.49, "edit": 0.6}, ("fixed", 4): {"ddp": 0.2, "edit": 0.2}},
            {("random", 1): {"ddp": 0.5, "edit": 0.7}, ("fixed", 4): {"ddp": 0.2, "edit": 0.2}},
        )
        self.assertEqual(rows[1], ["random", "1", "0.490 / 0.500", "0.600 / 0.700", "no: edit"])
        self.assertEqual(rows[2], ["fixed", "4", "0.200 / 0.200", "0.200 / 0.200", "yes"])

    def test_idle_has_a_row_a_replica(self):
        self.assertEqual(tables.idle(SUMMARY)[2], ["1", "30", "2.0 %"])

    def test_a_channel_makes_what_was_committed(self):
        # 96 in 2 s, where four replicas that only compute would make 80 of 100 ms.
        found = tables.channel(SUMMARY, 100, 80112)
        self.assertAlmostEqual(found["share"], 96 / 80)
        with self.assertRaisesRegex(ValueError, "80112 parameters, not 5"):
            tables.channel(SUMMARY, 100, 5)

    def test_ideal_shares_are_those_of_the_timing_model(self):
        self.assertAlmostEqual(tables.ideal_share("zero1", 1, 0.8, 1, 4), 1 / 1.8)
        self.assertAlmostEqual(tables.ideal_share("zero1", 2, 0.8, 1, 2), 2 / 2.8)
        self.assertAlmostEqual(tables.ideal_share("zero1", 1, 0, 4, 4), 1 / 4)
        self.assertAlmostEqual(tables.ideal_share("acco", 1, 0.8, 1, 2), 1)
        self.assertAlmostEqual(tables.ideal_share("acco", 1, 0, 4, 4), 3.25 / 4)

    def test_acco_compares_with_the_ideal(self):
        found = {"share": 0.5, "waited": [0.4, 0.5]}
        rows = tables.acco([(2, "zero1", "quiet", found, ("zero1", 1, 1), 0.25, 1)])
        self.assertEqual(
            rows[1], ["quiet", "2", "zero1", "0.500", "0.800", "0.625", "40.0 % 50.0 %"]
        )


    def test_training_losses_are_means_over_the_last_steps_and_all_replicas(self):
        records = [
            {"step": step, "replica": replica, "loss": loss + replica}
            for step, loss in enumerate((5, 4, 2, 1, 3), 1)
            for replica in (0, 2)
        ]
        self.assertEqual(tables.smooth_losses(records, 2), [5.5, 4, 2.5, 3])
        self.assertEqual(tables.reaches(records, 6, 2), 2)
        self.assertEqual(tables.reaches(records, 4, 2), 3)
        self.assertEqual(tables.reaches(records, 3, 2), 4)
        self.assertIsNone(tables.reaches(records, 2.5, 2))  # it was, and is no more

    def test_optimizers_are_compared_with_the_first_seed_by_seed(self):
        def result(name, gradients, own, losses, share):
            return {
                "name": name,
                "steps": 80,
                "gradients": gradients,
                "rate": 0.004,
                "losses": [[3, 4], own, [float("inf"), 2]],
                "summaries": [
                    {"val_accuracy": 0.5, "sharpness": [0.1, 1]},
                    {"val_accuracy": 0.6, "sharpness": [0.3, 2]},
                ],
                "records": [
                    [
                        {"step": step, "replica": 0, "loss": loss - step / 100, **share}
                        for step in range(1, 81)
                    ]
                    for loss in losses
                ],
            }

        rows = tables.optimizers(
            [
                result("AdamW", 80, [2, 2.2], (2, 3), {}),
                result("fast", 160, [1, 1.1], (1.96, 2.94), {"adaptive_share": 0.75}),
                result("slow", 80, [4, 4.2], (1.9, 3.1), {}),
            ],
            (0.05, 0.5),
        )
        self.assertEqual({len(row) for row in rows}, {15})
        adamw = ["AdamW", "80", "80", "0.004", "3.5000", "2.1000 ± 0.1414", "∞", ""]
        self.assertEqual(rows[1][:8], adamw)
        self.assertEqual(rows[1][8], "55.0 ± 7.1 %")
        self.assertEqual(rows[1][10:], ["80", "80", "0.2000", "1.5000", ""])
        # 4 and 6 steps earlier, of two gradients each.
        self.assertEqual(rows[2][7:8] + rows[2][10:12], ["-50.00 %", "75", "150"])
        self.assertEqual(rows[2][-1], "75.0 %")
        self.assertEqual(rows[3][10:12], ["never in 1 of 2", ""])


class Tuning(unittest.TestCase):
    def tune(self, guess, losses):
        self.tried = []

        def losses_at(rung):
            self.tried.append(rung)
            return losses(rung)

        return optimizers.tune(guess, losses_at)

    def test_the_ladder_is_climbed_until_the_best_rung_has_a_worse_one_on_either_side(self):
        best, known = self.tune(0, lambda rung: [(rung - 3) ** 2, 5])
        self.assertEqual((best, self.tried), (3, [-1, 0, 1, 2, 3, 4]))
        self.assertEqual(known[4], [1, 5])
        self.assertEqual(self.tune(0, lambda rung: [(rung + 2) ** 2])[0], -2)
        self.assertEqual(self.tried, [-1, 0, 1, -2, -3])

    def test_of_equals_that_next_to_the_guess_is_the_best(self):
        self.assertEqual(self.tune(5, lambda rung: [1.0])[0], 5)
        self.assertEqual(self.tried, [4, 5, 6])

    def test_a_rung_that_diverges_is_worse_than_any(self):
        self.assertEqual(self.tune(1, lambda r: [9 - r, float("inf") if r > 0 else 2])[0], 0)

    def test_nothing_is_known_while_a_rung_is_missing(self):
        self.assertIsNone(self.tune(1, lambda rung: [rung] if rung < 2 else None))


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.top = pathlib.Path(self.folder.name)
        for program in ("tools/entrain-run", "examples/trainer/entrain-train", "text"):
            (self.top / program).parent.mkdir(parents=True, exist_ok=True)
            (self.top / program).write_text("")
        self.answer("exit 0")

    def answer(self, end):
        for kind, loss in (("quiet", 2.0), ("shuffled", 2.5)):
            (self.top / kind).write_text(
                "\n".join(
                    json.dumps({"step": step, "replica": replica, "loss": loss})
                    for step in range(1, 769)
                    for replica in range(4)
                )
            )
        (self.top / "tools/entrain-run").write_text(
            f'#!/bin/sh\nall=$*\necho "$ENTRAIN_FAULT $*" >> {self.top}/calls\n'
            'case "$*" in *shuffle*) said=shuffled;; *) said=quiet;; esac\n'
            f'while [ $# -gt 0 ]; do\n  [ "$1" = --log ] && cp {self.top}/$said "$2"\n'
            f'  [ "$1" = --summary ] && echo \'{json.dumps(SUMMARY)}\' > "$2"\n  shift\ndone\n'
            f"echo alas\n{end}\n"
        )
        (self.top / "tools/entrain-run").chmod(0o755)

    def call(self, *words):
        return subprocess.run(
            [
                sys.executable,
                "-B",
                SCRIPT,
                *words,
                "--build",
                self.top,
                "--data",
                self.top / "text",
                "--out",
                self.top / "out",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self):
        return (self.top / "calls").read_text().splitlines()

    def test_every_experiment_makes_its_runs_once_and_writes_tables(self):
        done = self.call("all")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(self.calls()), ALL)
        self.assertIn(f"[{ALL}/{ALL}] ", done.stdout)
        for name in experiments.EXPERIMENTS:
            self.assertIn("|---|", (self.top / f"out/{name}.md").read_text())
        capped = [call for call in self.calls() if call.startswith("rate=10.0140MB/s ")]
        self.assertEqual(len(capped), 5 + 2, "480672 bytes in 48 ms")
        self.assertIn("| diloco | 0.500 |", (self.top / "out/spikes.md").read_text())
        with open(self.top / "out/runs.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), ALL)
        self.assertIn("ENTRAIN_FAULT=rate=", (self.top / "out/acco-4-2-capped.flags").read_text())
        self.assertEqual({row["val_loss"] for row in rows}, {"1.5"})
        self.assertEqual(self.call("all").returncode, 0)
        self.assertEqual(len(self.calls()), ALL)

    def test_a_run_is_made_again_when_its_flags_are_others(self):
        self.call("idle")
        kept = self.top / "out/idle.flags"
        kept.write_text(kept.read_text().replace("fixed", "random"))
        self.call("idle")
        self.assertEqual(len(self.calls()), 2)

    def test_runs_for_which_there_is_no_time_are_left_for_another_call(self):
        done = self.call("quality", "--seconds", "12")  # one of a-edit is expected to take longer
        self.assertEqual(done.returncode, 75)
        self.assertIn("runs are still to be made", done.stdout)
        self.assertNotIn("a-edit", (self.top / "out/quality.md").read_text())
        self.assertEqual([call for call in self.calls() if "a-edit" in call], [])
        self.assertEqual(self.call("quality").returncode, 0)
        self.assertEqual(len(self.calls()), 45)

    def test_a_run_that_fails_ends_it_and_leaves_no_result(self):
        self.answer("exit 3")
        done = self.call("idle")
        self.assertEqual(done.returncode, 1)
        self.assertIn("alas\nexperiments.py: exit code 3 of", done.stderr)
        self.assertFalse((self.top / "out/idle.flags").exists())

    def test_a_learning_rate_that_diverges_is_a_result(self):
        self.answer(
            'case "$all" in *"--lr 0.016"*) echo the loss is not finite at step 3; exit 1;; esac'
        )
        self.assertEqual(self.call("optimizers").returncode, 0)
        table = (self.top / "out/optimizers.md").read_text()
        self.assertIn("| AdamW | 512 | 512 | 0.008 | 1.5000 | 1.5000 ± 0.0000 | ∞ |", table)
        made = len(self.calls())
        self.assertEqual(self.call("optimizers").returncode, 0)
        self.assertEqual(len(self.calls()), made)

    def test_missing_programs_are_named(self):
        (self.top / "examples/trainer/entrain-train").unlink()
        done = self.call("idle")
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"there is no {self.top}/examples/trainer/entrain-train", done.stderr)


if __name__ == "__main__":
    unittest.main()
