"""A job under a supervisor: it starts the replicas, strikes them, starts again those that end, and reads their logs."""

import dataclasses
import json
import os
import signal
import time

from storms.places import Launcher, end, spawn

START_S = 120.0  # for all replicas to make a step
MODEL = "--hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --lr 0.004 --val-batches 256".split()
TOKENS = 32 * 4  # of a micro-batch
# Names the files of a process by its id, which is that of the shell: the launcher tells nobody the ids of its ranks.
SHELL = ('said="$STORM_FILES/$RANK-$$"; : > "$said.log"; '
         'exec "$0" "$@" --log "$said.log" --summary "$said.summary" > "$said.said" 2>&1')


@dataclasses.dataclass(frozen=True)
class Method:
    flags: str = ""
    channel: bool = False  # a step is a commit of all ranks, and not a step of one replica
    batches: int = 1  # micro-batches of a replica in a step


METHODS = {
    "edit": Method("--local-sgd-sync-interval 4 --local-sgd-warmup-steps 4"),
    "diloco": Method("--local-sgd-sync-interval 8"),
    "decoupled-diloco": Method("--local-sgd-sync-interval 8"),
    "acco": Method(channel=True, batches=2),
    "zero1": Method(channel=True),
}


class Lost(Exception):
    """The job cannot go on."""


@dataclasses.dataclass(frozen=True)
class Record:
    time: float  # when this program read it
    step: int
    synced: bool
    batches: int  # of the replica, or, with a channel, of all ranks
    checksum: object


class Replica:
    """A process of a replica."""

    def __init__(self, rank, pid, process, path, joins=False):
        self.rank, self.pid, self.process, self.path, self.joins = rank, pid, process, path, joins
        self.begun, self.ended, self.code = time.monotonic(), None, None
        self.records, self.samples, self.read = [], [], 0
        self.struck = ""  # the last fault of this process

    def alive(self):
        return self.ended is None

    def watch(self):
        """Reads what is new. Returns True if there is a new exchange."""
        if self.ended is None and self.has_ended():
            self.ended = time.monotonic()
        known = len(self.records)
        with open(self.path + ".log", "rb") as log:
            log.seek(self.read)
            lines, _, _ = log.read().rpartition(b"\n")
        if lines:
            self.read += len(lines) + 1
            for line in map(json.loads, lines.split(b"\n")):
                synced = line["synced"] or "microbatches" in line  # every commit of a channel is an exchange
                self.records.append(Record(time.monotonic(), line["step"], synced, line.get("microbatches", 1), line.get("anchor_checksum")))
        return any(record.synced for record in self.records[known:])

    def has_ended(self):
        if self.process is not None:
            self.code = self.process.poll()
            return self.code is not None
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8") as stat:
                return stat.read().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    def sample(self):
        """Notes the open descriptors and the memory of a process that trains."""
        try:
            with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
                memory = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            self.samples.append((len(os.listdir(f"/proc/{self.pid}/fd")), memory >> 10))
        except (OSError, StopIteration):
            pass  # it has ended

    def trains(self):
        return self.alive() and bool(self.records)

    def counted_at(self):
        """Returns when an exchange with this process's own steps was first seen, or None."""
        return next((record.time for record in self.records[1:] if record.synced), None)

    def said(self):
        with open(self.path + ".said", encoding="utf-8", errors="replace") as said:
            return said.read().splitlines()

    def last_line(self):
        return (self.said() or [""])[-1]


@dataclasses.dataclass
class Strike:
    kind: str  # kill, stop, cut, holder
    rank: int
    begun: float
    ended: object = None
    replica: object = None


