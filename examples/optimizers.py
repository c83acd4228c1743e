"""Compares the optimizers of entrain-train on text and on digits: an experiment of
experiments.py. experiment_tables.py makes the tables.

Every optimizer is tuned in the same way. Learning rates are 0.001 * 2^k; k is the rung of the rate.
First, three rungs around a guess are run with all seeds. While the best rung is the lowest or the
highest, the next rung on that side is run too. At the end the best rung has a worse rung on either
side."""

import argparse
import json
import pathlib
import statistics
import subprocess

import experiment_tables as tables
from runs import RunFailed, Runs

RANKS = 2
RHOS = (0.05, 0.5)  # where sharpness is measured; the first is WSAM's own rho
WSAM = "--wsam decoupled --wsam-rho 0.05 --wsam-gamma 0.9"
# The flags, and the guess k.
PLAIN = {
    "AdamW": ("--optimizer adamw", 3),
    "AGD": ("--optimizer agd", 0),
    "AGD, delta 1e-5": ("--optimizer agd --agd-delta 1e-5", 0),
    "SGD, momentum 0.9": ("--optimizer sgd --momentum 0.9", 8),
}
AROUND = ("AdamW", "AGD", "SGD, momentum 0.9")  # the optimizers that WSAM wraps
TEXT_MODEL = (
    "--hidden-size 48 --layers 2 --heads 3 --seq-length 64 --batch-size 8 --val-batches 128"
)
TASKS = {
    # flags, steps, seeds, seconds of a run at most
    "text": (TEXT_MODEL, 512, 3, 9.0),
    "digits": ("--task digits --hidden-size 64 --layers 2 --batch-size 16", 450, 8, 1.0),
}


def rate(rung):
    return 0.001 * 2.0**rung


def contestants(steps):
    """Returns {name: (flags, guess, steps, gradients per step)}."""
    chosen = {name: (flags, guess, steps, 1) for name, (flags, guess) in PLAIN.items()}
    for name in AROUND:
        flags, guess = PLAIN[name]
        chosen[f"WSAM, {name}"] = (f"{flags} {WSAM}", guess, steps, 2)
    for name in AROUND:
        flags, guess = PLAIN[name]
        chosen[f"WSAM, {name}, half the steps"] = (f"{flags} {WSAM}", guess, steps // 2, 2)
    return chosen


def fewest_runs(task):
    steps, seeds = TASKS[task][1:3]
    return len(contestants(steps)) * 3 * seeds


def tune(guess, losses_at):
    """Returns the best rung and {rung: losses}, or None if losses are not known. losses_at returns
    the losses of a rung, or None if they are not known."""

    def merit(rung):  # among equal rungs, prefers the rung next to the guess
        return statistics.mean(known[rung]), abs(rung - guess)

    known = {}
    missing = [guess - 1, guess, guess + 1]
    while missing:
        for rung in missing:
            known[rung] = losses_at(rung)
        if None in known.values():
            return None
        best = min(known, key=merit)
        missing = [rung for rung in (best - 1, best + 1) if rung not in known]
    return best, known


class TunedRuns(Runs):
    """Runs of one task. A run whose loss is not finite is a result, too."""

    def __init__(self, runs, data):
        """Continues the progress count of `runs`."""
        super().__init__(argparse.Namespace(**{**vars(runs.args), "data": data}), runs.total)
        self.began, self.seen, self.left_out = runs.began, runs.seen, runs.left_out

    def make(self, words, environment):
        try:
            return super().make(words, environment)
        except RunFailed as failed:
            if "the loss is not finite" not in failed.output:
                raise
            summary = pathlib.Path(words[words.index("--summary") + 1])
            summary.write_text(json.dumps({"val_loss": None}))
            return failed.output


def write_digits(path):
    """Writes the trainer's input. Runs Debian's own Python, which has Debian's packages."""
    if not path.exists():
        script = pathlib.Path(__file__).parent / "digits.py"
        done = subprocess.run(
            ["/usr/bin/python3", script, path], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RunFailed(["/usr/bin/python3", str(script), str(path)], "no digits", done.stderr)
    return path


def compare(task, runs):
    """Returns the rows of the table, or None while runs are missing."""
    common, steps, seeds, longest_s = TASKS[task]
    data = runs.args.data if task == "text" else write_digits(runs.args.out / "digits.txt")
    own = TunedRuns(runs, data)

    def name_of(contestant, rung, seed):
        slug = contestant.lower().replace(", ", "-").replace(" ", "-")
        return f"optimizers-{task}-{slug}-lr{rate(rung):g}-seed{seed}"

    results = []
    for name, (flags, guess, own_steps, gradients) in contestants(steps).items():
        summaries = {}

        def losses_at(rung):
            own.total += seeds if abs(rung - guess) > 1 else 0
            for seed in range(1, seeds + 1):
                words = f"{common} --method ddp {flags} --weight-decay 0 --steps {own_steps}"
                words += f" --lr {rate(rung):g} --seed {seed}"
                words += " --sharpness-rho " + ",".join(f"{rho:g}" for rho in RHOS)
                run = name_of(name, rung, seed)
                summaries[rung, seed] = own.get(run, words.split(), longest_s, RANKS)
            made = [summaries[rung, seed] for seed in range(1, seeds + 1)]
            if None in made:
                return None
            return [tables.loss_or_infinity(summary) for summary in made]

        tuned = tune(guess, losses_at)
        if tuned is None:
            continue
        best, losses = tuned
        results.append(
            {
                "name": name,
                "steps": own_steps,
                "gradients": own_steps * gradients,
                "rate": rate(best),
                "losses": [losses[rung] for rung in (best - 1, best, best + 1)],
                "summaries": [summaries[best, seed] for seed in range(1, seeds + 1)],
                "records": [own.records(name_of(name, best, seed)) for seed in range(1, seeds + 1)],
            }
        )
    runs.total, runs.seen, runs.left_out = own.total, own.seen, own.left_out
    complete = results and results[0]["name"] == next(iter(PLAIN))
    return tables.optimizers(results, RHOS) if complete else None
