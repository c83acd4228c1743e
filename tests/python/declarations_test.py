"""The declarations are those of the headers, and the library has all that they name."""
import subprocess
import sys

from conftest import ROOT

from entrain._library import ffi, lib


def test_declarations_are_those_of_the_headers():
    subprocess.run([sys.executable, ROOT / "tools/python_declarations.py", "--check"], check=True)


def test_every_exported_function_is_declared():
    exported = set((ROOT / "tests/api/exported_symbols.txt").read_text().split())
    declared = {name for name in dir(lib) if name.startswith("entrain_")}
    assert declared == exported
    for name in sorted(declared):
        assert getattr(lib, name)


def test_structs_are_as_long_as_the_library_says():
    for name in sorted(name for name in dir(lib) if name.endswith("_init_sized")):
        struct = ffi.new(name[:-len("_init_sized")] + "_t*")
        size = ffi.sizeof(struct[0])
        getattr(lib, name)(struct, size)
        assert struct.size == size, name
