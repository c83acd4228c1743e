"""Kills replicas at chosen moments, in short jobs one after the other.

    save        while the temporary file of a checkpoint is there
    exchange    around an exchange at which the replicas save or evaluate
    join        two kills: of a replica, and of its newcomer, which joins at that time, or of another one if a majority stays
    load        all replicas are killed, and started again with --resume latest; one is killed before it has made a step
    end         from the last step to the end of the process

Within each moment the time of the kill is random. After each kill the job must go on, with the victim in its place; a replica that is killed
before the replicas have met makes the others end, and all are started again. In the end the job must have made all its steps, each checkpoint must
load, also those that were there at a kill (--keep removes them meanwhile), and no process may begin anew."""

import os
import random
import shutil
import time

from storms import judge
from storms.job import METHODS, Job, Lost
from storms.places import PLACES

HEAD = ("method", "replicas", "setup", "kills: save / exchange / join / load / end", "jobs", "jobs lost", "checkpoints", "unreadable", "begun anew",
        "left over", "back")
KINDS = ("save", "exchange", "join", "load", "end")
EVERY = 8  # steps between saves, and between evaluations
STEPS = 600  # micro-batches of a replica in a job
MIDDLE = 6  # kills of a job between its begin and its end


class Play:
    """One job with its kills."""

    def __init__(self, job, chosen, most):
        self.job, self.random, self.most = job, chosen, most
        self.kills, self.kept = dict.fromkeys(KINDS, 0), os.path.join(job.directory, "kept")
        os.makedirs(self.kept)

    def wait(self, holds):
        if not self.job.wait(holds):
            if self.job.over():
                return False
            raise Lost("the moment does not come")
        return True

    def run(self):
        job = self.job
        job.start_all()
        kinds = [kind for kind in KINDS[:3] for _ in range(MIDDLE // 3)]
        self.random.shuffle(kinds)
        for kind in kinds:
            if sum(self.kills.values()) < self.most and self.wait(self.all_healthy):
                getattr(self, kind)()
        if self.wait(self.all_healthy) and sum(self.kills.values()) < self.most:
            self.load()
        last = int(job.length[-1])
        if sum(self.kills.values()) < self.most and self.wait(lambda: job.step() >= last - 1):
            self.pause(0.5)
            self.kill("end", self.any_rank())
        self.wait(lambda: False)

    def all_healthy(self):
        return all(map(self.job.healthy, range(self.job.options.replicas)))

    def any_rank(self):
        return self.random.randrange(self.job.options.replicas)

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))  # the random time within the moment

    def kill(self, kind, rank):
        """Kills a replica, and keeps the checkpoints of this moment."""
        replica = self.job.current[rank]
        replica.watch()
        if replica.alive():
            self.job.strike("kill", rank, self.random)
            self.kills[kind] += 1
        for name in os.listdir(self.job.saves):
            kept = os.path.join(self.kept, name)
            if name.endswith(".ckpt") and not os.path.exists(kept):
                try:
                    os.link(os.path.join(self.job.saves, name), kept)
                except FileNotFoundError:
                    pass  # it was removed at this moment, because newer ones are there

    def save(self):
        give_up = time.monotonic() + 30
        while not any(name.endswith(".tmp") for name in os.listdir(self.job.saves)):
            if time.monotonic() > give_up:
                raise Lost("no save within 30 s")
            time.sleep(0.0005)
        self.pause(0.005)
        self.kill("save", self.any_rank())

    def exchange(self):
        if self.wait(lambda: self.job.step() % EVERY == EVERY - 1):
            self.pause(0.004 * self.job.options.step_ms)
            self.kill("exchange", self.any_rank())

    def join(self):
        first = self.any_rank()
        replica = self.job.current[first]
        self.kill("join", first)
        self.wait(lambda: self.job.current[first] is not replica)
        self.pause(1.0)
        other = (first + 1) % self.job.options.replicas
        self.kill("join", other if self.job.may("kill", other) and self.random.random() < 0.5 else first)

    def load(self):
        self.start_again()
        self.pause(1.0)
        self.kill("load", self.any_rank())
        while True:
            try:
                self.wait(lambda: self.job.trained_since is not None)
                return
            except Lost:
                if not self.job.has_nobody():
                    raise
            self.start_again()

    def start_again(self):
        self.job.kill_all()
        self.job.place.new_store()
        self.job.start_all(resume=True)


def moments(method, seed, options, directory):
    """Makes the kills. Prints what is wrong, and returns a row of the table, and if all is good."""
    options.save_every = options.eval_interval = EVERY
    options.step_ms = min(options.step_ms, 25)
    kills, jobs, lost, anew, left, checkpoints, bad, back = dict.fromkeys(KINDS, 0), 0, 0, 0, 0, 0, 0, []
    chosen = random.Random(seed)
    while sum(kills.values()) < options.moments:
        place = os.path.join(directory, str(jobs))
        os.makedirs(place)
        before = judge.shared_memory()
        here = PLACES[options.setup](place, options)
        job = Job(here, method, ["--steps", str(STEPS // METHODS[method].batches)], options, seed + jobs, place)
        play = Play(job, chosen, options.moments - sum(kills.values()))
        try:
            play.run()
        except Lost as reason:
            job.lost = str(reason)
        finally:
            job.close()
            here.close()
        lines = [f"the job is lost: {job.lost}"] if job.lost else []
        begun, number_and_bad = judge.begun_anew(job), [judge.unreadable(job, folder) for folder in (job.saves, play.kept)]
        job.left = judge.leftovers(job, before)
        lines += begun + [line for _, bad_lines in number_and_bad for line in bad_lines] + [f"left over: {each}" for each in job.left]
        for kind in KINDS:
            kills[kind] += play.kills[kind]
        jobs, lost, anew, left = jobs + 1, lost + bool(job.lost), anew + len(begun), left + len(job.left)
        checkpoints += sum(number for number, _ in number_and_bad)
        bad += sum(len(bad_lines) for _, bad_lines in number_and_bad)
        back += [judge.counted_again(job, strike) for strike in job.strikes]
        if lines:
            found = [f"{method}, seed {seed}, job {jobs}: {line}" for line in lines]
            print(*found, *judge.strikes(job), *judge.last_lines(job), sep="\n  ", flush=True)
        else:
            shutil.rmtree(place)
        if not sum(play.kills.values()):
            break
    cells = [method, str(options.replicas), options.setup, " / ".join(map(str, kills.values())), str(jobs), str(lost), str(checkpoints), str(bad),
             str(anew), str(left), judge.middle_and_worst(back)]
    return cells, not (lost or bad or anew or left)
