"""Tests examples/experiments.py with a program in place of the real ones, and the tables that it makes from given
results."""

import argparse
import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples/experiments.py"
sys.path.insert(0, str(ROOT / "examples"))
import evidence  # noqa: E402  (the path comes first)
import experiments  # noqa: E402
import runs  # noqa: E402
import tables  # noqa: E402

RATES = experiments.RATES


def line(exchange, replica):
    """Returns a line of --is-debug, with the prefixes of the launcher and of the log."""
    rejected = (exchange, replica) == (5, 1)
    return (
        f"[{replica}] entrain[{replica}] info: edit: rendezvous {exchange}, layer 0, replica "
        f"{replica}: norm 0.5, z 0.2 of {3 if exchange > 4 else 0}, "
        f"{'rejected' if rejected else 'accepted'}, weight {0 if rejected else 0.25}, clip factor "
        f"{0.5 if exchange == 6 else 1}; accepted so far 1 of 2"
    )


DECISIONS = [line(exchange, replica) for exchange in range(1, 7) for replica in range(4)]
STORM = """| method | kills / stops / cuts / holder | loss | equal |
| --- | --- | --- | --- |
| edit | 6 / 0 / 0 / 0 (240 an hour) | +1.50 % | 9 of 9 |
1 jobs, 0 not good
"""
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
    "steps": 40,
    "syncs": 6,
    "bytes_sent_sync": 5,
    "final_train_loss": 1.25,
    "replica_microbatches": [10, 30, 30, 30],
    "dropped_microbatches": 4,
}


