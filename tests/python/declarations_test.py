"""Checks that the declarations are those of the headers, and that the library has everything that they name."""
import subprocess
import sys

from conftest import ROOT, script

from entrain._library import ffi, lib


def test_declarations_are_those_of_the_headers():
    subprocess.run([sys.executable, ROOT / "tools/python_declarations.py", "--check"], check=True)


def test_every_exported_function_is_declared():
    exported = set((ROOT / "tests/api/exported_symbols.txt").read_text().split())
    declared = {name for name in dir(lib) if name.startswith("entrain_")}
    assert declared == exported
    for name in sorted(declared):
        assert getattr(lib, name)


STRUCTS = {getattr(lib, name): f"entrain_{name[len('ENTRAIN_STRUCT_'):].lower()}_t"
           for name in dir(lib) if name.startswith("ENTRAIN_STRUCT_")}


def test_structs_have_numbers_and_are_as_long_as_the_library_says():
    assert sorted(STRUCTS) == list(range(len(STRUCTS)))
    for which, name in STRUCTS.items():
        struct = ffi.new(name + "*")
        size = ffi.sizeof(struct[0])
        lib.entrain_struct_init(which, struct, size)
        assert struct.size == size, name


def test_init_stops_at_the_size_of_an_older_caller():
    # The caller's struct is a block of its own on the heap, so that a sanitizer sees what is written behind it.
    for which, name in STRUCTS.items():
        for size in range(8, ffi.sizeof(name), 8):
            block = ffi.new("char[]", size + 16)
            ffi.memmove(block, b"\x5a" * (size + 16), size + 16)
            lib.entrain_struct_init(which, block, size)
            assert ffi.buffer(block)[size:] == b"\x5a" * 16, (name, size)
            lib.entrain_struct_init(which, ffi.new("char[]", size), size)


def test_importing_neither_parses_nor_loads_what_few_need():
    code = "import sys, entrain; print(sorted({'pycparser', 'cffi', 'asyncio', 'torch'} & set(sys.modules)))"
    assert script(code).strip() == "[]"
