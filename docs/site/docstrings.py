"""An extension of griffe that turns docstrings of the package into Markdown. Their tables have a name, two or more spaces, and a text whose
further lines begin in the same column. Names of C functions become links."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROW = re.compile(r"( *)([\w.\-]+(?:,? [\w.\-]+)*)(  +)(?=[^#\s])(.*)")
LONG = re.compile(r"( *)([\w.]+(?:, [\w.]+)*)()()")  # a name whose text begins on the next line
FUNCTION = re.compile(r"(?<![\w`/])entrain_[a-z_]*[a-z](?![\w/])(?!\.\w)")


def linked(text: str) -> str:
    return FUNCTION.sub(lambda name: f"[`{name[0]}`][{name[0]}]", text)


def markdown(text: str) -> str:
    result: list[str] = []
    column = 0  # of the texts of the table; 0: no table
    code = False
    lines = text.split("\n")
    for line, following in zip(lines, [*lines[1:], ""]):
        row = ROW.fullmatch(line)
        if column and re.match(rf" {{{column}}}\S", following):
            row = row or LONG.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        if row and not code and (column in (0, row.start(4)) or not row[4]):
            name = f"**{row[2]}**" if re.search(r"[^,] ", row[2]) else f"`{row[2]}`"
            result += ["", name, "", f":   {linked(row[4])}"]
            column = row.start(4) if row[4] else column
        elif column and indent >= column:
            result.append("    " + linked(line.strip()))
        else:
            if column and line:
                result.append("")
                column = 0
            code = indent >= 4 or (code and not line)
            result.append(line if code else linked(line))
    return "\n".join(result)


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
