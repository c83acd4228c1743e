"""entrain-top: the ranks of this host, their rates, and who waits for whom. It asks the flight recorder of every process of this user
(docs/flight.md); the programs need no change.

    entrain-top                      # all processes of this user; q ends it
    entrain-top 4711 4712            # these
    entrain-top --once               # prints one picture after one interval"""
from __future__ import annotations

import argparse
import concurrent.futures
import curses
import dataclasses
import sys
import time
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from .flight import flight_of, flight_processes

_ANSWER = 1.0  # seconds in which a process answers
_COLUMNS = f"{'RANK':>5} {'PID':>8}  {'CALLS/S':>9} {'MB/S':>9}  {'STATE':10} {'FOR':>8}  CALL, AND THE RANKS THAT IT WAITS FOR"


@dataclasses.dataclass
class Line:
    """A process in the picture."""

    job: str  # the identity of the process's first communicator
    rank: int
    pid: int
    calls_s: float
    mb_s: float
    state: str
    seconds: float  # in the open call
    text: str


class Top:
    """Asks the processes again and again, and says what has changed."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._pids = list(pids)
        self._last: Dict[int, Tuple[float, Dict[str, Any]]] = {}  # by process: when it answered last, and what
        self._pool = concurrent.futures.ThreadPoolExecutor(64)

    def look(self) -> List[str]:
        """Asks all processes. Returns the picture, line by line."""
        pids = self._pids or flight_processes()
        answers = dict(zip(pids, self._pool.map(_ask, pids)))
        now = time.monotonic()
        dumps = {pid: dump for pid, dump in answers.items() if dump is not None and dump["communicators"]}
        lines = [self._line(pid, dump, now) for pid, dump in dumps.items()]
        lines += [self._silent(pid, dumps.values(), now) for pid, dump in answers.items() if dump is None]
        self._last.update((pid, (now, dump)) for pid, dump in dumps.items())
        picture = [f"entrain-top  {time.strftime('%H:%M:%S')}  {len(lines)} processes, {sum(line.state == 'waits' for line in lines)} wait"]
        for job in sorted({line.job for line in lines}):
            picture += ["", _COLUMNS]
            for line in sorted((line for line in lines if line.job == job), key=lambda line: (line.rank, line.pid)):
                seconds = f"{line.seconds:.1f} s" if line.seconds else ""
                rank = "?" if line.rank < 0 else str(line.rank)
                picture.append(f"{rank:>5} {line.pid:>8}  {line.calls_s:9.1f} {line.mb_s:9.2f}  {line.state:10} {seconds:>8}  {line.text}".rstrip())
            picture += _blocked({pid: dump for pid, dump in dumps.items() if dump["communicators"][0]["id"] == job})
        return picture

    def _silent(self, pid: int, dumps: Iterable[Dict[str, Any]], now: float) -> Line:
        """Returns the line of a process that does not answer."""
        if pid in self._last:
            then, dump = self._last[pid]
            first = dump["communicators"][0]
            return Line(first["id"], first["rank"], pid, 0, 0, "no answer", now - then, _process_state(pid))
        for dump in dumps:
            first = dump["communicators"][0]
            for member in first["members"]:
                if member["address"].endswith(f"pid {pid}"):
                    return Line(first["id"], member["world_rank"], pid, 0, 0, "no answer", 0, _process_state(pid))
        return Line("", -1, pid, 0, 0, "no answer", 0, _process_state(pid))

    def _line(self, pid: int, dump: Dict[str, Any], now: float) -> Line:
        first = dump["communicators"][0]
        calls_s, mb_s = 0.0, 0.0
        if pid in self._last:
            then, before = self._last[pid]
            calls, size = _difference(before, dump)
            calls_s, mb_s = calls / max(now - then, 1e-9), size / 1e6 / max(now - then, 1e-9)
        open_calls = [(call["started_s_ago"] or 0.0, comm, call) for comm in dump["communicators"] for call in comm["calls"] if _is_open(call)]
        ended = next((comm for comm in dump["communicators"] if comm["ended"] is not None), None)
        if not open_calls:
            state, text = ("ended", f"{ended['name']}: {ended['ended']['message']}") if ended is not None else ("computes", "")
            return Line(first["id"], first["rank"], pid, calls_s, mb_s, state, 0, text)
        seconds, comm, call = max(open_calls, key=lambda found: found[0])
        waits = sorted({_world_rank(comm, rank) for rank in (call["receives_from"] or call["sends_to"])})
        state = "reduces" if call["state"] == "reducing" else "waits" if waits else call["state"]
        text = f"{_name(call)} of {comm['name']}" + (f": {_ranks(waits)}" if waits else "")
        return Line(first["id"], first["rank"], pid, calls_s, mb_s, state, seconds, text)


def _ask(pid: int) -> Optional[Dict[str, Any]]:
    try:
        return flight_of(pid, _ANSWER)
    except TimeoutError:
        return None
    except (OSError, ValueError):  # it has ended meanwhile, belongs to another user, or has no communicator
        return {"communicators": []}


def _difference(before: Dict[str, Any], dump: Dict[str, Any]) -> Tuple[int, int]:
    """Returns the calls between two dumps and their bytes. Where the recorder has not kept all of them, the bytes are those of as many
    calls of the mean size."""
    known = {comm["id"]: comm for comm in before["communicators"]}
    calls = size = 0
    for comm in dump["communicators"]:
        for path, counter in (("executor", "calls_submitted"), ("inline", "calls_inline")):
            count = comm[counter] - known.get(comm["id"], {}).get(counter, 0)
            sizes = [call["bytes"] for call in comm["calls"] if call.get("path") == path][-count:] if count else []
            calls += count
            size += round(sum(sizes) * count / len(sizes)) if sizes else 0
    return calls, size


def _is_open(call: Dict[str, Any]) -> bool:
    return call.get("state", "done") not in ("done", "failed")


def _name(call: Dict[str, Any]) -> str:
    tag = "" if call["tag"] is None else f" tag {call['tag']}"
    return f"{call['operation']}{tag} #{call['number']}"


def _world_rank(comm: Dict[str, Any], rank: int) -> int:
    found: int = comm["members"][rank]["world_rank"]
    return found


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _process_state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "it has ended"
    return "it is stopped (SIGSTOP, a debugger)" if letter in "Tt" else f"its process is in state {letter}"


def _blocked(dumps: Dict[int, Dict[str, Any]]) -> List[str]:
    """Returns a line for each collective of a job that is under way for a second: the ranks that have not started it, or do not answer."""
    by_comm: Dict[str, Dict[int, Tuple[int, Dict[str, Any]]]] = {}
    for pid, dump in dumps.items():
        for comm in dump["communicators"]:
            by_comm.setdefault(comm["id"], {})[comm["rank"]] = pid, comm
    lines = []
    for ranks in by_comm.values():
        _, comm = next(iter(ranks.values()))
        calls = {(call["tag"], call["number"]): call for _, one in ranks.values() for call in one["calls"]
                 if _is_open(call) and call["peer"] is None and call["number"] is not None and (call["started_s_ago"] or 0) >= 1}
        for (tag, number), call in sorted(calls.items(), key=lambda found: -found[1]["started_s_ago"]):
            absent = [f"rank {_world_rank(comm, rank)} (process {ranks[rank][0]})" for rank in sorted(ranks)
                      if _started(ranks[rank][1], tag) < number]
            unknown = [f"rank {_world_rank(comm, rank)}" for rank in range(len(comm["members"])) if rank not in ranks]
            parts = [f"not started by {', '.join(absent)}"] if absent else []
            parts += [f"no answer of {', '.join(unknown)}"] if unknown else []
            if parts:
                lines.append(f"  {_name(call)} of {comm['name']}, {call['started_s_ago']:.1f} s: {'; '.join(parts)}")
    return lines


def _started(comm: Dict[str, Any], tag: Optional[int]) -> int:
    return next((count["collectives"] for count in comm["started"] if count["tag"] == tag and "collectives" in count), 0)


def _show(screen: Any, top: Top, interval: float) -> None:
    curses.use_default_colors()
    with_cursor = curses.curs_set(0) if curses.tigetstr("civis") else None
    screen.timeout(int(interval * 1000))
    while True:
        height, width = screen.getmaxyx()
        screen.erase()
        for row, text in enumerate(top.look()[:height - 1]):
            waits = " waits " in text or "no answer" in text
            screen.addnstr(row, 0, text, width - 1, curses.A_BOLD if waits else curses.A_REVERSE if text == _COLUMNS else curses.A_NORMAL)
        screen.addnstr(height - 1, 0, "q ends", width - 1, curses.A_DIM)
        screen.refresh()
        if screen.getch() in (ord("q"), ord("Q")):
            break
    if with_cursor is not None:
        curses.curs_set(with_cursor)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="entrain-top", description="Shows the ranks of this host, and who waits for whom. q ends it.")
    parser.add_argument("pids", nargs="*", type=int, metavar="PID", help="processes; default: all of this user")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="time between two pictures (%(default)s)")
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    given = parser.parse_args(arguments)
    top = Top(given.pids)
    try:
        if given.once:
            top.look()
            time.sleep(given.interval)
            print("\n".join(top.look()))
        elif not sys.stdout.isatty():
            parser.error("standard output is no terminal; take --once")
        else:
            curses.wrapper(_show, top, given.interval)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
