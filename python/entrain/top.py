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
import os
import sys
import time
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from .flight import flight_of, flight_processes

_ANSWER = 1.0  # seconds in which a process answers
_COLUMNS = f"{'RANK':>5} {'PID':>8}  {'CALLS/S':>9} {'MB/S':>9}  {'STATE':10} {'FOR':>8}  CALL, AND THE RANKS THAT IT WAITS FOR"


@dataclasses.dataclass
class Line:
    """A process in the picture."""

    names: Set[str]  # two processes with a name in common are of one job
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
        self._places: Dict[str, int] = {}  # by the id of a process in its communicators: what the column RANK shows
        self._pool = concurrent.futures.ThreadPoolExecutor(64)

    def look(self) -> List[str]:
        """Asks all processes. Returns the picture, line by line."""
        pids = self._pids or flight_processes()
        answers = dict(zip(pids, self._pool.map(_ask, pids)))
        now = time.monotonic()
        dumps = {pid: dump for pid, dump in answers.items() if dump is not None and dump["communicators"]}
        members = {pid for pid, dump in answers.items() if dump is None or any(comm["size"] > 1 for comm in dump["communicators"])}
        joining = _joining(members, set(self._pids))
        dumps = {pid: dump for pid, dump in dumps.items() if pid not in joining}
        for pid, dump in dumps.items():
            first = dump["communicators"][0]
            self._places[first["members"][first["rank"]]["process"]] = _rank(pid, first)
        lines = [self._line(pid, dump, now) for pid, dump in dumps.items()] + [_joins(pid) for pid in joining]
        lines += [self._silent(pid, dumps.values(), now) for pid, dump in answers.items() if dump is None]
        self._last.update((pid, (now, dump)) for pid, dump in dumps.items())
        picture = [f"entrain-top  {time.strftime('%H:%M:%S')}  {len(lines)} processes, {sum(line.state == 'waits' for line in lines)} wait"]
        for job in _jobs(lines):
            picture += ["", _title(job), _COLUMNS]
            for line in sorted(job, key=lambda line: (line.rank, line.pid)):
                seconds = f"{line.seconds:.1f} s" if line.seconds else ""
                rank = "?" if line.rank < 0 else str(line.rank)
                picture.append(f"{rank:>5} {line.pid:>8}  {line.calls_s:9.1f} {line.mb_s:9.2f}  {line.state:10} {seconds:>8}  {line.text}".rstrip())
            picture += self._blocked({line.pid: dumps[line.pid] for line in job if line.pid in dumps})
        return picture

    def _silent(self, pid: int, dumps: Iterable[Dict[str, Any]], now: float) -> Line:
        """Returns the line of a process that does not answer."""
        if pid in self._last:
            then, dump = self._last[pid]
            first = dump["communicators"][0]
            return Line(_names(pid, dump), _rank(pid, first), pid, 0, 0, "no answer", now - then, _process_state(pid))
        for dump in dumps:
            first = dump["communicators"][0]
            for member in first["members"]:
                if member["address"].endswith(f"pid {pid}"):
                    return Line(_names(pid, dump), member["world_rank"], pid, 0, 0, "no answer", 0, _process_state(pid))
        return Line(_names(pid), -1, pid, 0, 0, "no answer", 0, _process_state(pid))

    def _line(self, pid: int, dump: Dict[str, Any], now: float) -> Line:
        first = dump["communicators"][0]
        calls_s, mb_s = 0.0, 0.0
        if pid in self._last:
            then, before = self._last[pid]
            calls, size = _difference(before, dump)
            calls_s, mb_s = calls / max(now - then, 1e-9), size / 1e6 / max(now - then, 1e-9)
        open_calls = [(call["started_s_ago"] or 0.0, comm, call) for comm in dump["communicators"] for call in comm["calls"] if _is_open(call)]
        over = [comm for comm in dump["communicators"] if comm["ended"] is not None]
        reason = over[0]["ended"]["message"] if over else ""
        if not open_calls:
            # A program that has taken a loss goes on with other communicators, and may keep the one that has ended.
            lives = [comm for comm in dump["communicators"] if comm["ended"] is None]
            goes_on = any(comm["size"] > 1 or comm["generation"] > first["generation"] for comm in lives)
            state, text = ("ended", reason) if over and not goes_on else ("computes", f"after {reason}" if over else "")
            return Line(_names(pid, dump), _rank(pid, first), pid, calls_s, mb_s, state, 0, text)
        seconds, comm, call = max(open_calls, key=lambda found: found[0])
        waits = sorted({self._place(comm, rank) for rank in (call["receives_from"] or call["sends_to"])})
        state = "reduces" if call["state"] == "reducing" else "waits" if waits else call["state"]
        text = f"{_name(call)} of {comm['name']}" + (f": {_ranks(waits)}" if waits else "")
        return Line(_names(pid, dump), _rank(pid, first), pid, calls_s, mb_s, state, seconds, text)

    def _blocked(self, dumps: Dict[int, Dict[str, Any]]) -> List[str]:
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
                absent = [f"rank {self._place(comm, rank)} (process {ranks[rank][0]})" for rank in sorted(ranks)
                          if _started(ranks[rank][1], tag) < number]
                here = {one["members"][rank]["host"] for rank, (_, one) in ranks.items()}
                others = [rank for rank in range(len(comm["members"])) if rank not in ranks]
                unknown = [f"rank {self._place(comm, rank)}" for rank in others if comm["members"][rank]["host"] in here]
                beyond = [f"rank {self._place(comm, rank)}" for rank in others if comm["members"][rank]["host"] not in here]
                parts = [f"not started by {', '.join(absent)}"] if absent else []
                parts += [f"no answer of {', '.join(unknown)}"] if unknown else []
                parts += [f"not known, on other hosts: {', '.join(beyond)}"] if beyond else []
                if parts:
                    lines.append(f"  {_name(call)} of {comm['name']}, {call['started_s_ago']:.1f} s: {'; '.join(parts)}")
        return lines

    def _place(self, comm: Dict[str, Any], rank: int) -> int:
        """Returns what the column RANK shows for a member. The member's own communicators may give a restarted process another number."""
        member = comm["members"][rank]
        found: int = self._places.get(member["process"], member["world_rank"])
        return found


