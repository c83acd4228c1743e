#!/usr/bin/env python3
"""Measures Entrain over shm and over tcp, its peers, and a bare exchange over shm, in alternation on the same cores.

Runs entrain-perf, floor-bench and the programs of the peers that a build folder has, a few sizes at a time, one after
the other, in several rounds. For each collective and rank count, over shared memory and over TCP, it prints the
medians over the rounds and the ratio of Entrain's time to that of the fastest peer (below 1: Entrain is ahead). Over
shm it also prints the ratio to the bare exchange of floor-bench, for the collectives that it has. Writes the
programs' output with "library" and "round" added (PREFIX.jsonl), the medians (PREFIX.csv) and a log-log picture
(PREFIX.png).

A peer that fails or hangs is named at the end, and its cells stay empty. If Entrain fails, or one of its elements is
wrong, the exit code is 1."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import compare_tables as tables  # noqa: E402  (the path comes first)

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MANY = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,gather,scatter,all_to_all,barrier,send_recv"
FULL = {"collectives": MANY, "ranks": "2,4", "min_bytes": "8", "max_bytes": "32M", "factor": 4, "at_once": 4,
        "rounds": 3, "budget": 0.05}
# Takes some four minutes on two cores.
QUICK = {**FULL, "collectives": "all_reduce,reduce_scatter,all_gather,broadcast", "max_bytes": "16M", "factor": 64,
         "at_once": 5, "rounds": 2, "budget": 0.03}
GLOO_HAS = tuple(MANY.split(","))
FLOOR_HAS = ("all_reduce", "reduce_scatter", "all_gather", "send_recv")
# Gloo's busy-polling pairs never yield, so they are not measured if ranks share cores. In larger transfers they have hung.
GLOO_SYNC_MOST = 4 << 20
BAD_USAGE = 2


def to_bytes(size):
    return int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)


class Command:
    """A program with its arguments. If `ours` is true, compare.py fails if the program fails."""

    def __init__(self, library, words, timeout, ours=False):
        self.library, self.words, self.timeout, self.ours = library, [str(word) for word in words], timeout, ours


def end_group(process):
    """Asks the program and the processes in its session to end, then kills them."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(3)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def how_it_ended(code):
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def measure(words, timeout):
    """Runs a program. Returns its JSON lines, one line about its failure or None, and its exit code or None."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "lines")
        file.touch()
        words = [*words, "--json", str(file)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                                   start_new_session=True)
        failure = None
        try:
            said = process.communicate(timeout=timeout)[1]
            if process.returncode != 0:
                said = "; ".join(line.strip() for line in said.splitlines() if line.strip()) or "no message"
                failure = f"{shlex.join(words[:-2])}: {how_it_ended(process.returncode)}: {said}"
        except subprocess.TimeoutExpired:
            failure = f"{shlex.join(words[:-2])}: no end within {timeout} s"
            end_group(process)
            process.stderr.close()
        return complete_lines(file.read_text()), failure, process.returncode


def complete_lines(text):
    """Returns the JSON lines. Leaves out an incomplete last line, which a killed program may leave."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def size_groups(options, collective):
    """Returns groups of sizes. One run of a program measures one group. A barrier has no size."""
    if collective == "barrier":
        return [[]]
    sizes, last = [to_bytes(options.min_bytes)], to_bytes(options.max_bytes)
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] * options.factor, last))
    return [sizes[i:i + options.at_once] for i in range(0, len(sizes), options.at_once)]


def commands(options, collective, ranks, group):
    """Returns the commands that measure one group of sizes once."""

    def arguments(sizes):
        words = [collective, "-n", ranks, "--budget", options.budget]
        if sizes:
            words += ["--min-bytes", sizes[0], "--max-bytes", sizes[-1], "--factor", options.factor]
        return words

    def peer(name, words, programs=1):
        # The program has a time limit of its own. If the program does not end by itself, measure() kills it.
        return Command(name, [*words, "--timeout", options.timeout], options.timeout * programs + 15)

    bench = {name: options.build / f"bench/{name}-bench" for name in ("floor", "openmpi", "mpich", "gloo")}
    transports = options.transports.split(",")
    for transport in transports:
        words = [options.build / "tools/entrain-perf", *arguments(group), "--transport", transport]
        yield Command("entrain", words, options.timeout, ours=True)
    if collective in FLOOR_HAS and tables.FLOOR_OVER in transports:
        yield peer("floor", [bench["floor"], *arguments(group)])
    for name in ("openmpi", "mpich"):
        if name in options.peers:
            yield peer(name, [bench[name], *arguments(group)], 4)
    if "gloo" in options.peers and collective in GLOO_HAS:
        choice = {"all_reduce": ["ring,bcube,halving_doubling"], "reduce_scatter": ["halving_doubling"]}.get(collective)
        yield peer("gloo", [bench["gloo"], *arguments(group), *(["--algorithm", *choice] if choice else [])], 3)
        most = [size for size in group if size <= GLOO_SYNC_MOST]
        if choice and ranks <= options.cores and most:
            yield peer("gloo", [bench["gloo"], *arguments(most), "--algorithm", "halving_doubling_sync"])
    for given in options.peer:
        name, _, command = given.partition("=")
        yield peer(name, [*shlex.split(command), *arguments(group)], 4)