class Job:
    def __init__(self, place, method, length, options, seed, directory):
        """`length`: --steps or --tokens, as flags of the trainer."""
        self.place, self.method, self.length, self.options, self.directory = place, METHODS[method], length, options, directory
        self.flags = ["--method", method, *MODEL, *self.method.flags.split(), "--data", options.data, "--seed", str(seed),
                      "--on-loss", "finish"]
        self.life = [*([] if options.stay_away else ["--admit", "exchange"])]
        for name, value in (("--newcomer-warmup", options.newcomer_warmup), ("--step-ms", options.step_ms),
                            ("--eval-interval", options.eval_interval)):
            self.life += [name, str(value)] if value else []
        self.replicas, self.current, self.strikes = [], {}, []
        self.launcher, self.restarts, self.again_at = None, {}, {}
        self.no_moment = []  # faults that did not strike, because the job might not have survived them
        self.lost, self.left = "", []  # why the job was lost; what is left of it
        self.nobody = False  # no replica was left, and none trains yet
        self.resumed = []  # (time, step): when the whole job began again, behind which step
        self.ended_after, self.ended_unstruck = 0, []  # replicas that have ended by themselves
        self.begun = self.last_exchange = self.member_seen = self.sampled = time.monotonic()
        self.trained_since = self.window_begun = None  # when all replicas had made a step: of this start, of the first one
        self.files = os.path.join(directory, "files")
        self.saves = os.path.join(directory, "saves")
        for path in (self.files, os.path.join(directory, "tmp"), self.saves):
            os.makedirs(path)

    # Starting.

    def start_all(self, resume=False):
        self.restarts = {}
        more = ["--resume", "latest"] if resume else []
        if resume:
            self.resumed.append((time.monotonic(), self.newest_checkpoint()))
            self.trained_since = None
        if isinstance(self.place, Launcher):
            self.launcher = self.spawn(0, more)
            self.current = {}
        else:
            for rank in range(self.options.replicas):
                self.start(rank, more)
        self.begun = self.last_exchange = self.member_seen = time.monotonic()

    def start(self, rank, more=()):
        process = self.spawn(rank, more)
        self.add(Replica(rank, process.pid, process, os.path.join(self.files, f"{rank}-{process.pid}"), rank in self.restarts))

    def add(self, replica):
        for ending in (".log", ".said"):
            with open(replica.path + ending, "ab"):
                pass  # the process may not have come to this
        self.replicas.append(replica)
        self.current[replica.rank] = replica

    def spawn(self, rank, more):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ENTRAIN_")}
        environment.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", ENTRAIN_TIMEOUT=self.options.deadline, STORM_FILES=self.files,
                           TMPDIR=os.path.join(self.directory, "tmp"))
        environment.update(self.place.environment(rank))
        environment.update(setting.split("=", 1) for setting in self.options.env)
        if rank in self.restarts:
            environment["ENTRAIN_RESTARTS"] = str(self.restarts[rank])
        command = [*self.place.prefix(rank), "sh", "-c", SHELL, self.options.train, *self.flags, *self.life, *self.length, *self.saving(), *more]
        return spawn(command, os.path.join(self.directory, f"supervisor{rank}"), env=environment)

    def saving(self):
        if not self.options.save_every:
            return []
        return ["--save-dir", self.saves, "--save-every", str(self.options.save_every), "--keep", str(self.options.keep),
                "--checkpoint-kind", self.options.checkpoint_kind]

    def newest_checkpoint(self):
        return max((int(name[5:13]) for name in os.listdir(self.saves) if name.startswith("step-") and name.endswith(".ckpt")), default=0)

    # Watching.

    def watch(self):
        """Reads the logs, and starts again what has ended. Raises Lost if the job cannot go on."""
        now = time.monotonic()
        if self.launcher is not None:
            self.find_ranks()
        for replica in self.replicas:
            if (replica.alive() or self.current.get(replica.rank) is replica) and replica.watch():
                self.last_exchange = now
        if now - self.sampled > 1:
            self.sampled = now
            for replica in self.replicas:
                if replica.counted_at() is not None and replica.alive():
                    replica.sample()
        living = [replica for replica in self.current.values() if replica.trains()]
        if self.trained_since is None and len(living) == self.options.replicas:
            self.trained_since = now
            self.window_begun = self.window_begun or now
        self.note_loss_of_all(living, now)
        if living or self.finished():
            self.member_seen = now
        if self.launcher is not None:
            self.judge_launcher()
        else:
            self.start_again(now)
        self.judge_progress(now)

    def note_loss_of_all(self, living, now):
        """When no replica is left, those that are started again continue from the newest checkpoint."""
        if self.trained_since and not living and self.has_nobody() and not (self.finished() or self.nobody or self.down("holder")):
            self.nobody = True
            self.resumed.append((now, self.newest_checkpoint()))
        elif living and self.nobody:
            self.nobody = False
            if min(replica.records[0].step for replica in living) != self.resumed[-1][1] + 1:
                self.resumed.pop()  # a newcomer has taken over, or the steps begin anew

    def find_ranks(self):
        known = {replica.path for replica in self.replicas}
        for name in os.listdir(self.files):
            path, ending = os.path.splitext(os.path.join(self.files, name))
            if ending == ".said" and path not in known:
                rank, _, pid = os.path.basename(path).partition("-")
                self.add(Replica(int(rank), int(pid), None, path))

    def judge_launcher(self):
        code = self.launcher.poll()
        if code not in (None, 0) and not self.down("holder"):
            with open(os.path.join(self.directory, "supervisor0"), encoding="utf-8", errors="replace") as said:
                raise Lost(f"the launcher has ended with {code}: {(said.read().splitlines() or [''])[-1]}")

    def start_again(self, now):
        for rank, replica in list(self.current.items()):
            if replica.alive() or replica.code == 0 or rank in self.again_at or self.finished():
                continue
            if replica.struck != "kill":
                self.note_end(rank, replica)
            # A process that ends at once is not started again at once.
            self.again_at[rank] = now if replica.struck == "kill" or replica.ended - replica.begun > 1 else now + 1
        for rank in [rank for rank, at in self.again_at.items() if at <= now and not self.options.stay_away]:
            del self.again_at[rank]
            for strike in self.strikes:
                if strike.kind == "kill" and strike.rank == rank and strike.ended is None:
                    strike.ended = now
            self.restarts[rank] = self.restarts.get(rank, 0) + 1
            self.start(rank)

    def note_end(self, rank, replica):
        if replica.struck or self.down("cut", rank) or self.down("stop", rank):
            self.ended_after += 1
        else:
            member = "member" if replica.counted_at() is not None else "newcomer"
            self.ended_unstruck.append((member, rank, f"{replica.code}: {replica.last_line()}"))

    def judge_progress(self, now):
        seconds = float(self.options.deadline.removesuffix("s"))
        if self.down("stop") or self.down("cut") or self.down("holder"):
            self.last_exchange = self.member_seen = now
        if self.trained_since is None and not self.finished():
            if self.has_nobody() and self.current:
                raise Lost("the replicas have not met")
            if now - self.begun > START_S:
                raise Lost(f"not all replicas train after {START_S:.0f} s")
            return
        if now - self.member_seen > seconds + 60:  # all that are left may have to meet again
            raise Lost("no replica is left that trains")
        if now - self.last_exchange > seconds + 60 and not self.finished():
            raise Lost(f"no exchange for {now - self.last_exchange:.0f} s")

    def finished(self):
        """Returns True when a replica has come to the end of the training."""
        if self.launcher is not None:
            return self.launcher.poll() == 0
        return any(replica.code == 0 for replica in self.current.values())

    def has_finished(self, replica):
        """Returns True for a process that has come to the end of the training."""
        return replica.code == 0 or (replica.process is None and self.finished() and self.current.get(replica.rank) is replica)

    def over(self):
        """Returns True when all replicas have ended. Ends those that have come too late to join."""
        if not self.finished():
            return False
        for replica in self.current.values():
            if replica.alive() and not replica.records and not any(" joins" in line for line in replica.said()):
                replica.struck = "late"
                end([replica.process] if replica.process else [])
        return not any(replica.alive() for replica in self.current.values())

    def wait(self, holds, seconds=START_S):
        """Watches until holds() is true or the job is over. Returns False in the second case, and after this time."""
        give_up = time.monotonic() + seconds
        while not holds():
            if self.over() or time.monotonic() > give_up:
                return False
            self.watch()
            time.sleep(0.01)
        return True

    def step(self):
        """Returns the newest step of the replicas that are there."""
        return max((replica.records[-1].step for replica in self.current.values() if replica.records), default=0)

    # Striking.

    def strikes_rank(self, strike, rank):
        """Returns True if this replica is gone or silent during the strike."""
        return strike.rank == rank or (strike.kind == "holder" and self.launcher is not None)

    def down(self, kind, rank=None):
        return [strike for strike in self.strikes if strike.kind == kind and strike.ended is None and rank in (None, strike.rank)]

    def healthy(self, rank):
        replica = self.current.get(rank)
        if replica is None or not replica.alive() or replica.struck == "kill" or self.down("stop", rank) or self.down("cut", rank):
            return False
        strikes = [strike.ended for strike in self.strikes if strike.rank == rank and strike.kind in ("stop", "cut")]
        since = max([replica.begun, *strikes])
        return sum(record.synced and record.time > since for record in replica.records[-50:]) > 1

    def may(self, kind, rank):
        """Returns True if the job must survive this fault: replicas stay that train, and a majority if one is silent. The kill of a
        replica on another host may look like silence to the others (docs/elastic.md)."""
        if kind == "holder":
            return not self.down("holder") and all(map(self.healthy, range(self.options.replicas)))
        silent = kind != "kill" or self.place.cuts or self.down("stop") or self.down("cut")
        least = self.options.replicas // 2 + 1 if silent and self.options.replicas > 2 else 1
        others = sum(self.healthy(other) for other in range(self.options.replicas) if other != rank)
        return others >= least and (self.healthy(rank) or kind == "kill" and self.current[rank].alive()) and not self.down("holder")

    def strike(self, kind, rank, random):
        now = time.monotonic()
        strike = Strike(kind, rank, now, replica=self.current.get(rank))
        self.strikes.append(strike)
        if kind == "holder":
            if self.launcher is not None:
                end([self.launcher])
            else:
                self.place.kill_holder(random)
            return strike
        strike.replica.struck = kind
        if kind == "cut":
            self.place.cut(rank)
            return strike
        try:
            os.kill(strike.replica.pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        except ProcessLookupError:
            pass  # the launcher has collected it meanwhile
        if self.launcher is not None and kind == "kill":
            strike.ended = now  # the launcher starts it again at once
        return strike

    def undo(self, strike):
        strike.ended = time.monotonic()
        if strike.kind == "cut":
            self.place.mend(strike.rank)
        elif strike.kind == "stop":
            try:
                os.kill(strike.replica.pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it was killed meanwhile
        elif strike.kind == "holder" and self.launcher is not None:
            self.place.new_store()
            self.start_all(resume=True)
            strike.ended = time.monotonic()
        elif strike.kind == "holder":
            self.place.start_holder()

    def kill_all(self):
        for replica in self.current.values():
            replica.struck = "kill"
            end([replica.process])
            replica.watch()
        self.current, self.again_at = {}, {}

    def has_nobody(self):
        """Returns True if no process is left that a newcomer could join."""
        return not any(replica.alive() and (replica.records or not replica.joins) for replica in self.current.values())

    def close(self):
        if self.launcher is not None:
            end([self.launcher])
            deadline = time.monotonic() + 10
            while any(not replica.has_ended() for replica in self.current.values()) and time.monotonic() < deadline:
                time.sleep(0.05)
        end([replica.process for replica in self.replicas if replica.process])
