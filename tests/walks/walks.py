#!/usr/bin/env python3
"""The walks of docs/walks.md: which units a call enters, in which order.

    walks.py --check            every unit and function that docs/walks.md names exists (a test)
    walks.py --build FOLDER     runs the calls in a build of the preset `trace`, and writes the tables of the page anew

A unit is a .cc with its .h. A unit counts when a function of its .cc runs, not when only a small function of its header does. The units of
lib/base and Abseil do not count: a reader knows their words. A unit is named with the first of its functions that ran. A crossing is a pair of
units of lib/comm and lib/engine of which one comes after the other on the caller's thread."""

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "walks.md")
CALLS = {"all_reduce": 2, "edit_layer": 2, "acco_round": 2, "shrink": 3}  # ranks


def places(program, addresses):
    """Returns the function and the file of each address."""
    answer = subprocess.run(["addr2line", "-f", "-C", "-e", program], input="\n".join(addresses), capture_output=True, text=True,
                            check=True).stdout.split("\n")
    return {address: (answer[2 * i], answer[2 * i + 1].split(":")[0]) for i, address in enumerate(addresses)}


def unit_of(path):
    path = os.path.relpath(os.path.realpath(path), ROOT)
    return re.sub(r"\.(cc|h|inc)$", "", path) if re.match(r"(lib|collectives|transports)/", path) else None


def short(function):
    """Returns the function without namespaces, arguments and template arguments."""
    name = re.sub(r"\(anonymous namespace\)::|entrain::|\[(clone|abi:).*", "", function)
    depth, text = 0, ""
    for char in name:
        depth += char in "<("
        text += char if depth == 0 else ""
        depth -= char in ">)"
    return re.sub(r"::(operator|\{lambda).*", "", text.split(" const")[0]).split(" ")[-1].strip(":")


def is_in(unit, function, ends):
    """Returns whether the files of the unit contain the function's name."""
    text = "".join(open(os.path.join(ROOT, unit + end)).read() for end in ends if os.path.exists(os.path.join(ROOT, unit + end)))
    return re.search(rf"\b{re.escape(function.split('::')[-1].lstrip('~'))}\b", text) is not None


def walk(build, call):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "entries")
        environment = dict(os.environ, ENTRAIN_TRANSPORTS="tcp", OMP_NUM_THREADS="1")
        subprocess.run([os.path.join(build, "tools/entrain-run"), "-n", str(CALLS[call]), "--", os.path.join(build, "tests/walks/walk"), call,
                        out], env=environment, check=call != "shrink", capture_output=True, timeout=120)
        with open(out) as file:
            entries = [line.split() for line in file]
    known = {}
    for program in {entry[1] for entry in entries}:
        addresses = sorted({entry[2] for entry in entries if entry[1] == program})
        known.update({(program, address): place for address, place in places(program, addresses).items()})
    units, crossings, before = collections.OrderedDict(), set(), ""
    for thread, program, address in entries:
        function, path = known[(program, address)]
        unit = unit_of(path)
        # The compiler puts a small function of a header into the first source that uses it.
        if unit is None or unit.startswith("lib/base/") or path.endswith(".h") or not is_in(unit, short(function), (".cc", ".inc")):
            continue
        if thread == entries[0][0] and re.match("lib/(comm|engine)/", unit):
            if before and before.split("/")[1] != unit.split("/")[1]:
                crossings.add((before, unit))
            before = unit
        units.setdefault(unit, short(function))
    return units, len(crossings)


def subject(unit):
    """Returns the first sentence of the header's comment, or of the source's."""
    for end in (".h", ".cc"):
        if os.path.exists(os.path.join(ROOT, unit + end)):
            with open(os.path.join(ROOT, unit + end)) as file:
                comment = re.match(r"((?://[^\n]*\n)+)", file.read())
            if comment:
                text = " ".join(line[2:].strip() for line in comment.group(1).strip().split("\n"))
                return re.split(r"[.:](?: |$)", text)[0].replace("|", "\\|")
    return ""


def table(units, crossings):
    folders = len({os.path.dirname(unit) for unit in units})
    rows = [f"{len(units)} units in {folders} folders, {crossings} crossings.", "", "| unit | enters | what it is |", "|---|---|---|"]
    return "\n".join(rows + [f"| `{unit}` | `{function}` | {subject(unit)} |" for unit, function in units.items()])


def write(build, calls):
    with open(PAGE) as file:
        page = file.read()
    for call in calls:
        begin, end = f"<!-- {call} -->\n", "<!-- end -->"
        head, rest = page.split(begin)
        page = head + begin + "\n" + table(*walk(build, call)) + "\n\n" + rest[rest.index(end):]
    with open(PAGE, "w") as file:
        file.write(page)


def check():
    with open(PAGE) as file:
        rows = re.findall(r"^\| `((?:lib|collectives|transports)/[\w/]+)` \| `([^`]+)` \|", file.read(), re.M)
    wrong = 0
    for unit, function in rows:
        if not is_in(unit, function, (".h", ".cc", ".inc")):
            print(f"docs/walks.md names {unit}, {function}, which does not exist")
            wrong += 1
    print(f"docs/walks.md: {len(rows)} rows, {wrong} wrong")
    return 1 if wrong or len(rows) < 20 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--build")
    parser.add_argument("--calls", default=",".join(CALLS))
    options = parser.parse_args()
    if options.check:
        sys.exit(check())
    if not options.build:
        parser.error("one of --check and --build is needed")
    write(options.build, options.calls.split(","))


main()
