#!/usr/bin/env python3
"""A storm: trains while replicas are killed, stopped and cut off at random, and compares with an undisturbed run at equal tokens.

A job is two runs of the trainer, each under a supervisor of its own that starts one process for each replica. In the first one the
faults come at random moments (a Poisson process for each kind, from the seed). A replica that was killed, or that has ended with
an error, is started again and joins the others. The second run has no faults, and trains on the same number of tokens, at the
same --step-ms, with the same --save-every and --eval-interval. It takes as long as the first one. A job is good if it comes to its
end, nothing is left over, every checkpoint loads, no process begins anew, all anchors are equal, and its loss exceeds that of the
undisturbed run by --limit % at most.

    tests/storm.py --train build/dev/examples/trainer/entrain-train                         one minute, a kill every 15 s
    tests/storm.py --train ... --methods edit,diloco,acco --setup tls --replicas 8 --hours 2 --kills-per-hour 60 --cuts-per-hour 30
    tests/storm.py --train ... --setup launcher --run build/dev/tools/entrain-run --holder-kills-per-hour 60
    tests/storm.py --train ... --steps 300 --kills 4 --save-every 8 --eval-interval 20      4 kills at random steps, without a clock
    tests/storm.py --train ... --moments 40                                                 kills at the moments of storms/moments.py

--setup names where the replicas run (storms/places.py). To add a method, add a row to METHODS in storms/job.py.

Faults      kill     SIGKILL of a replica, the first one too
            stop     SIGSTOP of a replica for a time within --lengths, then SIGCONT
            cut      the cable of a replica's network namespace is down for such a time (tls)
            holder   SIGKILL of entrain-run (launcher), which is started again with --resume latest after such a time; of a member of etcd
A fault waits while it would leave no replica that trains: the run would then go back to a checkpoint. Where replicas are stopped, cut or
on other hosts, it waits while it would leave no majority. Of two replicas one is struck all the same.

The row at the end
  efficiency   micro-batches that an exchange has counted within the storm, divided by those that the undisturbed run makes in this time.
               The storm begins when all replicas have made a step. Steps that a checkpoint of the launcher's job has undone are not counted
  of the rest  the same, divided by what the struck replicas leave: the time in which they were stopped, cut, or killed and not yet started
               again is taken away from the undisturbed run
  next round   time from a kill to the first exchange in a step that a survivor has begun after it; median and worst
  back         time from a kill until an exchange counts the victim's own steps again; median and worst
  equal        exchanges whose anchors were logged by at least two replicas; all must be equal. The library compares them too. A channel
               (acco) logs no anchors
  ended        replicas that ended with an error after a stop or a cut; others that ended with an error, of them members (not newcomers)
  resumed      how often the whole job has continued from a checkpoint: after a kill of the launcher, or because no replica was left
  growth       open descriptors and memory of the longest-living process, after its first exchange and at the end

The files of a job that is not good are kept; the last line names their directory. The exit status is then 1; it is 77 where this machine lacks
what the setup needs. Slow disks are not among the faults: only a device or a file system of its own would slow the saves of a process."""

import argparse
import dataclasses
import glob
import os
import random
import shutil
import signal
import sys
import tempfile
import time

from storms import judge, moments
from storms.job import METHODS, Job, Lost
from storms.places import PLACES, TREE, CannotRun

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KINDS = ("kill", "stop", "cut", "holder")
HEAD = ("method", "replicas", "setup", "minutes", "kills / stops / cuts / holder", "efficiency", "of the rest", "next round", "back",
        "loss", "equal", "ended", "resumed", "growth", "checkpoints")


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    length: float  # seconds
    at: float  # seconds since the begin of the storm, or a step
    by_step: bool


def draw_faults(options, chosen):
    """Draws the faults of a job: by rates, and by numbers at random steps. Ranks that stay away are killed once at most."""
    ranks = [rank for rank in range(options.replicas) if rank != options.spare]
    low, high = map(float, options.lengths.split(","))
    faults = []
    for kind in KINDS:
        rate, at = getattr(options, kind + "s_per_hour" if kind != "holder" else "holder_kills_per_hour"), 0.0
        while rate and (at := at + chosen.expovariate(rate / 3600)) < options.minutes * 60:
            faults.append(Fault(kind, -1 if kind == "holder" else chosen.choice(ranks), chosen.uniform(low, high), at, False))
    first, last = (options.steps * float(percent) / 100 for percent in options.between.split(","))
    for kind in ("kill", "stop", "cut"):
        number = getattr(options, kind + "s")
        victims = chosen.sample(ranks, number) if options.stay_away and kind == "kill" else [chosen.choice(ranks) for _ in range(number)]
        faults += [Fault(kind, rank, chosen.uniform(low, high), int(chosen.uniform(first, last)), True) for rank in victims]
    return sorted(faults, key=lambda fault: fault.at)