def run(options, keep):
    """Returns all lines, the failures of Entrain, and the failures of the other programs. After each command, passes its
    lines to `keep`."""
    lines, failures, notes, unable = [], [], [], set()
    for ranks in map(int, options.ranks.split(",")):
        for collective in options.collectives.split(","):
            for group in size_groups(options, collective):
                for turn in range(options.rounds):
                    for command in commands(options, collective, ranks, group):
                        if (command.library, collective) in unable:
                            continue
                        got, failure, code = measure(command.words, command.timeout)
                        got = [{**line, "library": command.library, "round": turn} for line in got]
                        lines += got
                        keep(got)
                        if failure is None:
                            continue
                        (failures if command.ours else notes).append(failure)
                        if code == BAD_USAGE and not command.ours:
                            unable.add((command.library, collective))
            print("\n".join(tables.table(lines, collective, ranks)), flush=True)
    return lines, failures, notes


def machine():
    model = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line]
    return {"machine": f"{len(os.sched_getaffinity(0))} cores, {model[0] if model else platform.machine()}, "
                       f"Linux {platform.release()}, load {os.getloadavg()[0]:.1f}",
            "date": datetime.datetime.now().isoformat(" ", "minutes"),
            "command": shlex.join(["bench/compare.py", *sys.argv[1:]])}


def heading(setting):
    return f"# {setting['machine']}; {setting['date']}; {setting['command']}"


def report(options, lines, failures, notes):
    print("\n" + "\n".join(tables.summary(lines)))
    prefix = str(options.out)
    pathlib.Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(prefix + ".csv").write_text(tables.csv_text(lines))
    try:
        import compare_picture  # needs matplotlib
        compare_picture.draw(lines, prefix + ".png")
        print(f"\n{prefix}.csv  {prefix}.png")
    except ImportError as error:
        print(f"\n{prefix}.csv  (no picture: {error})")
    if notes:
        print("\nPeers that failed; their cells are empty, or from the rounds that went well:")
        for note, count in sorted({note: notes.count(note) for note in notes}.items()):
            print(f"  {count} x {note}")
    wrong = sum(line["wrong"] or 0 for line in lines if line.get("library") == "entrain")
    for failure in failures:
        print(f"compare.py: {failure}", file=sys.stderr)
    if wrong:
        print(f"compare.py: {wrong} wrong elements", file=sys.stderr)
    return 1 if wrong or failures else 0


def understand():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four collectives, five sizes, two rounds: some four minutes")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"),
                        help="folder of the programs (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/compare"), metavar="PREFIX",
                        help="of the files that are written (%(default)s)")
    parser.add_argument("--read", type=pathlib.Path, nargs="+", metavar="FILE",
                        help="run nothing; report on these .jsonl files together")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND",
                        help="one more library: COMMAND is run with the arguments that openmpi-bench gets, and writes the "
                             "same JSON lines")
    parser.add_argument("--without", default="", metavar="PEERS", help="leave out these: openmpi,mpich,gloo")
    parser.add_argument("--transports", default="shm,tcp", help="Entrain's (%(default)s)")
    parser.add_argument("--timeout", type=int, default=60, help="seconds a program may take for a few sizes (%(default)s)")
    for name, value in FULL.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), help=f"({value}; quick: {QUICK[name]})")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if any("=" not in given for given in options.peer):
        parser.error("--peer: expected NAME=COMMAND")
    if options.factor < 2 or options.at_once < 1 or options.rounds < 1:
        parser.error("--factor: at least 2; --at-once, --rounds: at least 1")
    unknown = set(filter(None, options.without.split(","))) - {"openmpi", "mpich", "gloo"}
    if unknown:
        parser.error(f"--without: {', '.join(sorted(unknown))} is none of openmpi, mpich, gloo")
    if options.read is None:
        for program in ("tools/entrain-perf", "bench/floor-bench"):
            if not (options.build / program).exists():
                parser.error(f"--build: {options.build / program} does not exist")
    return options


def main():
    options = understand()
    if options.read is not None:
        lines = [line for file in options.read for line in complete_lines(file.read_text())]
        for setting in (line for line in lines if "machine" in line):
            print(heading(setting))
        for collective, ranks in tables.parts(lines):
            print("\n".join(tables.table(lines, collective, ranks)))
        return report(options, lines, [], [])
    options.cores = len(os.sched_getaffinity(0))
    wanted = [name for name in ("openmpi", "mpich", "gloo") if name not in options.without.split(",")]
    options.peers = [name for name in wanted if (options.build / f"bench/{name}-bench").exists()]
    notes = [f"{name}-bench is not in {options.build}: its package was not found" for name in wanted
             if name not in options.peers]
    setting = machine()
    print(heading(setting))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{options.out}.jsonl", "w", encoding="utf-8") as file:

        def keep(some):
            file.write("".join(json.dumps(line) + "\n" for line in some))
            file.flush()

        keep([setting])
        lines, failures, more = run(options, keep)
    return report(options, lines, failures, notes + more)


if __name__ == "__main__":
    sys.exit(main())
