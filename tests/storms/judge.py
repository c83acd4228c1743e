"""What a job has shown: its work, its pace, its gaps, and what is wrong with it. storm.py explains the terms."""

import collections
import json
import os
import re
import statistics
import subprocess

from storms.job import TOKENS


def epoch_of(job, time):
    """Returns how often the whole job had been started again."""
    return sum(at <= time for at, _ in job.resumed)


def counted(job):
    """Returns (time, micro-batches) of all steps that an exchange has counted, in the order of time."""
    found = {}  # (time, step, micro-batches)
    for replica in job.replicas:
        pending = []
        for record in replica.records:
            if job.method.channel:
                key, entry = (epoch_of(job, record.time), record.step), (record.time, record.step, record.batches)
                found[key] = min(found.get(key, entry), entry)
                continue
            if record.synced:
                found.update({(replica.path, each.step): (record.time, each.step, each.batches) for each in pending})
                pending = []
            pending.append(record)
        if job.has_finished(replica):
            found.update({(replica.path, each.step): (pending[-1].time, each.step, each.batches) for each in pending})
    kept = [each for each in found.values() if not any(each[0] < at and each[1] > step for at, step in job.resumed)]
    return sorted((time, batches) for time, _, batches in kept)


def pace(job):
    """Returns the micro-batches of a second that a job without faults makes."""
    done = counted(job)
    return sum(batches for time, batches in done if time > done[0][0]) / (done[-1][0] - done[0][0])


def window_of(job, seconds):
    last = max(record.time for replica in job.replicas for record in replica.records)
    return job.window_begun, min(last, job.window_begun + seconds)


def efficiency(job, seconds, rate):
    """Returns the step efficiency, and that of what the struck replicas leave, in percent."""
    begun, ended = window_of(job, seconds)
    done = sum(batches for time, batches in counted(job) if begun < time <= ended)
    lost = 0.0
    for rank in range(job.options.replicas):
        until = begun  # of the intervals that are in the sum
        for strike in sorted((each for each in job.strikes if job.strikes_rank(each, rank)), key=lambda each: each.begun):
            first, last = max(strike.begun, until), min(strike.ended or ended, ended)
            lost += max(0.0, last - first)
            until = max(until, last)
    whole = rate * (ended - begun)
    return 100 * done / whole, 100 * done / (whole - rate * lost / job.options.replicas)


def next_round(job, strike):
    """Returns the seconds from a strike to the first exchange in a step that a survivor has begun after it, or None."""
    times = [now.time for replica in job.replicas if replica is not strike.replica
             for before, now in zip(replica.records, replica.records[1:]) if now.synced and before.time > strike.begun]
    return min(times) - strike.begun if times else None


def counted_again(job, strike):
    """Returns the seconds from a strike until the victim's own steps are in an exchange again, or None."""
    times = [replica.counted_at() for replica in job.replicas
             if replica.rank == strike.rank and replica.begun >= strike.begun and replica.counted_at() is not None]
    return min(times) - strike.begun if times else None


def middle_and_worst(values):
    values = [value for value in values if value is not None]
    return f"{statistics.median(values):.1f} s ({max(values):.1f})" if values else "–"


def anchors(job):
    """Returns how many exchanges at least two processes have logged, and those of them in which the anchors differ."""
    seen = collections.defaultdict(list)
    for replica in job.replicas:
        for record in replica.records:
            if record.checksum is not None:
                seen[epoch_of(job, record.time), record.step].append(record.checksum)
    several = {key: sums for key, sums in seen.items() if len(sums) > 1}
    return len(several), [step for (_, step), sums in several.items() if len(set(sums)) > 1]


def begun_anew(job):
    """Returns a line for each process whose steps go back."""
    lines = []
    synced = [(record.time, record.step) for replica in job.replicas for record in replica.records if record.synced]
    for replica in job.replicas:
        steps = [record.step for record in replica.records]
        if any(step != before + 1 for before, step in zip(steps, steps[1:])):
            lines.append(f"rank {replica.rank}, process {replica.pid}: its steps are not in sequence")
        if not steps:
            continue
        # A process that finds nobody whom it could join takes part in the next life itself.
        starts = [(at, step) for at, step in job.resumed if at <= replica.records[0].time]
        since, floor = starts[-1] if starts else (0.0, 0)
        floor = max([floor, *(step - 1 for time, step in synced if since < time < replica.begun)])
        if steps[0] <= floor:
            lines.append(f"rank {replica.rank}, process {replica.pid}: begins at step {steps[0]}, the others were at {floor}")
    return lines


def unreadable(job, folder):
    """Tries to continue from each checkpoint in the folder. Returns their number, and a line for each one that fails."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".ckpt"))
    lines = []
    for name in names:
        flags = [*job.flags, "--resume", os.path.join(folder, name), "--checkpoint-kind", "portable", "--steps", str(int(name[5:13]) + 1)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ENTRAIN_")}
        tried = subprocess.run([job.options.train, *flags], env={**environment, "OPENBLAS_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=120, check=False)
        if tried.returncode != 0:
            lines.append(f"{name} does not load: {(tried.stdout + tried.stderr).strip().splitlines()[-1:]}")
    return len(names), lines


def summary(job):
    """Returns what the first replica that was left has written at the end, or None."""
    paths = [replica.path + ".summary" for replica in job.replicas]
    written = [path for path in paths if os.path.exists(path) and os.path.getsize(path)]
    if not written:
        return None
    with open(max(written, key=os.path.getmtime), encoding="utf-8") as text:
        return json.load(text)


def tokens(job):
    return summary(job)["tokens"] if job.method.channel else TOKENS * sum(batches for _, batches in counted(job))


def growth(job):
    """Returns the open descriptors and the MB of the longest-living process, at its first exchange and at its end."""
    sampled = [replica for replica in job.replicas if replica.samples]
    if not sampled:
        return "–"
    first, last = (max(sampled, key=lambda each: len(each.samples)).samples[i] for i in (0, -1))
    return f"{first[0]} → {last[0]}, {first[1]} → {last[1]} MB"


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "entrain" in name} if os.path.isdir("/dev/shm") else set()


def leftovers(job, shm_before):
    """Returns what is there after the end, and should not be."""
    left = job.place.leftovers() + [f"/dev/shm/{name}" for name in shared_memory() - shm_before]
    left += [f"checkpoint {name}" for name in os.listdir(job.saves) if name.endswith(".tmp")]
    left += [f"temporary file {name}" for name in os.listdir(os.path.join(job.directory, "tmp"))]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                words = line.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(job.directory) for word in words):
            left.append(f"process {pid}: {os.path.basename(words[0])}")
    return left


def last_lines(job, count=4):
    """Returns the last lines of every process, for a person who looks for the cause."""
    lines = []
    for replica in job.replicas:
        state = "runs" if replica.alive() else f"ended with {replica.code}"
        step = replica.records[-1].step if replica.records else 0
        lines.append(f"rank {replica.rank}, process {replica.pid}, {replica.struck or 'not struck'}, {state}, step {step}:")
        lines += ["    " + line for line in [line for line in replica.said() if not re.match(r"step \d+/", line)][-count:]]
    return lines


def strikes(job):
    """Returns a line for each strike, with its seconds since the begin of the storm."""
    begun = job.window_begun or job.begun
    return [f"{strike.begun - begun:8.2f} s: "
            + (f"kill of the {job.place.holder}" if strike.kind == "holder" else f"{strike.kind} of rank {strike.rank}")
            + (f", for {strike.ended - strike.begun:.2f} s" if strike.ended else "") for strike in job.strikes]