class Tables(unittest.TestCase):
    def test_markdown_has_a_heading_and_aligns_numbers(self):
        self.assertEqual(
            tables.markdown([["a", "b", "c"], ["x", "1", "2"]]),
            "| a | b | c |\n|---|---:|---:|\n| x | 1 | 2 |\n",
        )

    def test_differences_are_of_the_same_seeds_with_students_interval(self):
        own, base = {1: 1.1, 2: 2.4, 3: 9.0}, {1: 1.0, 2: 2.0, 4: 1.0}
        self.assertEqual([round(one, 9) for one in tables.against(own, base)], [0.1, 0.2])
        mean, half = tables.interval([0.1, 0.2])
        self.assertAlmostEqual(mean, 0.15)
        self.assertAlmostEqual(half, 12.706 * 0.05)  # deviation 0.0707 over the root of 2
        self.assertEqual(tables.difference(own, base), "+15.00 % [-48.53, +78.53]")
        self.assertEqual(tables.difference({1: 1.1}, base), "+10.00 %")

    def test_quality_compares_with_ddp(self):
        ddp, edit = {1: 2.0, 2: 2.2}, {1: 2.1, 2: 2.31}
        rows = tables.quality([("ddp", 768, 0.008, ddp), ("edit", 48, 0.005, edit)], ddp, 768)
        self.assertEqual(rows[1], ["ddp", "768 (100 %)", "0.008", "2", "2.1000 ± 0.1414", ""])
        self.assertEqual(
            rows[2][1:4] + rows[2][5:], ["48 (6 %)", "0.005", "2", "+5.00 % [+5.00, +5.00]"]
        )
        rows = tables.intervals({(0, 16): edit}, ddp, (0, 8), (8, 16), 768)
        self.assertEqual(rows[1], ["0 (0 %)", "", "+5.00 % [+5.00, +5.00]"])
        self.assertEqual(rows[2], ["8 (1 %)", "", ""])

    def test_decisions_are_counted(self):
        found = runs.parse_decisions("noise\n" + "\n".join(reversed(DECISIONS)))
        self.assertEqual(len(found), 24)
        self.assertEqual(found[0]["exchange"], 1)
        rows = tables.parts([(0, 16, found)], 768)
        self.assertEqual(rows[1][1:], ["16", "6", "24", "8", "1", "4", "0.50", "0.250", "0.250"])

    def test_what_acted_on_shuffled_labels_is_told_from_the_rest(self):
        found = runs.parse_decisions("\n".join(DECISIONS))
        one = {"worst": 0.5, "val_loss": 2.0, "val_loss_quiet": 1.0}
        one |= {"decisions": found, "decisions_quiet": found}
        results = {
            "detector": {1: one, 2: {**one, "worst": 0.25}},
            tables.NO_PARTS: {1: one, 2: one},
        }
        rows = tables.acts(results, 1, 5)
        self.assertEqual(
            rows[1][:4], ["detector", "shuffled", "2 of 2 (100.0 %)", "0 of 14 (0.0 %)"]
        )
        self.assertEqual(rows[1][4:], ["8 of 48 (16.7 %)", "0.50", "", "0.250"])
        self.assertEqual(rows[2][1:4], ["in order", "", "2 of 16 (12.5 %)"])
        rows = tables.penalty(results)
        self.assertEqual(rows[1][2], "0.3750 ± 0.1768")
        self.assertTrue(rows[1][3].startswith("-25.00 % ["))
        self.assertEqual(rows[1][5], "+0.00 % [+0.00, +0.00]")
        self.assertEqual(rows[2][0], "none (DiLoCo)")
        self.assertEqual(rows[2][3::2], ["", "", ""])

    def test_an_excursion_is_the_worst_against_the_same_step_without_shuffling(self):
        records = [
            {"step": step + 1, "replica": replica, "loss": loss}
            for step, row in enumerate([(3, 3, 3), (2, 9, 2), (1, 1, 2)])
            for replica, loss in enumerate(row)
        ]
        quiet = runs.block_means(records, 1, 1)
        self.assertEqual(quiet, [3, 2, 1.5])
        self.assertEqual(runs.block_means(records, 2), [(9 + 13) / 6, 4 / 3])
        self.assertAlmostEqual(tables.worst_excursion(quiet, [3, 2.6, 1.7]), 0.6)

    def test_acco_at_equal_updates_gains_until_an_exchange_takes_two_microbatches(self):
        self.assertAlmostEqual(tables.ideal_speed(0.5), 1.25)
        self.assertAlmostEqual(tables.ideal_speed(2), 1)
        self.assertAlmostEqual(tables.ideal_speed(4), 0.75)

    def test_ratio_pairs_passes_and_multiplies_by_updates(self):
        def passes(*walls):
            return [{**SUMMARY, "wall_s": wall} for wall in walls]

        methods = {"ddp": passes(4, 4), "zero1": passes(4, 8), "acco": passes(2, 5)}
        methods["acco-free"] = passes(2, 2)
        rows = tables.ratio({0.5: methods}, {"zero1": 10, "acco": 12})
        self.assertEqual(rows[1][1:3], ["10.00 (10.00 to 10.00)", "7.50 (5.00 to 10.00)"])
        self.assertEqual(rows[1][4:7], ["1.800 (1.600 to 2.000)", "1.250", "0.67"])
        self.assertEqual(rows[1][8], "0.6")  # 96 micro-batches, 4 ranks, 40 updates
        self.assertEqual(tables.ratio({0.5: methods}, {})[1][6], "")

    def test_updates_to_a_loss_are_to_the_highest_end(self):
        curves = {"a": {1: [4, 3, 2, 1], 2: [4, 1, 3, 2]}, "b": {1: [4, 3, 3, 2.5]}}
        self.assertEqual(tables.updates_to_a_loss(curves), {"a": 3.5, "b": 4})
        self.assertEqual(tables.updates_to_a_loss({"a": {}, "b": {}}), {})

    def test_an_interval_allows_a_sentence(self):
        base = {1: 1.0, 2: 1.0}
        self.assertEqual(tables.allowed({1: 1.1, 2: 1.1001}, base), "worse, by 9.9 to 10.1 %")
        self.assertEqual(tables.allowed({1: 0.9, 2: 0.9}, base), "better, by 10.0 to 10.0 %")
        self.assertEqual(
            tables.allowed({1: 1.01, 2: 1.0}, base),
            "no difference seen: at most 6.9 % worse, 5.9 % better",
        )

    def test_one_seed_allows_no_sentence(self):
        self.assertEqual(tables.allowed({1: 1.1}, {1: 1.0, 2: 1.0}), "one seed: no interval")
        self.assertEqual(tables.spread({1: 1.1}), "1.1000")

    def test_counts_of_runs_together_are_those_of_all_their_decisions(self):
        found = runs.parse_decisions("\n".join(DECISIONS))
        first = [one for one in found if one["exchange"] < 2]
        rest = [one for one in found if one["exchange"] >= 2]
        self.assertEqual(tables.acted_together([tables.acted(first), tables.acted(rest)]), tables.acted(found))

    def test_parts_are_compared_with_none_and_counted(self):
        acted = tables.acted(runs.parse_decisions("\n".join(DECISIONS)))
        base, better = {1: 2.0, 2: 2.0}, {1: 1.0, 2: 1.0}
        rows = tables.evidence_parts({"noise": {(): (base, acted), ("clip",): (better, acted)}})
        self.assertEqual(rows[1][:2] + rows[1][4:6], ["noise", "none (DiLoCo)", "", ""])
        self.assertEqual(rows[2][1], "clip")
        self.assertEqual(rows[2][4:8], ["-50.00 % [-50.00, -50.00]", "better, by 50.0 to 50.0 %", "1 of 8 (12.5 %)", "4 of 24 (16.7 %)"])

    def test_a_storm_is_compared_with_its_undisturbed_job(self):
        jobs = {seed: {"kills": 6, "loss": loss, "equal": "9 of 9"} for seed, loss in ((1, 1.0), (2, 1.0))}
        self.assertEqual(
            tables.evidence_storm({"edit": jobs})[1],
            ["edit", "2", "6", "+1.00 % [+1.00, +1.00]", "worse, by 1.0 to 1.0 %", "9 of 9"],
        )

    def test_sizes_show_differences_to_ddp(self):
        losses = {"ddp": {1: 1.0, 2: 1.0}, "edit": {1: 1.1, 2: 1.1}}
        rows = tables.evidence_sizes({"0.1M": losses}, ["ddp", "edit", "acco"])
        self.assertEqual(rows[1], ["0.1M", "+10.00 % [+10.00, +10.00]", ""])


