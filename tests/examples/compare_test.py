"""Tests examples/compare.py: the flags that it gives to entrain-train, the figures that it computes from given records,
and the error lines for bad usage. The program in place of entrain-train only prints its help."""

import json
import math
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
import compare  # noqa: E402  (the path comes first)
import compare_plan as plans  # noqa: E402
import compare_tables as tables  # noqa: E402
import runs  # noqa: E402

HELP = """    --method TEXT:{ddp,edit,a-edit}=edit   ways
    --optimizer TEXT:{adamw,sgd}=adamw   steps"""


def records(losses, replicas=2, seconds=0.1):
    return [
        {
            "step": at + 1,
            "tokens": 10 * (at + 1),
            "seconds": seconds * (at + 1),
            "loss": loss + replica,
        }
        for at, loss in enumerate(losses)
        for replica in range(replicas)
    ]


def made(method, rate, seed, val_loss, losses=(3, 2)):
    summary = {"val_loss": val_loss, "ranks": 4, "tokens": 100, "wall_s": 8.0}
    summary |= {"bytes_sent_shard": 50.0, "bytes_sent_sync": 150.0, "exposed_comm_s": 2.0}
    run = tables.Run("name", 4, method, "adamw", rate, seed, summary=summary)
    run.points = tables.curve(records(losses))
    return run


class Tables(unittest.TestCase):
    def test_a_curve_is_the_mean_of_equal_parts_over_replicas(self):
        points = tables.curve(records([4, 2, 3, 1]), bins=2)
        self.assertEqual([point.tokens for point in points], [15, 35])
        self.assertEqual([point.loss for point in points], [3.5, 2.5])
        self.assertAlmostEqual(points[1].seconds, 0.35)

    def test_a_curve_has_no_more_points_than_steps(self):
        self.assertEqual(len(tables.curve(records([3, 2, 1]))), 3)

    def test_a_loss_that_is_no_number_stays_one(self):
        points = tables.curve([{"step": 1, "tokens": 1, "seconds": 1.0, "loss": None}])
        self.assertTrue(math.isnan(points[0].loss))

    def test_time_to_a_loss_lies_on_the_line_between_two_points(self):
        points = [tables.Point(0, 1.0, 4.0), tables.Point(0, 2.0, 2.0), tables.Point(0, 3.0, 3.0)]
        self.assertEqual(tables.seconds_to(points, 2.5), 1.75)
        self.assertEqual(tables.seconds_to(points, 9.0), 1.0)
        self.assertIsNone(tables.seconds_to(points, 1.0))

    def test_the_usual_target_is_one_that_all_reach(self):
        runs = [made("ddp", "1", 1, 2, (3, 2)), made("edit", "1", 1, 2, (3, 2.5))]
        target = tables.usual_target(runs)
        self.assertEqual(target, 3.0)  # the mean of both replicas at the end
        self.assertNotIn(None, [tables.seconds_to(run.points, target) for run in runs])
        self.assertIsNone(tables.usual_target([]))

    def test_costs_count_the_bytes_of_all_ranks(self):
        costs = tables.costs(made("ddp", "1", 1, 2), 2.5)
        self.assertEqual(costs["bytes_per_token"], 200.0 * 4 / 100)
        self.assertEqual(costs["exposed_share"], 0.25)

    def test_the_rate_with_the_best_mean_is_taken(self):
        runs = [made("ddp", "1", 1, 2.0), made("ddp", "1", 2, 3.0)]
        runs += [made("ddp", "2", 1, 2.2), made("ddp", "2", 2, 2.2)]
        runs += [made("ddp", "3", 1, 1.0)]  # the other seed is missing
        runs += [tables.Run("n", 4, "edit", "adamw", "1", 1, reason="no")]
        (entry,) = tables.entries(runs)
        self.assertEqual([run.rate for run in entry.runs], ["2", "2"])
        self.assertEqual(entry.tried, {"1": 2.5, "2": 2.2})
        self.assertEqual(entry.val_loss(), (2.2, 0.0))

    def test_a_rate_whose_loss_is_no_number_is_the_worst(self):
        runs = [made("ddp", "1", 1, None), made("ddp", "2", 1, 9.0)]
        self.assertEqual(tables.entries(runs)[0].runs[0].rate, "2")

    def test_colours_are_methods_and_dashes_optimizers_where_there_are_several_of_both(self):
        def looks(*keys):
            runs = [tables.Run("n", 4, *key, "1", 1, summary={"val_loss": 1}) for key in keys]
            return [(entry.label, entry.colour, entry.dash) for entry in tables.entries(runs)]

        self.assertEqual(
            looks(("ddp", "sgd"), ("ddp", "agd"), ("edit", "sgd"), ("edit", "agd")),
            [("ddp, sgd", 0, 0), ("ddp, agd", 0, 1), ("edit, sgd", 1, 0), ("edit, agd", 1, 1)],
        )
        self.assertEqual(looks(("ddp", "sgd"), ("edit", "sgd")), [("ddp", 0, 0), ("edit", 1, 1)])
        self.assertEqual(looks(("ddp", "sgd"), ("ddp", "agd")), [("sgd", 0, 0), ("agd", 1, 1)])

    def test_the_first_seeds_choose_the_rate_when_that_is_asked_for(self):
        runs = [made("ddp", "1", 1, 2.0), made("ddp", "2", 1, 1.9), made("ddp", "2", 2, 2.5)]
        later = [tables.Run("n", 4, "ddp", "adamw", rate, 2) for rate in ("1", "2")]
        self.assertEqual([tables.tuned_away(run, runs, 1) for run in later], [True, False])
        self.assertEqual([tables.tuned_away(run, runs, None) for run in later], [False, False])
        self.assertFalse(tables.tuned_away(runs[0], runs, 1))
        self.assertIsNone(tables.tuned_away(later[0], [], 1))
        (entry,) = tables.entries(runs, 1)
        self.assertEqual([run.summary["val_loss"] for run in entry.runs], [1.9, 2.5])
        self.assertEqual(entry.tried, {"1": 2.0, "2": 1.9})

    def test_differences_pair_seeds(self):
        base = tables.Entry(
            "ddp", [made("ddp", "1", 1, 2, (3, 2)), made("ddp", "1", 2, 2, (9, 7))], {}
        )
        own = tables.Entry(
            "edit", [made("edit", "1", 2, 2, (9.5, 8)), made("edit", "1", 1, 2, (3.5, 2))], {}
        )
        (_, first, deviation), (tokens, mean, _) = tables.difference(own, base)
        self.assertEqual((first, deviation, tokens, mean), (0.5, 0.0, 20, 0.5))


