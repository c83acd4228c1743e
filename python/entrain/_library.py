"""Finds and loads libentrain. cffi calls it in ABI mode: nothing is compiled.

The library is the first of these: the file that ENTRAIN_LIBRARY names, the file in the wheel (lib/ beside this file),
the file that the dynamic linker finds under the library's SONAME."""
from __future__ import annotations

import os
import pathlib
from typing import Any, Optional

from ._declarations import ffi as _declared

_HERE = pathlib.Path(__file__).resolve().parent

ffi: Any = _declared
_major, _minor, _patch = (ffi.integer_const(f"ENTRAIN_VERSION_{part}") for part in ("MAJOR", "MINOR", "PATCH"))
#: The version of the headers for which this package was made.
VERSION = f"{_major}.{_minor}.{_patch}"


def library_path() -> str:
    """Returns the file (or SONAME) of the library that this package loads."""
    chosen = os.environ.get("ENTRAIN_LIBRARY")
    if chosen:
        if not os.path.exists(chosen):
            raise ImportError(f"ENTRAIN_LIBRARY is {chosen!r}, which does not exist")
        return chosen
    for folder in ("lib", "lib64"):
        brought = sorted((_HERE / folder).glob("libentrain.so.*"))
        if brought:
            return str(brought[0])
    return f"libentrain.so.{_major}"


def program_path(name: str) -> str:
    """Returns the path of a program in the wheel, such as "entrain-run". Returns `name`, for a search of PATH, if the
    wheel has no such program."""
    brought = _HERE / "bin" / name
    return str(brought) if brought.exists() else name


def _load() -> Any:
    path = library_path()
    try:
        library = ffi.dlopen(path)
    except OSError as failure:
        raise ImportError(f"libentrain cannot be loaded: {failure}; ENTRAIN_LIBRARY can name the file") from failure
    found = library.entrain_version()
    major, minor = found // 10000, found // 100 % 100
    # A later minor version has everything that an earlier one has.
    if major != _major or minor < _minor:
        raise ImportError(f"{path} is Entrain {major}.{minor}, and this package is for {VERSION}")
    return library


lib: Any = _load()

OK: int = lib.ENTRAIN_OK
IN_PROGRESS: int = lib.ENTRAIN_IN_PROGRESS
NULL: Any = ffi.NULL


def new_struct(name: str) -> Any:
    """Returns a struct of the ABI with its defaults: new_struct("comm_config") is an entrain_comm_config_t*."""
    struct = ffi.new(f"entrain_{name}_t*")
    lib.entrain_struct_init(getattr(lib, f"ENTRAIN_STRUCT_{name.upper()}"), struct, ffi.sizeof(struct[0]))
    return struct


def text_of(chars: Any) -> str:
    """Converts a C string to str; NULL to ""."""
    return "" if chars == NULL else ffi.string(chars).decode("utf-8", "replace")


def nanoseconds(seconds: Optional[float], none: int = 0) -> int:
    """Converts seconds to nanoseconds, and None to `none`."""
    return none if seconds is None else max(1, round(seconds * 1e9)) if seconds > 0 else round(seconds * 1e9)