class Tuning(unittest.TestCase):
    def test_expected_losses_and_bytes_are_those_of_the_baseline_of_a_row(self):
        def run(entry, lr, seed, loss, sent):
            row = {"entry": entry, "lr": lr, "seed": seed, "status": "done", "val_loss": loss, "bytes_per_token": sent}
            return {**row, "steps": "768", "params": "80112", "flags": "--local-sgd-warmup-steps 192"}

        report = [run("ddp", "1", 1, "2.0", "8"), run("ddp", "1", 2, "2.0", "8"), run("ddp", "2", 1, "1.0", "8")]
        report += [run("co2", "1", 1, "2.2", "2"), run("co2", "1", 2, "2.2", "2")]
        rows = tables.expect(tables.compared(report, ["co2"]))
        self.assertEqual(rows[1][:3], ["co2", "H = 16, 25 % synchronous", "80,112"])
        self.assertEqual(rows[1][3:5], ["ddp", "1, 1"])
        self.assertEqual(rows[1][6:], ["2", "+10.00 % [+10.00, +10.00]", "25.0 %"])

    def test_steps_over_a_link_are_told_by_load(self):
        runs_of = [("edit", "4", "70"), ("edit", "1", "60"), ("edit", "1", "64")]
        rows = tables.links([{"method": method, "load": load, "step_ms": ms} for method, load, ms in runs_of])
        self.assertEqual(rows, [["method", "load 1", "load 4"], ["edit", "62 (60 to 64)", "70"]])

    def test_rates_are_tried_until_the_best_is_not_the_last_on_its_side(self):
        for best, tried in ((2, 3), (1, 4), (0, 4), (3, 4), (4, 4)):
            losses = experiments.tuned(lambda rate: abs(RATES.index(rate) - best))
            self.assertEqual((min(losses, key=losses.get), len(losses)), (RATES[best], tried))
        self.assertIsNone(experiments.tuned(lambda rate: None if rate > 0.004 else rate))