def weather(job, faults, options, chosen):
    """Runs a job to its end while the faults strike it. Returns the faults for which there was no moment."""
    ends = []  # (time, strike)
    job.start_all()
    while not job.over():
        job.watch()
        now = time.monotonic()
        for entry in [entry for entry in ends if entry[0] <= now]:
            ends.remove(entry)
            job.undo(entry[1])
        since = now - job.window_begun if job.window_begun else -1.0
        over = not options.steps_given and since > options.minutes * 60
        for fault in faults:
            if not over and (job.step() if fault.by_step else since) >= fault.at and job.may(fault.kind, fault.rank):
                faults.remove(fault)
                strike = job.strike(fault.kind, fault.rank, chosen)
                if fault.kind != "kill":
                    ends.append((now + fault.length, strike))
                break
        time.sleep(0.02)  # the rate at which the logs are read
    return faults


def run(place, method, length, options, seed, directory, faults):
    """Runs a job in a place of its own. Returns it."""
    os.makedirs(directory)
    before = judge.shared_memory()
    here = place(directory, options)
    job = Job(here, method, length, options, seed, directory)
    try:
        try:
            job.no_moment = weather(job, list(faults), options, random.Random(seed))
        finally:
            job.close()
            here.close()
    except Lost as lost:
        job.lost = str(lost)
    job.left = judge.leftovers(job, before)
    return job


def row_of(method, job, whole, options):
    """Returns the cells of the table, and a line for each thing that is wrong."""
    wrong = [f"left over: {each}" for each in job.left + whole.left] + judge.begun_anew(job)
    number, bad = judge.unreadable(job, job.saves)
    compared, unequal = judge.anchors(job)
    wrong += bad + [f"anchors differ at step {step}" for step in unequal]
    wrong += [f"no moment for a {fault.kind} of rank {fault.rank} after step {fault.at}" for fault in job.no_moment if fault.by_step]
    members = [f"rank {rank}, a {kind} that nobody had struck, ended with {text}" for kind, rank, text in job.ended_unstruck]
    silent = any(strike.kind in ("stop", "cut", "holder") for strike in job.strikes)
    wrong += [line for line in members if " member " in line and not silent]
    loss = 100 * (judge.summary(job)["val_loss"] / judge.summary(whole)["val_loss"] - 1)
    wrong += [f"the loss is {loss:.2f} % above that of the undisturbed run, {options.limit:g} % at most"] if loss > options.limit else []
    begun, ended = judge.window_of(job, options.minutes * 60)
    plain, rest = judge.efficiency(job, options.minutes * 60, judge.pace(whole))
    kills = [strike for strike in job.strikes if strike.kind == "kill"]
    counts = " / ".join(str(sum(strike.kind == kind for strike in job.strikes)) for kind in KINDS)
    cells = [method, str(options.replicas), options.setup, f"{(ended - begun) / 60:.1f}",
             f"{counts} ({len(job.strikes) * 3600 / (ended - begun):.0f} an hour)", f"{plain:.1f} %", f"{rest:.1f} %",
             judge.middle_and_worst([judge.next_round(job, strike) for strike in kills]),
             judge.middle_and_worst([judge.counted_again(job, strike) for strike in kills]), f"{loss:+.2f} %",
             f"{compared - len(unequal)} of {compared}" if compared else "–",
             f"{job.ended_after}; {len(members)}, {sum(' member ' in line for line in members)} members", str(len(job.resumed)), judge.growth(job),
             f"{number}, {len(bad)} bad"]
    return cells, wrong, members


def storm(method, seed, options, directory):
    """Runs a job, and the undisturbed one. Prints what is wrong, and returns the row of the table, or None, and if all is good."""
    chosen = random.Random(seed)
    place, faults = PLACES[options.setup], draw_faults(options, chosen)
    job = run(place, method, ["--steps", str(options.steps)], options, seed, os.path.join(directory, "storm"), faults)
    whole = job
    if not job.lost:
        whole = run(place, method, ["--tokens", str(judge.tokens(job))], options, seed, os.path.join(directory, "undisturbed"), [])
    for each, name in ((job, "the job in the storm"), (whole, "the undisturbed job")):
        if each.lost:
            print(f"{method}, seed {seed}: {name} is lost: {each.lost}", *judge.strikes(job), *judge.last_lines(each), sep="\n  ", flush=True)
            return None, False
    cells, wrong, remarks = row_of(method, job, whole, options)
    for line in [*wrong, *(line for line in remarks if line not in wrong)]:
        print(f"{method}, seed {seed}: {line}", flush=True)
    if wrong:
        print(*judge.strikes(job), *judge.last_lines(job), sep="\n  ", flush=True)
    return cells, not wrong


