#!/usr/bin/env python3
"""Times exchanges over long ways: Entrain beside plain sockets and Gloo, in clusters that cluster.sh emulates (as root; iproute2).

    bench/wan.py --quick                                    # under four minutes
    bench/wan.py --rate 1gbit --delay 100 --loss 0,0.1      # these cells of the table
    bench/wan.py --list                                     # what would run; measures nothing
    bench/wan.py --read build/wan.jsonl                     # the table of an earlier run; measures nothing

A cell is a rate, a round trip, a loss, a number of nodes and of sites. Each cell has a fresh cluster, in which the programs run one after
the other: way-bench (Entrain), plain-sockets and gloo-way (where Gloo is installed). Each program makes new connections.
PREFIX.jsonl gets all lines of all programs, with the cell; PREFIX.md and stdout get the table.

A time in the table is that of the slowest node. There are three: of the first call on fresh connections, the median of later calls, and of
a call after silence. The bound is the time of the bytes that a node must send, at the rate. Round trips are (later - bound) / round trip.
Plain sockets: each node sends as many bytes as in an
all_reduce, to all others at once, and waits for nothing before it sends. That is a floor for two nodes. If sites have several nodes, a good
all_reduce sends less over the long way. An update of ACCO has two exchanges, without compute to hide them behind."""
import argparse
import itertools
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("delay-frames", "plain-sockets", "way-bench")
SUBJECTS = ("all_reduce", "edit", "acco", "zero1")
QUICK = {"rate": "1gbit", "delay": "20,100", "loss": "0,0.1", "nodes": "2", "sites": "2", "bytes": "4000000", "params": "1M", "silence": "1",
         "calls": 3}
FULL = {"rate": "100mbit,1gbit", "delay": "0,20,100,200,300", "loss": "0,0.1,1", "nodes": "2,4,8", "sites": "1,2,3", "bytes": "64K,1M,16M,64M",
        "params": "1M,10M,40M", "silence": "30", "calls": 3}


def number_of(text, kilo):
    scale = {"K": kilo, "M": kilo**2}.get(text[-1:], 1)
    return int(text.rstrip("KM")) * scale


