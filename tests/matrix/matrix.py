"""The fault matrix on real processes: tests/faults.py --matrix.

Each cell of cells.py is a world of three processes (fault_rank.cc). One of them, the victim, stops at a phase and says so. The
driver brings the fault about, lets the victim go on, and judges what every rank reports:

- every call returned by its deadline plus 250 ms, plus the time for which the processes waited for cores;
- errors name the victim;
- the ranks that are left made a world of their own, and have the same bits of a sum in it;
- nothing is left over: processes, files, shared memory.
"""

import argparse
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from matrix import cells
from matrix.proxy import Proxy

SIZE = 3
GRACE_S = 0.25  # the library ends a call within this time after its deadline
PATIENCE_S = 60.0  # longest time until a rank writes a line, on any machine
DISK_BYTES = 256 << 10
NEAR = ("first byte", "middle", "last byte", "wait", "exchange", "commit", "checkpoint", "leave")  # the others say so


@dataclasses.dataclass
class Said:
    """The lines that one rank has written."""
    lines: list = dataclasses.field(default_factory=list)
    code: object = None

    def calls(self):
        return [line for line in self.lines if "call" in line]

    def failed(self):
        return [call for call in self.calls() if call["status"] not in ("ENTRAIN_OK", "ENTRAIN_IN_PROGRESS")]

    def last(self, name):
        found = [line for line in self.lines if name in line]
        return found[-1] if found else None


