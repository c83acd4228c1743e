"""Makes tables, counts and CSV from the JSON lines of compare.py."""

import collections
import csv
import io
import statistics

OURS, FLOOR = "entrain", "floor"
TRANSPORTS = ("shm", "tcp")
FLOOR_OVER = "shm"
EVEN = 1.05  # two times count as equal if their ratio is at most EVEN
FLOOR_GOAL = 1.15
FAR = 2  # meet_us above FAR times its usual value: the cores were far apart
COLUMNS = ["collective", "ranks", "bytes", "library", "transport", "algorithm", "rounds", "median_us", "fastest_us",
           "slowest_us", "p95_us", "algbw_gbs", "busbw_gbs"]


def measured(lines):
    """Returns the lines whose times may be compared. Leaves out a file's first line, and peers' lines with wrong
    results."""
    return [line for line in lines if "library" in line and (line["library"] == OURS or not line["wrong"])]


def near(lines):
    """Returns the lines that were measured while the cores were near each other. `lines` must be of one collective and
    rank count. The host sometimes moves the cores of a virtual machine apart. Small calls then take several times as
    long, and meet_us is large."""
    times = sorted(line["meet_us"] for line in lines if line.get("meet_us"))
    usual = times[len(times) // 4] if times else 0
    return [line for line in lines if (line.get("meet_us") or 0) <= FAR * usual]


def parts(lines):
    """Returns (collective, ranks) in the order of their first lines."""
    return list(dict.fromkeys((line["collective"], line["ranks"]) for line in measured(lines)))


def cells(lines, collective, ranks):
    """Returns bytes -> (library, transport, algorithm) -> the lines of all rounds. Entrain chooses its algorithm by
    itself, so its key has an empty algorithm."""
    wanted = [line for line in measured(lines) if (line["collective"], line["ranks"]) == (collective, ranks)]
    every, good = by_size(wanted), by_size(near(wanted))
    # If near() leaves a library without lines at a size, all lines of that size are used.
    return {size: good[size] if good.get(size, {}).keys() == cell.keys() else cell for size, cell in every.items()}


def by_size(lines):
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in lines:
        algorithm = "" if line["library"] == OURS else line["algorithm"]
        found[line["bytes"]][line["library"], line["transport"], algorithm].append(line)
    return dict(sorted(found.items()))


def median(lines, field="median_us"):
    return statistics.median(line[field] for line in lines)


def ours(cell, transport):
    times = [median(got) for (library, over, _), got in cell.items() if library == OURS and over == transport]
    return min(times, default=None)


def floor(cell):
    return min((median(got) for (library, _, _), got in cell.items() if library == FLOOR), default=None)


def best_peer(cell, transport):
    """Returns (median, "openmpi cma") of the fastest peer, or (None, "") if there is none."""
    return min(((median(got), f"{library} {algorithm}") for (library, over, algorithm), got in cell.items()
                if library not in (OURS, FLOOR) and over == transport), default=(None, ""))


def human(size):
    for unit, one in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= one and size % one == 0:
            return f"{size // one}{unit}"
    return str(size)


def time_text(time):
    if time is None:
        return ""
    return f"{time:.2f}" if time < 10 else f"{time:.1f}" if time < 100 else f"{time:.0f}"


def ratio_text(mine, other, even=EVEN):
    if mine is None or other is None:
        return ""
    return f"**{mine / other:.2f}**" if mine / other > even else f"{mine / other:.2f}"


def table(lines, collective, ranks):
    found = cells(lines, collective, ranks)
    rounds = 1 + max((line["round"] for line in measured(lines)), default=0)
    yield f"\n{collective}, {ranks} ranks, f32, median us of {rounds} round{'s' if rounds != 1 else ''}\n"
    yield "| size | shm | best peer | ratio | bare | ratio | tcp | best peer | ratio |"
    yield "|---" * 9 + "|"
    for size, cell in found.items():
        row = [human(size)]
        for over in TRANSPORTS:
            mine, (best, name) = ours(cell, over), best_peer(cell, over)
            row += [time_text(mine), f"{time_text(best)} {name}".strip(), ratio_text(mine, best)]
            if over == FLOOR_OVER:
                row += [time_text(floor(cell)), ratio_text(mine, floor(cell), FLOOR_GOAL)]
        yield "| " + " | ".join(row) + " |"


def summary(lines):
    """Yields lines of text. For each transport: the number of cells in which Entrain is ahead of the peers, and each
    cell in which it is behind. For shm also: the number of cells that are near the bare exchange."""
    taken = sum(len(got) for part in parts(lines) for cell in cells(lines, *part).values() for got in cell.values())
    if taken < len(measured(lines)):
        yield f"{len(measured(lines)) - taken} of {len(measured(lines))} times left out: the cores were far apart"
    for transport in TRANSPORTS:
        yield from count(lines, transport)
    found = ratios(lines, lambda cell: (ours(cell, FLOOR_OVER), floor(cell)))
    if found:
        yield (f"up to {FLOOR_GOAL} times the bare exchange's time: {FLOOR_OVER} in {sum(ratio <= FLOOR_GOAL for ratio, _ in found)} of "
               f"{len(found)} cells")


def ratios(lines, pair):
    """Returns (Entrain's time over the other's, a text about the cell) for each cell that has both."""
    found = []
    for collective, ranks in parts(lines):
        for size, cell in cells(lines, collective, ranks).items():
            mine, other = pair(cell)
            if mine is not None and other is not None:
                found.append((mine / other, f"{collective} {human(size)} on {ranks}"))
    return found


def count(lines, transport):
    found = ratios(lines, lambda cell: (ours(cell, transport), best_peer(cell, transport)[0]))
    ahead = sum(ratio < 1 for ratio, _ in found)
    same = sum(1 <= ratio <= EVEN for ratio, _ in found)
    behind = sorted((one for one in found if one[0] > EVEN), reverse=True)
    if not found:
        return
    yield (f"{transport}, beside the best peer: ahead in {ahead} of {len(found)} cells, up to {EVEN} times its time in "
           f"{same}, behind in {len(behind)}" + (":" if behind else ""))
    if behind:
        yield "  " + ", ".join(f"{what}: {ratio:.2f}" for ratio, what in behind)


def csv_text(lines):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for collective, ranks in parts(lines):
        for size, cell in cells(lines, collective, ranks).items():
            for (library, transport, algorithm), got in cell.items():
                times = [line["median_us"] for line in got]
                writer.writerow([collective, ranks, size, library, transport, algorithm or got[0]["algorithm"], len(got),
                                 median(got), min(times), max(times), median(got, "p95_us"), median(got, "algbw_gbs"),
                                 median(got, "busbw_gbs")])
    return text.getvalue()