def split(nodes, sites):
    """Returns the number of nodes of each site, as equal as possible."""
    return [nodes // sites + (i < nodes % sites) for i in range(sites)]


def cells_of(options):
    words = [getattr(options, name).split(",") for name in ("rate", "delay", "loss", "nodes", "sites")]
    cells = []
    for rate, delay, loss, nodes, sites in itertools.product(*words):
        nodes, sites = int(nodes), int(sites)
        # One site has no long way: only the cell without delay and loss says something.
        if sites > nodes or (sites == 1 and (float(delay) or float(loss))):
            continue
        cells.append({"rate": rate, "delay_ms": int(delay), "loss": float(loss), "sites": split(nodes, sites)})
    return cells


def steps_of(cell, options, folder):
    """Returns the commands of a cell, in the order in which they run."""
    bench = options.build / "bench"
    common = ["--calls", str(options.calls), "--silence", options.silence, "--rate", cell["rate"]]
    if cell["delay_ms"]:
        common += ["--round-trip", str(cell["delay_ms"])]
    sizes = {number_of(text, 1024) for text in options.bytes.split(",")} if "all_reduce" in options.subjects else set()
    params = [number_of(text, 1000) for text in options.params.split(",")]
    steps = [[bench / "way-bench", *common, "all_reduce", str(size)] for size in sorted(sizes)]
    for subject in options.subjects:
        if subject != "all_reduce":
            sizes |= {4 * count for count in params}
            for count in params:
                layers = [str(options.layers)] if subject == "edit" else []
                steps.append([bench / "way-bench", *common, subject, str(count), *layers])
    for size in sorted(sizes):
        steps += [[bench / "plain-sockets", *common, str(size), count] for count in options.connections.split(",") if count != "0"]
        for algorithm in options.gloo:
            meeting = pathlib.Path(tempfile.mkdtemp(dir=folder))
            steps.append([bench / "gloo-way", *common, algorithm, str(size), meeting])
    return steps


def script_of(steps, timeout):
    """Returns a shell script that every node runs. Each step has ports of its own, so that no node joins a step that is over."""
    lines = []
    for i, step in enumerate(steps):
        lines.append(f"echo '{{\"step\": {i}}}'")
        lines.append(f"MASTER_PORT={29400 + 10 * i} timeout -k 5 {timeout} {shlex.join(map(str, step))} || echo '{{\"failed\": '$?'}}'")
    return "\n".join(lines)


def run_cluster(build, *arguments):
    """Runs cluster.sh. Returns its exit code and its stdout. If this program is interrupted, cluster.sh removes its cluster."""
    process = subprocess.Popen([ROOT / "bench" / "cluster.sh", "--build", build, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.returncode, output


def check_cluster(build, programs, runs=True):
    """Ends this program if cluster.sh cannot run the programs."""
    name = pathlib.Path(sys.argv[0]).name
    for program in programs:
        if not (build / "bench" / program).exists():
            sys.exit(f"{name}: {build / 'bench' / program} is not built")
    if runs and os.geteuid() != 0:
        sys.exit(f"{name}: network namespaces need root")


def measure(cell, options):
    """Runs a cell. Returns its lines."""
    with tempfile.TemporaryDirectory() as folder:
        steps = steps_of(cell, options, folder)
        shape = ["--sites", ",".join(map(str, cell["sites"])), "--rate", cell["rate"], "--delay", cell["delay_ms"],
                 "--loss", str(cell["loss"]).removesuffix(".0"), "--seed", options.seed]
        for name in ("site_rate", "up", "jitter", "reorder", "congestion"):
            if getattr(options, name):
                shape += ["--" + name.replace("_", "-"), getattr(options, name)]
        code, output = run_cluster(options.build, *shape, "sh", "-c", script_of(steps, options.timeout))
    if code != 0 and not output:
        sys.exit("wan.py: cluster.sh failed")
    lines, step = [], []
    for line in map(json.loads, output.splitlines()):
        if "step" in line:
            step = [pathlib.Path(steps[line["step"]][0]).name, *map(str, steps[line["step"]][1:])]
        else:
            lines.append({**cell, "congestion": options.congestion or system_congestion(), **line, "command": " ".join(step)})
            if "failed" in line:
                print(f"wan.py: failed with {line['failed']}: {' '.join(step)}", file=sys.stderr)
    return lines


def system_congestion():
    return pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def ms(seconds):
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def size_text(line):
    if "params" in line:
        return f"{line['params'] / 1e6:g} M"
    return f"{line['bytes'] >> 20} MiB" if line["bytes"] % (1 << 20) == 0 else f"{line['bytes'] >> 10} KiB" if line["bytes"] % 1024 == 0 else \
        f"{line['bytes'] / 1e6:g} MB"


def cell_key(line):
    return (line["rate"], line["delay_ms"], line["loss"], tuple(line["sites"]), line["congestion"])


def column_of(line):
    names = {"way-bench": "Entrain", "plain-sockets": f"plain {line.get('connections')}", "gloo-way": "Gloo " + line.get("algorithm", "")}
    return names[line["program"]]


def table(lines):
    """Returns the table in markdown."""
    lines = [line for line in lines if "failed" not in line]
    calls = {}  # (cell, column, subject or "exchange", bytes) -> call -> line
    for line in lines:
        subject = line["subject"] if line["program"] == "way-bench" else "exchange"
        calls.setdefault((cell_key(line), column_of(line), subject, line["bytes"]), {})[line["call"]] = line
    plain = sorted({key[1] for key in calls if key[1].startswith("plain")}, key=lambda name: int(name.split()[1]))
    columns = plain + sorted({key[1] for key in calls if key[1].startswith("Gloo")})
    texts = ["Times in ms: first / later / silent.", "",
             "| " + " | ".join(["rate", "round trip, ms", "loss, %", "nodes", "exchange", "bound", "Entrain", "round trips", *columns]) + " |",
             "|---" * (8 + len(columns)) + "|"]
    for (key, column, subject, size), own in calls.items():
        if column != "Entrain":
            continue
        some = next(iter(own.values()))
        later = own.get("later", some)
        cells = [key[0], str(key[1]), f"{key[2]:g}", "+".join(map(str, key[3])), f"{subject} {size_text(some)}", ms(some["bound"]), three(own),
                 f"{later['round_trips']:.1f}" if "round_trips" in later else ""]
        cells += [three(calls.get((key, name, "exchange", size), {})) for name in columns]
        texts.append("| " + " | ".join(cells) + " |")
    return "\n".join(texts) + "\n"


def three(calls):
    return " / ".join(ms(calls[name]["seconds"]) if name in calls else "–" for name in ("first", "later", "silent")) if calls else ""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="other defaults: " + ", ".join(f"--{k} {v}" for k, v in QUICK.items()))
    for name, text in (("rate", "of links"), ("delay", "round trips between sites, ms"), ("loss", "percent, each way"), ("nodes", "numbers of nodes"),
                       ("sites", "numbers of sites"), ("bytes", "of all_reduce; 64K is 65536"), ("params", "of edit, acco and zero1; 1M is 1000000"),
                       ("silence", "seconds before the last call; 0: no such call")):
        parser.add_argument("--" + name, help=f"{text} ({FULL[name]})")
    parser.add_argument("--calls", type=int, help=f"later calls ({FULL['calls']})")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="(%(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="of edit (%(default)s)")
    parser.add_argument("--connections", default="1,4,16", help="of plain-sockets, between two nodes; 0: leaves it out (%(default)s)")
    parser.add_argument("--gloo", default="ring", help="algorithms of Gloo: ring, bcube; none: leaves Gloo out (%(default)s)")
    for name in ("site-rate", "up", "jitter", "reorder", "congestion"):
        parser.add_argument("--" + name, default="", help="as cluster.sh has it (not set)")
    parser.add_argument("--seed", type=int, default=1, help="of lost packets (%(default)s)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for a program (%(default)s)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="folder (build/release)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "wan", help="PREFIX of the files (build/wan)")
    parser.add_argument("--list", action="store_true", help="print the commands of each cell and end")
    parser.add_argument("--read", type=pathlib.Path, nargs="+", help="JSON lines of earlier runs: print their table and end")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.subjects = options.subjects.split(",")
    for subject in options.subjects:
        if subject not in SUBJECTS:
            parser.error(f"--subjects: \"{subject}\" is not one of {', '.join(SUBJECTS)}")
    options.gloo = [name for name in options.gloo.split(",") if name != "none"]
    options.build = options.build.resolve()
    return options


def check_programs(options):
    check_cluster(options.build, PROGRAMS, runs=not options.list)
    if options.gloo and not (options.build / "bench" / "gloo-way").exists():
        print("wan.py: gloo-way is not built (package libgloo-dev): Gloo is left out", file=sys.stderr)
        options.gloo = []


def main():
    options = arguments()
    if options.read:
        print(table([json.loads(line) for path in options.read for line in path.read_text().splitlines()]), end="")
        return
    check_programs(options)
    cells = cells_of(options)
    if not cells:
        sys.exit("wan.py: no cell is left: one site has no delay and no loss, and a site has a node at least")
    lines = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for i, cell in enumerate(cells):
        print(f"wan.py: cell {i + 1} of {len(cells)}: {cell}", file=sys.stderr, flush=True)
        if options.list:
            with tempfile.TemporaryDirectory() as folder:
                print("\n".join(shlex.join(map(str, step)) for step in steps_of(cell, options, folder)))
            continue
        lines += measure(cell, options)
        pathlib.Path(f"{options.out}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        pathlib.Path(f"{options.out}.md").write_text(table(lines))
    if not options.list:
        print(table(lines), end="")
        sys.exit(1 if any("failed" in line for line in lines) else 0)


if __name__ == "__main__":
    main()