class Cell:
    """One world: run() fills in `faults` and `worst_s`."""

    def __init__(self, phase, fault, transport, victim, options):
        self.phase, self.fault, self.transport, self.options = phase, fault, transport, options
        self.victim = {"join": SIZE - 1, "checkpoint": 0}.get(phase, victim)  # the newcomer; the rank that writes a file
        self.outcome = cells.expected(phase, fault, transport)
        self.said = [Said() for _ in range(SIZE)]
        self.processes = [None] * SIZE
        self.words = queue.Queue()
        self.faults, self.worst_s, self.waited_s = [], 0.0, 0.0
        self.proxy, self.woken_at = None, 0.0
        self.directory = self.disk = ""

    def name(self):
        return f"{self.phase}:{self.fault}:{self.transport}"

    def others(self):
        return [rank for rank in range(SIZE) if rank != self.victim]

    def path(self, *names):
        return os.path.join(self.directory, *names)

    # ---- Running

    def run(self):
        self.directory = tempfile.mkdtemp(prefix="entrain-matrix-")
        try:
            self.prepare()
            if self.play():
                self.judge()
        finally:
            self.clear()
        return self

    def prepare(self):
        os.mkdir(self.path("disk"))
        if self.fault == "disk full":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", self.path("disk")], check=True)
            self.disk = self.path("disk")
        for name in ("store", "tmp"):
            os.mkdir(self.path("disk", name))
        for name in ("key", "wrong"):
            with open(self.path(name), "w", encoding="ascii") as key:
                key.write(f"this is the {name} of thirty-two bytes or more")
            os.chmod(self.path(name), 0o600)
        if self.fault in cells.NETWORK:
            self.proxy = Proxy(self.victim)

    def environment(self, rank):
        chosen = {k: v for k, v in os.environ.items() if not k.startswith("ENTRAIN_")}
        chosen.update(ENTRAIN_TRANSPORTS=self.transport.split("+")[0], ENTRAIN_INTERFACE="127.0.0.1",
                      ENTRAIN_ALGORITHMS="all_reduce:ring", TMPDIR=self.path("disk", "tmp"))
        if self.transport == "ucx":
            chosen.update(UCX_TLS="tcp", ENTRAIN_INSECURE="1", UCX_NET_DEVICES="lo")
        if self.fault in cells.NETWORK and self.transport != "ucx":
            chosen.update(ENTRAIN_HOST_ID=f"host{rank}", ENTRAIN_INSECURE="1")  # ranks of one host believe a reset
        if self.transport == "tcp+TLS":
            chosen["ENTRAIN_TLS"] = "all"
        elif self.fault == "corrupt byte":
            chosen["ENTRAIN_CRC"] = "1"
        if self.transport == "tcp+TLS" or self.fault == "wrong key":
            wrong = self.fault == "wrong key" and rank == self.victim
            chosen["ENTRAIN_KEY_FILE"] = self.path("wrong" if wrong else "key")
        return chosen

    def start(self, rank):
        flags = ["--rank", str(rank), "--size", str(SIZE), "--victim", str(self.victim), "--phase", self.phase,
                 "--store", "file:" + self.path("disk", "store"), "--directory", self.path("disk", "checkpoints"),
                 "--timeout-ms", str(int(self.options.timeout * 1000))]
        if self.proxy:
            flags += ["--proxy", str(self.proxy.port)]
        with open(self.path(f"log{rank}"), "wb") as log:
            process = subprocess.Popen([self.options.rank, *flags], env=self.environment(rank), stdin=subprocess.PIPE, bufsize=0,
                                       stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        self.processes[rank] = process
        threading.Thread(target=self.listen, args=(rank, process.stdout), daemon=True).start()

    def listen(self, rank, lines):
        for line in lines:
            word = json.loads(line)
            if self.proxy and rank == self.victim and "listens" in word:
                self.proxy.victim_ports.add(word["listens"])
            self.said[rank].lines.append(word)
            self.words.put((rank, word))
        self.words.put((rank, None))

    def wait_for(self, key, ranks):
        """Waits. Returns True when each of these ranks has written a line with `key`, or has ended."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            left = [r for r in ranks if self.said[r].last(key) is None and self.said[r].last("done") is None and
                    self.said[r].code is None]
            if not left:
                return True
            try:
                rank, word = self.words.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                self.faults.append(f"ranks {left} do not say {key!r}")
                return False
            if word is None:
                self.said[rank].code = self.processes[rank].wait()

    def tell(self, rank, order):
        try:
            self.processes[rank].stdin.write(order.encode() + b"\n")
        except OSError:
            pass  # it has ended

    def play(self):
        late = (self.victim + 1) % SIZE if self.phase == "bootstrap" else None
        for rank in range(SIZE):
            if rank != late:
                self.start(rank)
        if not self.reaches_phase():
            return False
        self.strike()
        if late is not None:
            self.start(late)
        if not self.wait_for("done", self.others()):
            return False
        if self.fault == "stop":
            self.woken_at = time.monotonic()
            os.kill(self.processes[self.victim].pid, signal.SIGCONT)
        if not self.wait_for("done", [self.victim]):
            return False
        for rank in range(SIZE):
            self.tell(rank, "")
        for rank in range(SIZE):
            try:
                self.said[rank].code = self.processes[rank].wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.faults.append(f"rank {rank} does not end")
                return False
        return True

    def reaches_phase(self):
        if self.phase == "bootstrap":
            seat = f".{self.victim}"
            give_up = time.monotonic() + PATIENCE_S
            while not any(name.startswith("m") and name.endswith(seat) for name in os.listdir(self.path("disk", "store"))):
                if time.monotonic() > give_up:
                    self.faults.append("the victim takes no place in the store")
                    return False
                time.sleep(0.002)
            return True
        if not self.wait_for("at", [self.victim]) or self.said[self.victim].last("at") is None:
            self.faults.append("the victim does not come to its phase")
            return False
        if self.phase in NEAR and not self.wait_for("near", self.others()):
            return False
        time.sleep(0.1)  # the others come to the place where they wait for the victim, which cannot be observed
        return True

    def strike(self):
        victim = self.processes[self.victim]
        order = {"clock jump": "clock 86400", "no descriptors": "descriptors", "no memory": "memory"}.get(self.fault, "go")
        if self.fault == "kill":
            os.kill(victim.pid, signal.SIGKILL)
        elif self.fault == "stop":
            os.kill(victim.pid, signal.SIGSTOP)
        elif self.fault == "disk full":
            fill(self.disk)
        elif self.proxy:
            self.proxy.strike(self.fault)
        if self.phase != "bootstrap" or order != "go":
            self.tell(self.victim, order)

    def clear(self):
        for rank, process in enumerate(self.processes):
            if process is None:
                continue
            process.kill()
            process.wait()
            try:
                os.killpg(process.pid, signal.SIGKILL)
                self.faults.append(f"rank {rank} left a process")
            except ProcessLookupError:
                pass
        if self.proxy:
            self.proxy.close()
        if self.faults and self.options.logs:
            shutil.copytree(self.directory, os.path.join(self.options.logs, self.name().replace(" ", "_")), dirs_exist_ok=True)
        if self.disk:
            subprocess.run(["umount", self.disk], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- Judging

    def judge(self):
        self.waited_s = sum(line["waited"] for said in self.said for line in said.lines if "waited" in line)
        self.judge_times()
        self.judge_errors()
        self.judge_bits()
        self.judge_leftovers()
        for rank in range(SIZE):
            killed = rank == self.victim and self.may_end()
            if self.said[rank].code != 0 and not killed:
                self.faults.append(f"rank {rank} ended with {self.said[rank].code}")

    def may_end(self):
        """Returns whether the victim may end other than by itself. UCX aborts a process that gets no descriptor, whose
        connections are reset while it makes them, or whose peers have gone on without it."""
        return self.fault in ("kill", "no memory") or (
            self.transport == "ucx" and self.fault in ("stop", "no descriptors", *cells.NETWORK))

    def judge_times(self):
        grace = GRACE_S + self.waited_s
        for rank, said in enumerate(self.said):
            for call in said.calls():
                due = call["begin"] + call["limit"]
                if rank == self.victim:
                    due = max(due, self.woken_at)
                if self.outcome is cells.SLOW and call["call"] == "edit_round":
                    due += call["limit"]  # the round is finished over the slow connection, with a deadline of its own
                over = call["end"] - due
                self.worst_s = max(self.worst_s, over)
                if over > grace:
                    self.faults.append(f"rank {rank}: {call['call']} ended {over:.3f} s after its deadline (grace {grace:.3f} s)")

    def judge_errors(self):
        """Checks which rank the ranks that are left name in their first errors, and whether they noticed."""
        first = {rank: failed[0] for rank in self.others() if (failed := self.said[rank].failed())}
        for rank, call in first.items():
            # The error of a save names the rank in its text only.
            named_in_text = call["call"] == "edit_save" and f"rank {self.victim}: " in call["text"]
            named = call["guilty"] == self.victim or named_in_text or (self.outcome.blames == "an end" and call["guilty"] >= 0)
            if not named and self.outcome.blames != "anyone":
                self.faults.append(f"rank {rank} names {call['guilty']}: {call['call']}: {call['text']}")
        for rank in self.others():
            training = self.said[rank].last("replicas")
            if training and training["replicas"] == SIZE - 1 and training["lost"] != self.victim:
                self.faults.append(f"rank {rank} lost replica {training['lost']}")
        if self.outcome.lost is False and first:
            self.faults.append(f"an error where nothing should happen: {[call['text'] for call in first.values()]}")
        if self.outcome.lost and any(self.in_world(rank) == SIZE for rank in self.others()):
            self.faults.append("the fault went unnoticed")

    def in_world(self, rank):
        """Returns the size of the world of this rank's last sum, or 0 if there is none."""
        check = self.said[rank].last("bits")
        return check["size"] if check else 0

    def judge_bits(self):
        """Checks that the ranks that went on in one world have the same sum, and that there is at most one world."""
        sums = {rank: check for rank in range(SIZE) if (check := self.said[rank].last("bits"))}
        missing = [rank for rank in self.others() if rank not in sums]
        if missing and self.outcome.goes_on:
            self.faults.append("without a sum: " + "; ".join(
                f"rank {r}: {call['call']}: {call['text']}" for r in missing for call in self.said[r].failed()[-1:]))
        mine = sums.pop(self.victim, None)
        if mine and mine["size"] < SIZE and self.outcome.goes_on:
            self.faults.append(f"the victim went on in a world of {mine['size']}")
        elif mine:
            sums[self.victim] = mine
        if len({(check["bits"], check["size"]) for check in sums.values()}) > 1:
            self.faults.append(f"sums differ: {sums}")
        anchors = {line["anchor"] for rank in self.others() if (line := self.said[rank].last("anchor"))}
        if len(anchors) > 1:
            self.faults.append(f"anchors differ: {anchors}")

    def judge_leftovers(self):
        left = os.listdir(self.path("disk", "tmp"))
        if left:
            self.faults.append(f"left in TMPDIR: {left}")
        saved = self.path("disk", "checkpoints")
        parts = [name for name in (os.listdir(saved) if os.path.isdir(saved) else []) if name.endswith(".tmp")]
        if parts and not self.may_end():
            self.faults.append(f"left of a checkpoint: {parts}")


def fill(disk):
    """Fills a file system of DISK_BYTES."""
    with open(os.path.join(disk, "filler"), "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "entrain" in name} if os.path.isdir("/dev/shm") else set()


# ---- The page


def table():
    """Returns the page of docs/lab, without figures of a run."""
    reasons = []
    lines = ["| phase | " + " | ".join(cells.FAULTS) + " |", "|---" * (len(cells.FAULTS) + 1) + "|"]
    for phase in cells.PHASES:
        row = []
        for fault in cells.FAULTS:
            here = []
            for transport in cells.TRANSPORTS:
                outcome = cells.expected(phase, fault, transport)
                if isinstance(outcome, str) and outcome not in reasons:
                    reasons.append(outcome)
                here.append(str(reasons.index(outcome) + 1) if isinstance(outcome, str) else outcome.letter)
            row.append(here[0] if len(set(here)) == 1 else " ".join(here))
        lines.append(f"| {phase} | " + " | ".join(row) + " |")
    lines += ["", "| | |", "|---|---|"] + [f"| {outcome.letter} | {outcome.meaning} |" for outcome in cells.OUTCOMES]
    lines += [""] + [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines)


def print_worst(done):
    print("\n| fault | cells | not good | latest return after a deadline | longest wait for cores |\n|---|---|---|---|---|")
    for fault in cells.FAULTS:
        these = [cell for cell in done if cell.fault == fault]
        if these:
            print(f"| {fault} | {len(these)} | {sum(bool(c.faults) for c in these)} | "
                  f"{max(c.worst_s for c in these) * 1000:.0f} ms | {max(c.waited_s for c in these) * 1000:.0f} ms |")


# ---- The command


def chosen_cells(options):
    if options.cells:
        return [tuple(cell.split(":")) for cell in options.cells.split(",")]
    if options.quick:
        return cells.QUICK
    return [cell for cell in cells.all_cells() if all(
        not wanted or one in wanted.split(",") for one, wanted in zip(cell, (options.phases, options.faults, options.transports)))]


def can_mount():
    return subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def here(cell, options):
    """Returns the reason why this machine cannot run the cell, or None if it can."""
    if cell[2] == "ucx" and not options.has_ucx:
        return "no ucx here"
    if cell[1] == "disk full" and not options.mounts:
        return "needs root, to mount a small disk"
    return None


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests/faults.py --matrix", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", help="the program fault_rank")
    parser.add_argument("--table", action="store_true", help="prints the table of cells, and runs nothing")
    parser.add_argument("--page", help="checks that this page has the table, and runs nothing")
    parser.add_argument("--quick", action="store_true", help="the cells that the tests run")
    parser.add_argument("--cells", help="some cells: PHASE:FAULT:TRANSPORT,...")
    parser.add_argument("--phases", help="only these, with commas between them")
    parser.add_argument("--faults", help="only these")
    parser.add_argument("--transports", help="only these")
    parser.add_argument("--timeout", type=float, default=2.0, help="the deadline of each call, seconds")
    parser.add_argument("--at-once", type=int, default=2, help="cells that run beside each other")
    parser.add_argument("--seed", type=int, default=0, help="which rank is the victim")
    parser.add_argument("--logs", help="directory for what the ranks of bad cells wrote")
    parser.add_argument("--verbose", action="store_true", help="shows what each rank said")
    options = parser.parse_args(arguments)
    if options.table:
        print(table())
        return 0
    if options.page:
        with open(options.page, encoding="utf-8") as page:
            same = table() in page.read()
        print("" if same else f"{options.page} lacks the table of tests/faults.py --matrix --table")
        return 0 if same else 1
    if not options.rank:
        parser.error("--rank is missing")
    options.rank = os.path.abspath(options.rank)
    options.mounts = can_mount()
    if options.mounts and "MATRIX_MOUNTS" not in os.environ:
        os.environ["MATRIX_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-B", *sys.argv])
    options.has_ucx = "ucx" in subprocess.run([options.rank, "--transports"], stdout=subprocess.PIPE, check=False, text=True,
                                              env={**os.environ, "UCX_TLS": "tcp"}).stdout
    before, begun = shared_memory(), time.monotonic()
    wanted = chosen_cells(options)
    skipped = [(cell, why) for cell in wanted if (why := here(cell, options))]
    writing = threading.Lock()

    def run(job):
        number, (phase, fault, transport) = job
        cell = Cell(phase, fault, transport, (number + options.seed) % SIZE, options).run()
        with writing:
            if cell.faults or options.verbose:
                print(f"{cell.name()}, victim {cell.victim}: " + ("; ".join(cell.faults) or "good"), flush=True)
            if options.verbose:
                for rank, said in enumerate(cell.said):
                    for line in said.lines:
                        print(f"    {rank}: {json.dumps(line)}")
        return cell

    with ThreadPoolExecutor(options.at_once) as pool:
        done = list(pool.map(run, enumerate(cell for cell in wanted if not here(cell, options))))
    for cell, why in skipped:
        print(f"skipped {':'.join(cell)}: {why}")
    print_worst(done)
    bad = [cell for cell in done if cell.faults]
    left = shared_memory() - before
    if left:
        print(f"left in /dev/shm: {left}")
    print(f"{len(done)} cells in {time.monotonic() - begun:.0f} s, {len(skipped)} skipped, {len(bad)} not good")
    return 1 if bad or left else 0
