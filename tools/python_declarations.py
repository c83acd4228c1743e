#!/usr/bin/env python3
"""Makes the declarations that the Python package reads from the public headers.

    tools/python_declarations.py           writes python/entrain/declarations.h
    tools/python_declarations.py --check   compares, and exits with 1 if it differs

What remains of a header: types, enumerations, prototypes and the version macros. Comments, other directives, `extern "C"`
and functions with a body go. mpi.h needs a compiler and is left out."""
import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ["types.h", "comm.h", "store.h", "memory.h", "collectives.h", "optim.h", "train.h"]
OUTPUT = ROOT / "python" / "entrain" / "declarations.h"
HEAD = "/* Made from include/entrain by tools/python_declarations.py; a test compares. */\n"


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def without_bodies(text):
    """Removes functions that the header defines: `static inline T f(...) { ... }`."""
    out = ""
    while True:
        start = re.search(r"\bstatic\s[^;{]*\)\s*\{", text)
        if not start:
            return out + text
        depth, end = 1, start.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        out += text[: start.start()]
        text = text[end:]


def declarations_of(text):
    text = without_comments(text)
    # What C++ alone sees.
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif", "", text, flags=re.S)
    macros = re.findall(r"^#define (ENTRAIN_VERSION_\w+ \d+)$", text, flags=re.M)
    text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    text = without_bodies(text).replace("ENTRAIN_API", "")
    lines = [re.sub(r"\s+", " ", line).strip() for line in re.split(r"(?<=[;{}])", text)]
    lines = join([line for line in lines if line])
    return [f"#define {macro}" for macro in macros] + lines


def join(lines):
    """One declaration a line: the lines of a struct or an enumeration come together."""
    out, depth = [], 0
    for line in lines:
        if depth or (out and line.startswith(";")) or (out and out[-1].endswith("}") and not out[-1].endswith(";")):
            out[-1] += ("" if line.startswith(";") else " ") + line
        else:
            out.append(line)
        depth += line.count("{") - line.count("}")
    return out


def generate():
    parts = [HEAD]
    for name in HEADERS:
        parts.append(f"/* {name} */\n" + "\n".join(declarations_of((ROOT / "include" / "entrain" / name).read_text())) + "\n")
    return "\n".join(parts)


def main():
    text = generate()
    if sys.argv[1:] == ["--check"]:
        old = OUTPUT.read_text() if OUTPUT.exists() else ""
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(OUTPUT.name), "headers"))
        if old != text:
            sys.exit("python/entrain/declarations.h differs from the headers: run tools/python_declarations.py")
    elif not sys.argv[1:]:
        OUTPUT.write_text(text)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
