#!/usr/bin/env python3
"""Trains while replicas are killed and stopped at random, and compares the loss with an undisturbed run at equal tokens.

A job is two runs of the trainer. In the first one, replicas are killed (SIGKILL) at random steps, and with --replace started again; others are
stopped for a time (SIGSTOP). A stopped replica that the others have given up ends when it wakes up, and is started again too.
The second one keeps all replicas and trains on the same number of tokens. A job is good if no process except the killed
ones fails, and if the validation loss of the first run exceeds that of the second by --limit % at most. (The library
itself compares the anchors of the replicas at each exchange, and fails if they differ.)

    tests/churn.py --train build/dev/examples/trainer/entrain-train                           the job that CTest runs
    tests/churn.py --train build/dev/examples/trainer/entrain-train --methods edit,diloco --replace --jobs 4
    tests/churn.py --train build/release/examples/trainer/entrain-train --hours 4 --steps 4000   jobs with new seeds for 4 hours

    tests/churn.py --train build/dev/examples/trainer/entrain-train --replace --any --kills 12 --save-every 8 --eval-every 16

Without --any, rank 0 is never killed.
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 600.0  # for a run to make its next step
MODEL = "--hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --lr 0.004 --val-batches 256".split()
TOKENS_A_STEP = 32 * 4  # of one rank
METHODS = {
    "edit": "--on-loss finish --local-sgd-sync-interval 4 --local-sgd-warmup-steps 4".split(),
    "diloco": "--on-loss finish --local-sgd-sync-interval 8".split(),
    "acco": "--on-loss finish".split(),
    "zero1": "--on-loss finish".split(),
}
REPLACE = "--admit exchange".split()  # members take in newcomers; ENTRAIN_RESTARTS makes a rank one


def text_of_tree(path):
    """Returns the training text: the pages and headers of this tree."""
    tree = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    with open(path, "w", encoding="utf-8") as text:
        for pattern in ("docs/*.md", "docs/lab/*.md", "include/entrain/*.h"):
            for name in sorted(glob.glob(os.path.join(tree, pattern))):
                with open(name, encoding="utf-8") as page:
                    text.write(page.read())


class Run:
    """One run of the trainer, in a directory of its own."""

    def __init__(self, directory, method, length, options, seed, replace=False):
        self.directory, self.method, self.length, self.options, self.seed = directory, method, length, options, seed
        self.replace = replace
        self.processes, self.killed, self.restarts = {}, [], {}
        self.given_up = 0  # stopped replicas that have ended when they woke up
        os.makedirs(os.path.join(directory, "store"))

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, rank, restarts=0):
        ranks = str(self.options.replicas)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ENTRAIN_")}
        environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, OMP_NUM_THREADS="1",
                           OPENBLAS_NUM_THREADS="1", ENTRAIN_STORE="file:" + self.path("store"), ENTRAIN_TIMEOUT=self.options.deadline)
        if restarts:
            environment["ENTRAIN_RESTARTS"] = str(restarts)
        if self.options.transports:
            environment["ENTRAIN_TRANSPORTS"] = self.options.transports
        flags = ["--method", self.method, *MODEL, *METHODS[self.method], *self.length, "--seed", str(self.seed), "--data", self.options.data,
                 "--log", self.path("log"), "--summary", self.path("summary")]
        with open(self.path(f"rank{rank}-{restarts}"), "wb") as said:
            self.processes[rank] = subprocess.Popen([self.options.train, *flags, *self.joining()],
                                                    env=environment, stdin=subprocess.DEVNULL, stdout=said,
                                                    stderr=subprocess.STDOUT)

    def joining(self):
        warmup = self.options.newcomer_warmup
        return [*REPLACE, *(["--newcomer-warmup", str(warmup)] if warmup else [])] if self.replace else []

    def records(self):
        if not os.path.exists(self.path("log")):
            return []
        with open(self.path("log"), encoding="utf-8") as log:
            return [(int(step), int(replica)) for step, replica in re.findall(r'"step":(\d+),"replica":(\d+)', log.read())]

    def reaches(self, step):
        """Waits. Returns True when a replica has made this step, False when the run has ended."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            if any(at >= step for at, _ in self.records()):
                return True
            if all(process.poll() is not None for process in self.processes.values()):
                return False
            self.replace_those_that_gave_up()
            time.sleep(0.05)
        raise RuntimeError(f"no step {step} after {PATIENCE_S:.0f} s")

    def train(self, kills):
        """`kills`: what draw_kills returns."""
        try:
            for rank in range(self.options.replicas):
                self.start(rank)
            for step, rank, stopped_s in kills:
                if not self.reaches(step) or (self.replace and not self.leaves_a_member(rank)):
                    break
                if stopped_s:
                    self.processes[rank].send_signal(signal.SIGSTOP)
                    time.sleep(stopped_s)  # the fault lasts so long
                    self.processes[rank].send_signal(signal.SIGCONT)
                    self.killed.append((step, rank))
                    continue
                self.processes[rank].kill()
                self.processes[rank].wait()
                self.killed.append((step, rank))
                if self.replace:
                    self.start_again(rank)
            give_up = time.monotonic() + PATIENCE_S
            while any(each.poll() is None and not self.waits(rank) for rank, each in self.processes.items()):
                if time.monotonic() > give_up:
                    raise RuntimeError(f"the run has not ended after {PATIENCE_S:.0f} s")
                self.replace_those_that_gave_up()
                time.sleep(0.05)
            dead = {rank for _, rank in self.killed} if not self.replace else set()
            for rank, process in sorted(self.processes.items(), key=lambda each: self.waits(each[0])):
                if self.waits(rank):
                    continue
                if process.wait(PATIENCE_S) != 0 and rank not in dead and not self.was_left_out(rank):
                    raise RuntimeError(f"rank {rank} ended with {process.returncode}: {self.last_line(rank)}")
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def leaves_a_member(self, rank):
        """Waits until a replica besides `rank` trains with the others: a run that loses all members at once is over. Returns
        False when the run has ended."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            self.replace_those_that_gave_up()
            steps = {}
            for at, replica in self.records():
                steps[replica] = max(at, steps.get(replica, 0))
            latest = max(steps.values(), default=0)
            if any(other != rank and process.poll() is None and latest - steps.get(other, 0) < 12 and not self.waits(other)
                   for other, process in self.processes.items()):
                return True
            if all(process.poll() is not None for process in self.processes.values()):
                return False
            time.sleep(0.05)
        raise RuntimeError("no replica has taken the place of a lost one")

    def start_again(self, rank):
        self.restarts[rank] = self.restarts.get(rank, 0) + 1
        self.start(rank, self.restarts[rank])

    def replace_those_that_gave_up(self):
        """A replica that was stopped for longer than the deadline ends when it wakes up, or, of two, the other one."""
        for rank, process in self.processes.items():
            if self.options.stops and self.replace and process.poll() not in (None, 0):
                self.given_up += 1
                self.start_again(rank)

    def said(self, rank):
        with open(self.path(f"rank{rank}-{self.restarts.get(rank, 0)}"), encoding="utf-8", errors="replace") as said:
            return said.read()

    def waits(self, rank):
        """Returns True for a rank that was restarted so late that the others have ended without it."""
        return rank in self.restarts and " joins\n" not in self.said(rank)

    def was_left_out(self, rank):
        """Returns True for a rank that was stopped, and has learned that the others went on and have ended without it."""
        ended = any(each.poll() == 0 for each in self.processes.values())
        return self.options.stops > 0 and ended and " is left out of " in self.last_line(rank)

    def last_line(self, rank):
        lines = self.said(rank).splitlines()
        return lines[-1] if lines else ""

    def tokens(self):
        """Returns the tokens of all replicas, including those that were killed: each step of a replica is one record.
        For ACCO it returns the committed tokens."""
        return self.summary()["tokens"] if self.method == "acco" else len(set(self.records())) * TOKENS_A_STEP

    def summary(self):
        with open(self.path("summary"), encoding="utf-8") as summary:
            return json.load(summary)

    def loss(self):
        return self.summary()["val_loss"]


def draw_kills(seed, options):
    """Draws steps, ranks, and for how many seconds the rank is stopped (0: it is killed), within options.between.
    Without replacement no rank is killed twice."""
    chosen = random.Random(seed)
    first, last = (int(options.steps * float(percent) / 100) for percent in options.between.split(","))
    steps = sorted(chosen.randrange(first, last) for _ in range(options.kills))
    others = range(0 if options.any else 1, options.replicas)
    ranks = [chosen.choice(others) for _ in steps] if options.replace else chosen.sample(others, options.kills)
    kills = list(zip(steps, ranks, [0] * len(steps)))
    for _ in range(options.stops):
        step = chosen.randrange(first, last)
        kills.append((step, chosen.choice(others), chosen.uniform(options.stop_s / 2, options.stop_s * 1.5)))
    return sorted(kills)


def job(directory, method, seed, options):
    """Runs a job and prints a line. Returns True if the job is good."""
    saves = ["--save-dir", os.path.join(directory, "saves"), "--save-every", str(options.save_every)] if options.save_every else []
    saves += ["--eval-interval", str(options.eval_every)] if options.eval_every else []
    rate = ["--step-ms", str(options.step_ms)] if options.step_ms else []
    disturbed = Run(os.path.join(directory, "disturbed"), method, ["--steps", str(options.steps), *saves, *rate], options, seed, options.replace)
    disturbed.train(draw_kills(seed, options))
    tokens = disturbed.tokens()
    whole = Run(os.path.join(directory, "whole"), method, ["--tokens", str(tokens), *rate], options, seed)
    whole.train([])
    ratio = disturbed.loss() / whole.loss()
    good = 100 * (ratio - 1) <= options.limit
    killed = ", ".join(f"rank {rank} after step {step}" for step, rank in disturbed.killed)
    if options.stops:
        killed += f" ({options.stops} of them stopped; {disturbed.given_up} ended after that)"
    print(f"{method}, seed {seed}: killed {killed}; {tokens} tokens: loss {disturbed.loss():.4f}, undisturbed {whole.loss():.4f}: "
          f"{100 * (ratio - 1):+.2f} %" + ("" if good else f", {options.limit:g} % at most"), flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="the program entrain-train")
    parser.add_argument("--data", help="another text; default: the pages and headers of this tree")
    parser.add_argument("--methods", default="edit", help="with commas between them: " + ", ".join(METHODS))
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--between", default="10,90", help="percent of the steps, between which replicas are killed and stopped")
    parser.add_argument("--stops", type=int, default=0, help="how often a replica is stopped")
    parser.add_argument("--stop-s", type=float, default=5, help="for about so many seconds, half more or less")
    parser.add_argument("--deadline", default="60s", help="ENTRAIN_TIMEOUT")
    parser.add_argument("--replace", action="store_true", help="each killed replica is started again and joins the others")
    parser.add_argument("--newcomer-warmup", type=int, default=0, help="exchanges over which the weight of a started one grows")
    parser.add_argument("--limit", type=float, default=2, help="of the loss, in %% above that of the undisturbed run")
    parser.add_argument("--save-every", type=int, default=0, help="steps after which the run with kills saves a checkpoint; 0: none")
    parser.add_argument("--eval-every", type=int, default=0, help="steps after which the run with kills evaluates; 0: at its end")
    parser.add_argument("--any", action="store_true", help="kills rank 0 too")
    parser.add_argument("--step-ms", type=float, default=0, help="the least time of a step")
    parser.add_argument("--steps", type=int, default=400, help="of the run with kills")
    parser.add_argument("--transports", help="as ENTRAIN_TRANSPORTS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="of each method, each with a seed of its own")
    parser.add_argument("--hours", type=float, default=0, help="begins new jobs for so long, in place of --jobs")
    options = parser.parse_args()
    if not options.replace and options.kills > options.replicas - (0 if options.any else 1):
        parser.error(f"--kills {options.kills}: without --replace, each of {options.replicas} ranks at most once, and rank 0 only with --any")
    if not options.replace and options.kills == options.replicas:
        parser.error(f"--kills {options.kills}: would leave none of {options.replicas} ranks")
    options.train = os.path.abspath(options.train)
    directory = tempfile.mkdtemp(prefix="entrain-churn-")
    begun, number, bad = time.monotonic(), 0, 0
    try:
        if not options.data:
            options.data = os.path.join(directory, "text")
            text_of_tree(options.data)
        while number < options.jobs or time.monotonic() - begun < options.hours * 3600:
            for method in options.methods.split(","):
                place = os.path.join(directory, f"{method}{number}")
                bad += not job(place, method, options.seed + number, options)
                shutil.rmtree(place)
            number += 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{number} jobs of {options.methods} in {time.monotonic() - begun:.0f} s, {bad} not good")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
