#!/usr/bin/env python3
"""Makes the declarations that the Python package reads from the public headers.

    tools/python_declarations.py           writes python/entrain/_declarations.py and _options.py
    tools/python_declarations.py --check   compares, and exits with 1 if one differs

_options.py has the options of EDiT and ACCO that are one number each, from lib/train/edit/edit_option_list.h and acco_option_list.h.
_declarations.py holds cffi's tables (out-of-line ABI mode): the package neither parses C when it is imported, which takes 0.1 s, nor
needs a compiler. What remains of a header: types, enumerations, prototypes and the version macros. Comments, other directives,
`extern "C"` and functions with a body go. mpi.h needs a compiler and is left out.

Needs cffi: tools/setup.sh python installs it in build/python."""
import contextlib
import io
import pathlib
import re
import sys

import cffi

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ["types.h", "comm.h", "store.h", "memory.h", "collectives.h", "optim.h", "train.h"]
PACKAGE = ROOT / "python" / "entrain"
LISTS = ROOT / "lib" / "train"
HEAD = "# Made from include/entrain by tools/python_declarations.py; a test compares.\n"
# The structs behind an array's __dlpack__.
DLPACK = """
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct { void* data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t* shape; int64_t* strides;
                 uint64_t byte_offset; } DLTensor;
typedef struct { DLTensor dl_tensor; void* manager_ctx; void* deleter; } DLManagedTensor;
typedef struct { uint32_t major, minor; void* manager_ctx; void* deleter; uint64_t flags; DLTensor dl_tensor; }
  DLManagedTensorVersioned;
"""


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
    # Removes the parts that are only for C++.
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif", "", text, flags=re.S)
    macros = re.findall(r"^#define (ENTRAIN_VERSION_\w+ \d+)$", text, flags=re.M)
    text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    text = without_bodies(text).replace("ENTRAIN_API", "")
    lines = [re.sub(r"\s+", " ", line).strip() for line in re.split(r"(?<=[;{}])", text)]
    lines = join([line for line in lines if line])
    return [f"#define {macro}" for macro in macros] + lines


def join(lines):
    """Returns one declaration per line. Joins the lines of a struct or an enumeration."""
    out, depth = [], 0
    for line in lines:
        if depth or (out and line.startswith(";")) or (out and out[-1].endswith("}") and not out[-1].endswith(";")):
            out[-1] += ("" if line.startswith(";") else " ") + line
        else:
            out.append(line)
        depth += line.count("{") - line.count("}")
    return out


def generate():
    ffi = cffi.FFI()
    for name in HEADERS:
        ffi.cdef("\n".join(declarations_of((ROOT / "include" / "entrain" / name).read_text())))
    ffi.cdef(DLPACK)
    ffi.set_source("entrain._declarations", None)
    out = io.StringIO()
    with contextlib.redirect_stdout(None):  # cffi prints that it generates a file
        ffi.emit_python_code(out)
    return HEAD + out.getvalue()


OPTIONS_HEAD = '''# Made from lib/train/*/*_option_list.h by tools/python_declarations.py; a test compares.
"""The options of EDiT and ACCO that are one number each."""
from __future__ import annotations

import dataclasses
from typing import Literal, TypedDict
'''
# For each training object: its option list, and the names of the classes with the fields.
OBJECTS = {"edit": ("edit/edit_option_list.h", "Edit"), "acco": ("acco/acco_option_list.h", "Acco")}
# The limits of a number, in words.
LIMITS = {"AtLeast": "at least {}", "NotNegative": "at least 0", "Above": "more than {}", "Within": "{} to {}", "UpTo": "more than {}, at most {}",
          "From": "at least {}, less than {}", "Between": "more than {}, less than {}"}


def split(text):
    """Returns the arguments in `text`, which commas separate."""
    out, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += 0 if quoted else {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth and not quoted:
            out.append("")
        else:
            out[-1] += char
    return [one.strip() for one in out]


def rows_of(header):
    """Returns type, name, default, limits and sentence of each row of a list."""
    text = re.sub(r" *\\?$", "", (LISTS / header).read_text(), flags=re.M)
    for row in re.findall(r"^  X\((.*?)\)\n(?=  X\(|//)", text, flags=re.M | re.S):
        kind, name, default, limits, _, _, _, sentence = split(row)
        # The package has an option `timeout` instead, in seconds.
        if name != "timeout_ns":
            yield kind, name, default, limits, "".join(re.findall(r'"([^"]*)"', sentence))


def number(text):
    """Returns a number of a list as it is read, also if it is a constant of the library."""
    if not text.startswith("k"):
        return text
    for source in sorted(LISTS.rglob("*.h")) + sorted(LISTS.rglob("*.cc")):
        found = re.search(rf"constexpr \w+ {text} = ([^;]+);", source.read_text())
        if found:
            return f"{eval(found[1]):g}".replace("e+0", "e")  # an expression like 1 << 20
    raise SystemExit(f"{text} is not a constant of lib/train")


def limits_of(text):
    """Returns a row's limits in words; empty: they need none."""
    rule, arguments = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
    return LIMITS[rule].format(*map(number, split(arguments))) if rule in LIMITS else ""


def comment(*parts):
    """Returns a field's comment: one line, or a line for each part."""
    line = "    #: " + "; ".join(part for part in parts if part) + "\n"
    return line if len(line) <= 141 else "".join(f"    #: {part}\n" for part in parts if part)


def classes_of(header, name):
    """Returns a dataclass and a TypedDict with the options, and {option: family of constants} for those whose values are words."""
    fields, keywords, families = "", "", {}
    for kind, option, default, limits, sentence in rows_of(header):
        python = {"int64_t": "int", "int32_t": "int", "uint64_t": "int", "double": "float", "bool": "bool"}.get(kind, "str")
        kind, limit = python, ""
        if python == "str":
            families[option], choices = re.fullmatch(r'OneOf\("ENTRAIN_(\w+?)_?\*", "([\w,]+)"\)', limits).groups()
            limit = f"one of {choices.replace(',', ', ')}"
            kind = "Literal[" + ", ".join(f'"{choice}"' for choice in choices.split(",")) + "]"
        elif python != "bool":
            limit = limits_of(limits)
        value = {"str": lambda: f'"{choices.split(",")[0]}"', "bool": default.capitalize, "float": lambda: repr(float(default)),
                 "int": lambda: default}[python]()
        fields += comment(sentence, limit) + f"    {option}: {python} = {value}\n"
        keywords += comment(sentence, limit, f"default {value}") + f"    {option}: {kind}\n"
    return (f"\n\n@dataclasses.dataclass\nclass {name}Options:\n{fields}"
            f'\n\nclass {name}Numbers(TypedDict, total=False):\n    """{name}Options as keywords."""\n{keywords}'), families


def options():
    text = OPTIONS_HEAD
    lines = ""
    for key, (header, name) in OBJECTS.items():
        fields, families = classes_of(header, name)
        text += fields
        own = "".join(f'    "{option}": "{family}",\n' for option, family in families.items())
        lines += f"{key.upper()}_FAMILIES = {{\n{own}}}\n"
    return text + "\n\n#: Of options with words: the constants that these stand for.\n" + lines


def main():
    files = {PACKAGE / "_declarations.py": generate(), PACKAGE / "_options.py": options()}
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    for output, text in files.items():
        if not sys.argv[1:]:
            output.write_text(text)
        elif not output.exists() or output.read_text() != text:
            sys.exit(f"{output.relative_to(ROOT)} differs from the headers: run tools/python_declarations.py")


if __name__ == "__main__":
    main()