def text_of_tree(path):
    """Writes the training text: the pages and headers of this tree."""
    with open(path, "w", encoding="utf-8") as text:
        for pattern in ("docs/*.md", "docs/lab/*.md", "include/entrain/*.h"):
            for name in sorted(glob.glob(os.path.join(TREE, pattern))):
                with open(name, encoding="utf-8") as page:
                    text.write(page.read())


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--train", required=True, help="the program entrain-train")
    add("--run", default="", help="the program entrain-run, for --setup launcher")
    add("--etcd", default="", help="the folder of the program etcd, if it is neither in PATH nor in build/etcd")
    add("--data", help="another text; default: the pages and headers of this tree")
    add("--methods", default="edit", help="with commas between them: " + ", ".join(METHODS))
    add("--setup", default="shm", choices=PLACES)
    add("--replicas", type=int, default=4)
    add("--minutes", type=float, default=1, help="length of the storm")
    add("--hours", type=float, default=0, help="the same, in hours")
    add("--steps", type=int, default=0, help="length of the run, in place of --minutes")
    for kind, rate in (("kill", 240), ("stop", 0), ("cut", 0), ("holder-kill", 0)):
        add(f"--{kind}s-per-hour", type=float, help=f"rate of this fault ({rate}; 0 with --steps)")
    for kind in ("kill", "stop", "cut"):
        add(f"--{kind}s", type=int, default=0, help="number of these faults, at random steps within --between")
    add("--between", default="10,90", help="percent of the steps (%(default)s)")
    add("--lengths", default="5,20", help="least and greatest seconds of stops, cuts and of the time without a holder (%(default)s)")
    add("--spare", type=int, default=-1, help="a rank that no fault strikes")
    add("--stay-away", action="store_true", help="no killed replica is started again")
    add("--newcomer-warmup", type=int, default=0, help="exchanges over which the weight of a started one grows")
    add("--deadline", default="60s", help="ENTRAIN_TIMEOUT, in seconds (%(default)s)")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the replicas, as ENTRAIN_TRANSPORTS=tcp; may be repeated")
    add("--step-ms", type=float, default=50, help="the least time of a step (%(default)s)")
    add("--save-every", type=int, default=100, help="steps; 0: no checkpoints (%(default)s)")
    add("--eval-interval", type=int, default=200, help="steps; 0: only at the end (%(default)s)")
    add("--keep", type=int, default=3, help="checkpoints that stay (%(default)s)")
    add("--checkpoint-kind", default="portable", choices=("portable", "exact"), help="(%(default)s)")
    add("--limit", type=float, default=5, help="of the loss, in %% above that of the undisturbed run (%(default)s)")
    add("--seed", type=int, default=1)
    add("--jobs", type=int, default=1, help="of each method, each with a seed of its own")
    add("--moments", type=int, default=0, help="this number of kills at chosen moments, in place of a storm")
    options = parser.parse_args()
    options.minutes = options.hours * 60 or options.minutes
    options.steps_given = options.steps > 0
    for kind, rate in (("kills", 240), ("stops", 0), ("cuts", 0), ("holder_kills", 0)):
        if getattr(options, kind + "_per_hour") is None:
            setattr(options, kind + "_per_hour", 0 if options.steps_given else rate)
    options.train, options.run = os.path.abspath(options.train), os.path.abspath(options.run)
    place = PLACES[options.setup]
    if (options.cuts or options.cuts_per_hour) and not place.cuts:
        parser.error(f"--setup {options.setup} has no cables that could be cut")
    if options.holder_kills_per_hour and not place.holder:
        parser.error(f"--setup {options.setup}: no process holds the store")
    if options.setup == "launcher" and options.moments:
        parser.error("--moments needs a supervisor, and --setup launcher has none")
    if options.setup == "launcher" and not os.access(options.run, os.X_OK):
        parser.error("--setup launcher needs --run")
    if not options.steps_given and options.step_ms <= 0:
        parser.error("--minutes needs --step-ms")
    if options.stay_away and options.kills >= options.replicas:
        parser.error(f"--kills {options.kills}: would leave none of {options.replicas} replicas")
    return options


def interrupted(number, _):
    """Ends this program, which clears up. Further signals are ignored meanwhile."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    options = parse_arguments()
    for number in SIGNALS:
        signal.signal(number, interrupted)
    directory = tempfile.mkdtemp(prefix="entrain-storm-")
    jobs, bad, minutes_steps = 0, 0, options.minutes * 60e3 / max(options.step_ms, 1e-9)
    head = moments.HEAD if options.moments else HEAD
    table_head = (head, ["---"] * len(head))  # until it is printed
    try:
        if not options.data:
            options.data = os.path.join(directory, "text")
            text_of_tree(options.data)
        for number in range(options.jobs):
            for method in options.methods.split(","):
                if not options.steps_given:
                    options.steps = int(minutes_steps / METHODS[method].batches)
                place = os.path.join(directory, f"{method}{number}")
                cells, good = (moments.moments if options.moments else storm)(method, options.seed + number, options, place)
                jobs, bad = jobs + 1, bad + (not good)
                if cells:
                    for row in (*table_head, cells):
                        print("| " + " | ".join(row) + " |", flush=True)
                    table_head = ()
                if good:
                    shutil.rmtree(place)
    except CannotRun as reason:
        print(f"skipped: {reason}")
        shutil.rmtree(directory)
        return 77
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    print(f"{jobs} jobs, {bad} not good" + (f"; their files are in {directory}" if bad else ""))
    if not bad:
        shutil.rmtree(directory)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