class Plans(unittest.TestCase):
    def setUp(self):
        # A variable of the library is an input of a run.
        others = {key: value for key, value in os.environ.items() if not key.startswith("ENTRAIN_")}
        environment = unittest.mock.patch.dict(os.environ, others, clear=True)
        environment.start()
        self.addCleanup(environment.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        for program in (runs.LAUNCHER, runs.TRAINER, "text"):
            (self.top / program).parent.mkdir(parents=True, exist_ok=True)
            (self.top / program).write_text(f"#!/bin/sh\ncat <<'END'\n{HELP}\nEND\n")
            (self.top / program).chmod(0o755)

    def plan(self, *words):
        options = ["--build", self.top, "--data", self.top / "text", "--out", self.top / "out"]
        return plans.Plan(*compare.parse([str(word) for word in [*options, *words]]))

    def flags(self, *words):
        return {run.name: " ".join(run.flags) for run in self.plan(*words).runs()}

    def test_without_arguments_every_method_has_three_seeds_on_four_ranks(self):
        found = self.flags()
        self.assertEqual(len(found), 9)
        self.assertEqual(
            found["n4-ddp-adamw-seed3"],
            f"--method ddp --optimizer adamw --seed 3 --tokens 768K {runs.MODEL}",
        )
        self.assertIn("--local-sgd-sync-time 0.2", found["n4-a-edit-adamw-seed1"])

    def test_rates_are_the_closest_that_are_given_and_all_of_a_grid(self):
        words = "--methods ddp,edit --optimizers adamw,sgd,sgd+wsam --seeds 1 --ranks 2".split()
        found = self.flags(*words, "--lr", "7,sgd=1e-2,sgd+wsam=2:3,edit/adamw=4")
        names = ["ddp-adamw-lr7", "ddp-sgd-lr1e-2", "ddp-sgd+wsam-lr2", "ddp-sgd+wsam-lr3"]
        names += ["edit-adamw-lr4", "edit-sgd-lr1e-2", "edit-sgd+wsam-lr2", "edit-sgd+wsam-lr3"]
        self.assertEqual(list(found), [f"n2-{name}-seed1" for name in names])
        self.assertIn(
            "--optimizer sgd --wsam decoupled --lr 3 ", found["n2-edit-sgd+wsam-lr3-seed1"]
        )

    def test_flags_given_more_closely_replace_others(self):
        words = ["--methods", "ddp,edit", "--optimizers", "sgd", "--seeds", "1", "--steps", "5"]
        words += ["--method-flags", "edit=--batch_size 8 --outer-nesterov"]
        words += ["--optimizer-flags", "sgd=--momentum 0.9 --batch-size 7", "--step-ms", "2"]
        found = self.flags(*words, "--", "--layers", "1", "--batch-size=6")
        model = "--hidden-size 48 --layers 1 --heads 3 --seq-length 64"
        start = "--optimizer sgd --seed 1 --steps 5 --step-ms 2"
        self.assertEqual(
            found["n4-ddp-sgd-seed1"],
            f"--method ddp {start} {model} --batch-size 7 --val-batches 256 --momentum 0.9",
        )
        self.assertEqual(
            found["n4-edit-sgd-seed1"],
            f"--method edit {start} {model} --batch-size 8 --val-batches 256 --momentum 0.9 "
            "--outer-nesterov",
        )

    def test_a_variant_is_a_method_with_flags_of_its_own(self):
        words = ["--variant", "soon=a-edit --min-total-global-steps 9 --x 1", "--methods", "soon"]
        words += ["--optimizers", "sgd+wsam-coupled", "--seeds", "1", "--steps", "5"]
        found = self.flags(*words, "--method-flags", "soon=--x 2", "--", "--task", "digits")
        self.assertEqual(
            found,
            {
                "n4-soon-sgd+wsam-coupled-seed1": "--method a-edit --optimizer sgd --wsam coupled "
                "--seed 1 --steps 5 --task digits --local-sgd-sync-time 0.2 "
                "--min-total-global-steps 9 --x 2"
            },
        )

    def test_a_fault_is_an_environment_of_the_ranks(self):
        self.assertEqual(self.plan("--fault", "rate=1MB/s").environment()["ENTRAIN_FAULT"], "rate=1MB/s")

    def test_bad_usage_names_argument_and_value(self):
        known = "ddp, edit, a-edit"
        for words, line in (
            (["--methods", "ddp,best"], f"--methods: 'best' is not one of {known}"),
            (["--methods", "ddp,ddp"], "--methods: 'ddp' is there twice"),
            (
                ["--optimizers", "adam"],
                "--optimizers: 'adam' is not one of adamw, sgd, adamw+wsam, sgd+wsam, "
                "adamw+wsam-coupled, sgd+wsam-coupled",
            ),
            (["--ranks", "2,0"], "--ranks: '0' is not a whole number from 1 to 999999"),
            (["--ranks", "2,2"], "--ranks: a number is there twice in '2,2'"),
            (
                ["--ranks", "4,3", "--shard-size", "2"],
                "--shard-size: 2 does not divide the 3 of --ranks",
            ),
            (["--seeds", "three"], "--seeds: 'three' is not a whole number from 1 to 999999"),
            (["--tune-seeds", "4"], "--tune-seeds: 4 is more than the 3 of --seeds"),
            (["--tokens", "1.5M"], "--tokens: '1.5M' is not a positive number"),
            (["--steps", "5K"], "--steps: '5K' is not a positive number"),
            (
                ["--lr", "sgd=1"],
                "--lr: 'sgd' is not in the lists ddp,edit,a-edit and adamw, nor "
                "METHOD/OPTIMIZER of them",
            ),
            (["--lr", "adamw=1:fast"], "--lr: 'fast' in 'adamw=1:fast' is not a positive number"),
            (["--variant", "soon"], "--variant: 'soon' is not NAME=METHOD FLAGS"),
            (["--variant", "ddp=edit"], "--variant: 'ddp' is the name of a method already"),
            (["--variant", "a=b"], f"--variant: 'b' of 'a' is not one of {known}"),
            (["--method-flags", "edit"], "--method-flags: 'edit' is not NAMES=FLAGS"),
            (
                ["--methods", "ddp", "--method-flags", "edit=--x"],
                "--method-flags: 'edit' is not in the list ddp",
            ),
            (["--method-flags", "edit=--seed 3"], "--method-flags: --seed is set by --seeds"),
            (
                ["--", "--wsam", "coupled"],
                "flags behind --: --wsam is set by --optimizers NAME+wsam or " "NAME+wsam-coupled",
            ),
            (["--", "layers", "3"], "flags behind --: 'layers' is not a flag of entrain-train"),
        ):
            with self.assertRaises(plans.BadUsage, msg=words) as caught:
                self.plan(*words)
            self.assertEqual(str(caught.exception), line)

    def test_a_run_is_kept_for_the_same_programs_only(self):
        def kept(programs):
            plan = self.plan("--methods", "ddp", "--seeds", "1", "--tables")
            (run,) = wanted = plan.runs()
            left_out = compare.make_all(plan, wanted, programs)
            return left_out, run

        _, run = kept("one")
        folder = self.top / "out/runs"
        summary = made("ddp", "", 1, 2.0).summary
        (folder / f"{run.name}.json").write_text(json.dumps(summary))
        (folder / f"{run.name}.jsonl").write_text("\n".join(map(json.dumps, records([2, 1]))))
        self.assertEqual(kept("one")[0], 1)  # not without the file that is written last
        text = compare.hashlib.sha256((self.top / "text").read_bytes()).hexdigest()[:12]
        besides = ["ranks=4", f"text={text}", "programs=one"]
        (folder / f"{run.name}.flags").write_text(
            compare.shlex.join([*run.flags, "--data", str(self.top / "text"), *besides]) + "\n"
        )
        self.assertEqual(kept("one")[1].summary, summary)
        self.assertEqual(kept("two")[0], 1)


if __name__ == "__main__":
    unittest.main()