class Evidence(unittest.TestCase):
    def test_all_methods_are_tuned_with_one_budget(self):
        plan = mock.Mock(at_tuning_seed=lambda _, settings: abs(float(settings.split()[1]) - 0.008))
        tried = {entry.name: evidence.tune(plan, entry) for entry in evidence.ENTRIES}
        self.assertEqual({count for _, count in tried.values()}, {6})  # 3 rates, 2 settings, a rise
        self.assertNotIn(evidence.TUNING_SEED, evidence.SMALL.seeds)

    def test_sizes_have_ten_tokens_for_a_parameter_and_one_validation_text(self):
        for size, params in ((evidence.TINY, 26_232), (evidence.SMALL, 107_800), (evidence.MIDDLE, 515_088), (evidence.LARGE, 1_944_096)):
            self.assertGreaterEqual(4 * size.rows * 64 * size.steps, 10 * params)
            for rows in (size.rows, size.rows // 2):
                words = size.model(rows).split()
                self.assertEqual(rows * int(words[words.index("--val-batches") + 1]), 1024)


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
                    for step in range(1, 241)
                    for replica in range(2)
                )
            )
        (self.top / "said").write_text("\n".join([*DECISIONS, "alas"]) + "\n")
        (self.top / "tools/entrain-run").write_text(
            f'#!/bin/sh\nall=$*\necho "$ENTRAIN_FAULT $*" >> {self.top}/calls\n'
            'case "$*" in *shuffle*) said=shuffled;; *) said=quiet;; esac\n'
            f'while [ $# -gt 0 ]; do\n  [ "$1" = --log ] && cp {self.top}/$said "$2"\n'
            f'  [ "$1" = --summary ] && echo \'{json.dumps(SUMMARY)}\' > "$2"\n  shift\ndone\n'
            f"cat {self.top}/said\n{end}\n"
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
                "--results",
                self.top / "kept",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self):
        return (self.top / "calls").read_text().splitlines()

    def in_process(self, experiment):
        """As above without processes, for experiments of many runs. Each call is (words, fault)."""
        calls = []

        def make(_, words, environment, __):
            if "storm.py" in words[1]:
                return STORM
            said = "shuffled" if "--shuffle-labels-every" in words else "quiet"
            shutil.copy(self.top / said, words[words.index("--log") + 1])
            pathlib.Path(words[words.index("--summary") + 1]).write_text(json.dumps(SUMMARY))
            calls.append((" ".join(words), environment.get("ENTRAIN_FAULT", "")))
            return "\n".join(DECISIONS)

        words = [str(SCRIPT), experiment, "--build", str(self.top), "--out", str(self.top / "out")]
        words += ["--results", str(self.top / "kept")]
        with (
            mock.patch.object(sys, "argv", [*words, "--data", str(self.top / "text")]),
            mock.patch.object(runs.Runs, "make", make),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            experiments.main()
        return calls

    def test_every_experiment_makes_its_runs_once_and_writes_tables(self):
        made = self.in_process("all")
        self.assertEqual(len({words for words, _ in made}), len(made))
        for name in (*experiments.EXPERIMENTS, "quality-parts", "gap-inner", "penalty-acts"):
            self.assertIn("|---|", (self.top / f"out/{name}.md").read_text())
        self.assertEqual(
            [fault for _, fault in made].count("rate=6.6760MB/s"), 12, "320448 bytes in 48 ms"
        )
        self.assertIn("| none (DiLoCo) | 3 | 0.5000 ", (self.top / "out/penalty.md").read_text())
        self.assertEqual(self.in_process("all"), [])
        self.copy_is_enough()

    def copy_is_enough(self):
        """Checks that a copy of these runs gives the same tables, and that changed flags are noticed."""
        args = argparse.Namespace(out=self.top / "out", data=self.top / "text", tables=True)
        finished = runs.TextRuns(args)
        for make in experiments.EXPERIMENTS.values():
            make(finished)
        runs.keep(finished, self.top / "copy")
        found = experiments.kept_tables(self.top / "copy")
        self.assertGreater(len(found), len(experiments.EXPERIMENTS))
        del found["methods"]  # is of another program
        for name, text in found.items():
            self.assertEqual(text, (self.top / f"out/{name}.md").read_text(), name)
        shutil.copytree(self.top / "copy", self.top / "kept")
        shutil.rmtree(self.top / "out")
        self.assertEqual(self.in_process("all"), [], "the copy has all runs")
        kept = self.top / "copy/runs.csv"
        kept.write_text(kept.read_text().replace("--method ddp", "--method dpp"))
        self.assertNotIn("quality", experiments.kept_tables(self.top / "copy"))

    def test_a_page_gets_its_tables(self):
        page = "a\n<!-- table x -->\nold\n<!-- end -->\nb\n<!-- table y -->\n<!-- end -->\n"
        self.assertEqual(
            experiments.with_tables(page, {"x": "new\n", "y": "| |\n"}),
            "a\n<!-- table x -->\nnew\n<!-- end -->\nb\n<!-- table y -->\n| |\n<!-- end -->\n",
        )
        with self.assertRaises(KeyError):
            experiments.with_tables(page, {"x": ""})

    def test_a_run_is_made_again_when_its_flags_are_others(self):
        where = {"build": self.top, "data": self.top / "text", "out": self.top / "out"}
        where["out"].mkdir()
        args = argparse.Namespace(**where, seconds=0, tables=False)
        with contextlib.redirect_stdout(io.StringIO()):
            for flags in ("--lr 1", "--lr 1", "--lr 2"):
                runs.TextRuns(args).get("one", flags)
        self.assertEqual(len(self.calls()), 2)

    def test_runs_for_which_there_is_no_time_are_left_for_another_call(self):
        done = self.call("delay", "--seconds", "7")  # each is expected to take longer
        self.assertEqual(done.returncode, 75)
        self.assertIn("9 runs are still to be made", done.stdout)
        self.assertFalse((self.top / "calls").exists())
        self.assertEqual(self.call("delay").returncode, 0)
        # Four rates of each of three methods, and 8, 8 and 3 seeds.
        self.assertEqual(len(self.calls()), 31)

    def test_a_run_that_fails_ends_it_and_leaves_no_result(self):
        self.answer("exit 3")
        done = self.call("delay")
        self.assertEqual(done.returncode, 1)
        self.assertIn("alas\nexperiments.py: exit code 3 of", done.stderr)
        self.assertEqual(len(self.calls()), 1)
        self.assertEqual(list(self.top.glob("out/*.flags")), [])

    def test_missing_programs_are_named(self):
        (self.top / "examples/trainer/entrain-train").unlink()
        done = self.call("delay")
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"there is no {self.top}/examples/trainer/entrain-train", done.stderr)


if __name__ == "__main__":
    unittest.main()
