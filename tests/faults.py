#!/usr/bin/env python3
"""Breaks one rank of a training job and checks how the others end.

Starts the reference trainer on 4 ranks without a launcher, breaks one random rank at a random moment, and waits for the
survivors. A job is good if every survivor ends within the deadline of operations plus 250 ms, with an error that fits the cause
and names the broken rank, and leaves no process and no file. Prints two tables (method x step time; cause x method: the
rank that the survivors blame) and, for every job that is not good, the output of each rank.

The method "calls" is no training: ranks of tests/api/culprit_rank.c call collectives, on the world or on the rows and columns of
a mesh. Only this method has causes that a rank brings about itself, such as a wrong argument.

    tests/faults.py --train build/dev/examples/trainer/entrain-train              the slice that CTest runs
    tests/faults.py --train ... --jobs 600 --at-once 3 --seed 7 --records r.jsonl the whole
    tests/faults.py --train ... --calls build/dev/tests/api/culprit_rank --culprits --jobs 240   causes x methods x transports

--records FILE has one JSON object for each job, with the last line that every survivor wrote and the rank that the line names.

--matrix runs the fault matrix instead: each phase of a call x fault x transport (matrix/matrix.py --help).

To add a cause, add an entry to CAUSES. To add a check, add a function of a Job like `judge_end`.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

RANKS = 4
GRACE_S = 0.25  # the library ends an operation within this time after its deadline
EXIT_S = 2.0  # for a process to end and to be collected, on a busy machine
START_S = 60.0  # for all ranks to begin to train

REPLICA_METHODS = ["edit", "a-edit", "post-local-sgd", "diloco", "streaming-diloco", "co2", "sparseloco", "ddp"]
CHANNEL_METHODS = ["zero1", "acco", "dpu", "wp"]  # these have no shards
CALLS = "calls"
METHODS = REPLICA_METHODS + CHANNEL_METHODS
CULPRIT_METHODS = [CALLS, "edit", "a-edit", "acco", "ddp"]

MODEL = ("--hidden-size 16 --layers 2 --heads 2 --seq-length 16 --batch-size 2 --val-batches 1 "
         "--lr-warmup-steps 0").split()
# With long steps a rank comes to its exchange when the loss is already known; with short steps it is in the exchange.
METHOD_FLAGS = {method: "--local-sgd-sync-interval 8" for method in REPLICA_METHODS if method not in ("a-edit", "ddp")}
METHOD_FLAGS["a-edit"] = "--local-sgd-sync-time 0.2 --min-total-global-steps 4"


@dataclasses.dataclass(frozen=True)
class Cause:
    """How the victim is broken."""
    strike: object = None  # called with the victim's process; None: the victim's flags end it
    victim_flags: tuple = ()
    fits: str = ""  # a regular expression that the message of every survivor matches
    wait_s: float = 0  # time that survivors may take beyond the deadline
    not_for: tuple = ()  # methods for which the cause is no fault
    by: str = ""  # the fault that the victim makes itself: a --fault of culprit_rank
    stays: bool = False  # the victim lives on
    tie_in_pairs: bool = False  # in a communicator of two ranks, the guilty rank cannot be known
    by_time: bool = False  # found by a deadline: a rank that hears the others too late cannot know the culprit


def send(number):
    return lambda process: os.kill(process.pid, number)


LOST = r"lost rank|closed by the peer|ended by rank|aborted by rank"
CAUSES = {
    "kill": Cause(strike=send(signal.SIGKILL), fits=LOST),
    "segv": Cause(strike=send(signal.SIGSEGV), fits=LOST),
    "stop": Cause(strike=send(signal.SIGSTOP), fits=LOST + r"|timed out|does not answer", by_time=True),
    # The victim ends its training while the others go on; in a-edit it would wait for them.
    "steps": Cause(victim_flags=("--steps", "200"), fits=".", not_for=("a-edit", CALLS)),
    "exit": Cause(by="exit", fits=LOST),
    "argument": Cause(by="argument", fits="its call failed: all_reduce: dtype 99|" + LOST),
    "late": Cause(by="late", stays=True, fits="has not started the call|" + LOST, wait_s=2, by_time=True),
    "abort": Cause(by="abort", fits="aborted by rank|" + LOST),
    "count": Cause(by="count", fits="disagree", tie_in_pairs=True),
    "collective": Cause(by="collective", fits="disagree", tie_in_pairs=True),
}
CULPRIT_CAUSES = [cause for cause in CAUSES if cause not in ("segv", "steps")]


@dataclasses.dataclass(frozen=True)
class Case:
    method: str
    step_ms: int
    shard_size: int = 1
    transports: str = ""  # as ENTRAIN_TRANSPORTS; empty: the default
    cause: str = "kill"
    seed: int = 0


@dataclasses.dataclass
class Survivor:
    rank: int
    code: object = None  # None: it had not ended, and was killed
    after_s: float = 0  # since the victim was struck
    message: str = ""
    named: int = -1  # the rank that the message names; -1: none


class Job:
    """One job: run() fills in the rest."""

    def __init__(self, case, options):
        self.case, self.options = case, options
        self.cause = CAUSES[case.cause]
        self.random = random.Random(case.seed)
        self.victim = self.random.randrange(RANKS)
        self.moment_s = self.random.uniform(0, options.moment_s)
        self.survivors, self.faults = [], []
        self.directory = ""

    def path(self, name):
        return os.path.join(self.directory, name)

    def run(self):
        self.directory = tempfile.mkdtemp(prefix="faults-")
        processes = []
        try:
            for name in ("store", "tmp"):
                os.mkdir(self.path(name))
            write_text(self.path("text"))
            for rank in range(RANKS):
                processes.append(self.start(rank))
            if self.wait_until_all_train(processes):
                if self.cause.strike is not None:
                    time.sleep(self.moment_s)
                    self.cause.strike(processes[self.victim])
                elif not self.cause.stays and not ended_within(processes[self.victim], START_S):
                    self.faults.append("the victim goes on")
                self.wait_for_survivors(processes, time.monotonic())
        finally:
            self.clear(processes)
        return self

    def start(self, rank):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ENTRAIN_")}
        environment.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS),
                           ENTRAIN_STORE="file:" + self.path("store"), ENTRAIN_TIMEOUT=f"{self.options.timeout:g}s",
                           TMPDIR=self.path("tmp"))
        if self.case.transports:
            environment["ENTRAIN_TRANSPORTS"] = self.case.transports
            if "ucx" in self.case.transports:
                environment.setdefault("UCX_TLS", "tcp,sm,self")  # there may be no RDMA device here
        flags = ["--log", self.path("log"), "--step-ms", str(self.case.step_ms)]
        if self.case.shard_size > 1:
            flags += ["--shard-size", str(self.case.shard_size)]
        program = self.options.calls if self.case.method == CALLS else self.options.train
        flags += self.flags_of_calls(rank) if self.case.method == CALLS else self.flags_of_training(rank)
        with open(self.path(f"rank{rank}"), "wb") as said:
            return subprocess.Popen([program, *flags], env=environment, stdin=subprocess.DEVNULL, stdout=said,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def flags_of_training(self, rank):
        flags = [*MODEL, "--data", self.path("text"), "--method", self.case.method,
                 *METHOD_FLAGS.get(self.case.method, "").split()]
        others = ("--steps", "100000000")
        return flags + [*(self.cause.victim_flags if rank == self.victim and self.cause.victim_flags else others)]

    def flags_of_calls(self, rank):
        # Some victims end without a message to their peers.
        flags = ["--destroy", str(self.case.seed % 2)]
        if rank == self.victim and self.cause.by:
            flags += ["--fault", self.cause.by, "--at", str(20 + self.case.seed % 20)]
        return flags

    def wait_until_all_train(self, processes):
        """Waits. Returns True when the log has a record of every replica, or of a rank if the method has no
        replicas."""
        wanted = RANKS if self.case.method == CALLS else RANKS // self.case.shard_size
        give_up = time.monotonic() + START_S
        begun, read = set(), 0
        while time.monotonic() < give_up:
            if os.path.exists(self.path("log")):
                with open(self.path("log"), errors="replace") as log:
                    log.seek(read)
                    begun.update(re.findall(r'"replica":(\d+)', log.read()))
                    read = log.tell()
            if len(begun) >= wanted:
                return True
            if any(p.poll() is not None for p in processes):
                if self.cause.strike is None:
                    return True
                break
            time.sleep(0.01)
        self.faults.append("did not begin to train: " + " | ".join(self.last_line(r) for r in range(RANKS)))
        return False

    def wait_for_survivors(self, processes, struck):
        limit = self.options.timeout + GRACE_S + EXIT_S + self.cause.wait_s
        left = {r: Survivor(r) for r in range(RANKS) if r != self.victim}
        self.survivors = list(left.values())
        while left and time.monotonic() - struck < limit:
            for rank in [r for r in left if processes[r].poll() is not None]:
                one = left.pop(rank)
                one.after_s, one.code = time.monotonic() - struck, processes[rank].returncode
            time.sleep(0.002)
        for one in left.values():
            one.after_s = time.monotonic() - struck
            if self.options.stacks:
                subprocess.run(["gdb", "-p", str(processes[one.rank].pid), "-batch", "-ex", "thread apply all bt 12"],
                               stdout=sys.stderr, stderr=subprocess.DEVNULL, check=False)
        for one in self.survivors:
            one.message = self.last_line(one.rank)
            one.named = named_rank(one.message)

    def last_line(self, rank):
        with open(self.path(f"rank{rank}"), errors="replace") as said:
            lines = [line for line in said.read().splitlines() if line and not line.startswith("step ")]
        return lines[-1] if lines else ""

    def clear(self, processes):
        for process in processes:
            process.kill()
            process.wait()
            try:
                os.killpg(process.pid, signal.SIGKILL)
                self.faults.append(f"process group {process.pid} outlived its rank")
            except ProcessLookupError:
                pass
        left = os.listdir(self.path("tmp"))
        if left:
            self.faults.append(f"left in TMPDIR: {left}")
        shutil.rmtree(self.directory, ignore_errors=True)

    def record(self):
        return {**dataclasses.asdict(self.case), "victim": self.victim, "moment_s": round(self.moment_s, 3),
                "survivors": [dataclasses.asdict(s) for s in self.survivors], "faults": self.faults}


def write_text(path):
    words = ["sync ", "drift ", "replica ", "anchor ", "again\n", "step "]
    chosen = random.Random(1)
    with open(path, "w") as text:
        text.write("".join(chosen.choice(words) for _ in range(3000)))


def ended_within(process, seconds):
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


CANNOT_KNOW = "cannot be known"


def named_rank(message):
    """Returns the rank of the world that a message blames, or -1."""
    if "[guilty: nobody]" in message or CANNOT_KNOW in message:
        return -1
    for pattern in (r"\[guilty: rank (\d+) of world\]", r"rank (\d+) of world", r"(?:lost|waiting for) rank (\d+)"):
        found = re.search(pattern, message)
        if found:
            return int(found.group(1))
    return -1


def judge_end(job):
    """Checks that every survivor exits in time, without a signal, and with an error that fits the fault."""
    limit = job.options.timeout + GRACE_S + EXIT_S + job.cause.wait_s
    for one in job.survivors:
        if one.code is None:
            job.faults.append(f"rank {one.rank} had not ended after {one.after_s:.2f} s")
        elif one.after_s > limit:
            job.faults.append(f"rank {one.rank} ended after {one.after_s:.2f} s")
        elif one.code < 0:
            job.faults.append(f"rank {one.rank} was ended by signal {-one.code}")
        elif one.code == 0:
            job.faults.append(f"rank {one.rank} ended as if nothing had happened")
        elif not re.search(job.cause.fits, one.message):
            job.faults.append(f"rank {one.rank} says {one.message!r}")


def blames(job, one):
    """Returns "right"; "unknown" if the message says that the guilty rank cannot be known, and this is possible; else
    "wrong"."""
    may_be = job.cause.by_time or (job.case.shard_size > 1 and job.cause.tie_in_pairs)
    if may_be and one.named < 0 and CANNOT_KNOW in one.message:
        return "unknown"
    return "right" if one.named == job.victim else "wrong"


def judge_culprit(job):
    """Checks that every survivor names the victim, or says that the guilty rank cannot be known, if this is
    possible."""
    for one in job.survivors:
        if one.code is not None and blames(job, one) == "wrong":
            job.faults.append(f"rank {one.rank} blames {one.named}: {one.message!r}")


JUDGES = [judge_end, judge_culprit]


def all_cases(options):
    """Yields every combination in turn, without end, each with its own seed."""
    seeds = random.Random(options.seed)
    grid = [
        (method, step_ms, shard_size, transports, cause)
        for cause, transports, shard_size, step_ms, method in itertools.product(
            options.causes, options.transports, options.shard_sizes, options.step_ms, options.methods)
        if (method in REPLICA_METHODS or method == CALLS or shard_size == 1)
        and method not in CAUSES[cause].not_for and (method == CALLS or not CAUSES[cause].by)
    ]
    while True:
        seeds.shuffle(grid)
        for method, step_ms, shard_size, transports, cause in grid:
            yield Case(method, step_ms, shard_size, transports, cause, seeds.randrange(1 << 30))


def print_table(jobs, step_ms):
    cells = collections.defaultdict(list)
    for job in jobs:
        cells[job.case.method, job.case.step_ms].append(job)
    print("\n| method | " + " | ".join(f"{ms} ms" for ms in step_ms) + " |")
    print("|---" * (len(step_ms) + 1) + "|")
    for method in [CALLS, *METHODS]:
        row = [cells[method, ms] for ms in step_ms]
        if any(row):
            print(f"| {method} | " + " | ".join(cell_text(jobs_here) for jobs_here in row) + " |")
    print("\nEach cell: jobs, of which hung, the latest end of a survivor after the fault (without those that hung).")


def print_culprits(jobs):
    cells = collections.defaultdict(list)
    for job in jobs:
        cells[job.case.cause, job.case.method, "2 x 2" if job.case.shard_size > 1 else "flat",
              job.case.transports or "all"].append(job)
    print("\n| cause | method | mesh | transports | jobs | reports | right | cannot be known | wrong |")
    print("|---" * 9 + "|")
    for key, jobs_here in sorted(cells.items()):
        found = collections.Counter(blames(job, one) for job in jobs_here for one in job.survivors if one.code is not None)
        print("| " + " | ".join([*key, *(str(n) for n in (len(jobs_here), sum(found.values()), found["right"],
                                                         found["unknown"], found["wrong"]))]) + " |")


def cell_text(jobs):
    ended = [s.after_s for job in jobs for s in job.survivors if s.code is not None]
    return f"{len(jobs)}, {sum(map(hung, jobs))}, " + (f"{max(ended):.2f} s" if ended else "-") if jobs else ""


def hung(job):
    return any(s.code is None for s in job.survivors)


def shared_memory():
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def words(kind=str):
    return lambda text: [kind(word) for word in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="the program entrain-train")
    parser.add_argument("--calls", help="the program culprit_rank, for the method calls")
    parser.add_argument("--culprits", action="store_true", help="every cause, the methods " + ", ".join(CULPRIT_METHODS))
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=2, help="jobs that run beside each other")
    parser.add_argument("--seed", type=int, default=None, help="default: of the clock; printed")
    parser.add_argument("--timeout", type=float, default=3, help="the deadline of operations, seconds")
    parser.add_argument("--moment-s", type=float, default=2.0, help="the fault comes so long after the first step at most")
    parser.add_argument("--methods", type=words(), default=None)
    parser.add_argument("--step-ms", type=words(int), default=None)
    parser.add_argument("--shard-sizes", type=words(int), default=[1, 2])
    parser.add_argument("--transports", type=lambda t: t.split(";"), default=[""], help="separated by ';'")
    parser.add_argument("--causes", type=words(), default=None, help="of " + ", ".join(CAUSES))
    parser.add_argument("--records", help="file for one JSON object a job")
    parser.add_argument("--stacks", action="store_true", help="show the stacks of a rank that hangs (gdb)")
    options = parser.parse_args()
    options.methods = options.methods or (CULPRIT_METHODS if options.culprits else METHODS)
    options.causes = options.causes or (CULPRIT_CAUSES if options.culprits else ["kill"])
    options.step_ms = options.step_ms or ([5, 25] if options.culprits else [0, 5, 25, 100])
    options.train = os.path.abspath(options.train)
    if options.calls:
        options.calls = os.path.abspath(options.calls)
    elif CALLS in options.methods:
        parser.error("--methods calls needs --calls")
    return options


def main():
    if sys.argv[1:2] == ["--matrix"]:
        from matrix import matrix
        return matrix.main(sys.argv[2:])
    options = parse_arguments()
    if options.seed is None:
        options.seed = int(time.time()) % 1000000
    print(f"seed {options.seed}, {options.jobs} jobs, deadline of operations {options.timeout:g} s", flush=True)
    before, begun = shared_memory(), time.monotonic()
    writing = threading.Lock()
    records = open(options.records, "w") if options.records else None

    def run(case):
        job = Job(case, options).run()
        for judge in JUDGES:
            judge(job)
        with writing:
            if job.faults:
                print(f"{case}, victim {job.victim} after {job.moment_s:.3f} s: " + "; ".join(job.faults), flush=True)
            if records:
                records.write(json.dumps(job.record()) + "\n")
                records.flush()
        return job

    with ThreadPoolExecutor(options.at_once) as pool:
        jobs = list(pool.map(run, itertools.islice(all_cases(options), options.jobs)))
    print_table(jobs, options.step_ms)
    print_culprits(jobs)
    bad = [job for job in jobs if job.faults]
    print(f"{len(jobs)} jobs in {time.monotonic() - begun:.0f} s: {sum(map(hung, jobs))} hung, {len(bad)} not good")
    left = {name for name in shared_memory() - before if "entrain" in name}
    if left:
        print(f"left in /dev/shm: {left}")
    return 1 if bad or left else 0


if __name__ == "__main__":
    sys.exit(main())