def _ask(pid: int) -> Optional[Dict[str, Any]]:
    try:
        return flight_of(pid, _ANSWER)
    except TimeoutError:
        return None
    except (OSError, ValueError):  # it has ended meanwhile, belongs to another user, or has no communicator
        return {"communicators": []}


def _names(pid: int, dump: Optional[Dict[str, Any]] = None) -> Set[str]:
    """Returns what the processes of a job have in common: communicators, and the place at which their launcher lets them meet."""
    place = _variables(pid)
    found = {f"id {comm['id']}" for comm in (dump or {"communicators": []})["communicators"]}
    at = place.get("ENTRAIN_STORE") or " ".join(filter(None, map(place.get, ("MASTER_ADDR", "MASTER_PORT"))))
    return found | ({f"at {at} {place.get('ENTRAIN_RUN_ID', '')}"} if at else set()) or {f"process {pid}"}


def _jobs(lines: Iterable[Line]) -> List[List[Line]]:
    """Divides processes into jobs, the oldest first."""
    jobs: List[Tuple[Set[str], List[Line]]] = []
    for line in lines:
        same = [job for job in jobs if job[0] & line.names]
        jobs = [job for job in jobs if job not in same]
        jobs.append((line.names.union(*(names for names, _ in same)), [line, *(other for _, others in same for other in others)]))
    return sorted((job for _, job in jobs), key=lambda job: min((_started_at(line.pid), line.pid) for line in job))


def _title(job: Iterable[Line]) -> str:
    """Returns the program of a job, and when the oldest of its processes was started."""
    then, pid = min((_started_at(line.pid), line.pid) for line in job)
    program = [os.fsdecode(word) for word in _read(pid, "cmdline").split(b"\0")[:-1]]
    text = " ".join(" ".join([os.path.basename(program[0]), *program[1:]]).split()) if program else "?"
    when = time.localtime(then)
    day = "" if when[:3] == time.localtime()[:3] else "%Y-%m-%d "
    return f"{text if len(text) <= 100 else text[:99] + '…'}, since {time.strftime(day + '%H:%M:%S', when)}"


def _joining(members: Set[int], asked: Set[int]) -> List[int]:
    """Returns the processes of this user that a launcher has restarted, that have loaded the library, and that no communicator connects with
    others yet. asked: which are looked at; empty: all."""
    found: List[int] = []
    for pid in sorted(asked or {int(name) for name in os.listdir("/proc") if name.isdigit()}):
        # The processes that a rank starts have its variables, too.
        if (pid not in members and _restarted(_variables(pid)) and b"/libentrain" in _read(pid, "maps")
                and _network(pid) == _network(os.getpid()) and not {*_parents(pid)} & {*members, *found}):
            found.append(pid)
    return found


def _joins(pid: int) -> Line:
    waits = max(time.time() - _started_at(pid), 0)
    return Line(_names(pid), _rank(pid, None), pid, 0, 0, "joins", waits, "was started again; the others have not taken it in yet")


def _rank(pid: int, comm: Optional[Dict[str, Any]]) -> int:
    """Returns the rank of a process, by its first communicator; of a restarted one its launcher's, because that communicator is its own."""
    variables = _variables(pid)
    if _restarted(variables) and variables.get("RANK", "").isdigit():
        return int(variables["RANK"])
    return -1 if comm is None else int(comm["rank"])


def _restarted(variables: Dict[str, str]) -> bool:
    return variables.get("ENTRAIN_RESTARTS", "0") not in ("", "0")


def _read(pid: int, name: str) -> bytes:
    """Returns a file of /proc, empty if the process has ended or belongs to another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _variables(pid: int) -> Dict[str, str]:
    """Returns the variables with which a process was started."""
    pairs = (entry.partition("=") for entry in _read(pid, "environ").decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def _stat(pid: int) -> List[str]:
    """Returns the fields of /proc/PID/stat from the third on, the state."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _started_at(pid: int) -> float:
    """Returns the Unix time at which a process was started; that of now, if it has ended."""
    stat = _stat(pid)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK") if stat else 0.0
    return time.time() - age


def _parents(pid: int) -> Iterable[int]:
    while pid > 1:
        stat = _stat(pid)
        pid = int(stat[1]) if stat else 0
        yield pid


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


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


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _process_state(pid: int) -> str:
    stat = _stat(pid)
    if not stat:
        return "it has ended"
    return "it is stopped (SIGSTOP, a debugger)" if stat[0] in "Tt" else f"its process is in state {stat[0]}"


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
