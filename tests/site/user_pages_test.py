"""Checks that pages for users name nothing that only developers of the library know: user_pages_test.py ROOT. Such names are the folders of
the library, its files, and its types, unless a header, the Python package or a program uses the same word.

The front page is not checked: its picture of the layers is a map of the tree."""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "docs/site"))
import pages  # noqa: E402

# Words that the library writes or reads: of flight dumps, of ENTRAIN_ALGORITHMS.
WRITTEN = {"executor", "composed"}
INSIDE = ("lib", "collectives", "transports")
CODE = re.compile(r"^```.*?^```|^(?: {4}).*?$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
PATH = re.compile(rf"(?<![\w/])(?:{'|'.join(INSIDE)})/[\w./]+")


def words(*patterns):
    return {word for pattern in patterns for path in ROOT.glob(pattern)
            for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def internal_names():
    """Returns the names of types and of files in the folders of the library."""
    found = set()
    for folder in INSIDE:
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in {".h", ".cc", ".cu"}:
                found |= {path.stem, path.name, *re.findall(r"^ *(?:struct|class|enum class) (\w+)[^;]*$", path.read_text(encoding="utf-8"), re.MULTILINE)}
    return found


def faults(text, names):
    for match in PATH.finditer(re.sub(r"\]\([^)]*\)", "]", text)):
        yield match[0]
    for code in CODE.findall(text):
        yield from (word for word in re.findall(r"\w+(?:\.(?:h|cc))?", code) if word in names)


def main():
    names = internal_names() - words("include/**/*.h", "python/**/*.py", "tools/*.cc", "tools/perf/*.cc", "examples/**/*.py", "examples/*.c", "examples/trainer/**/*.cc") - WRITTEN
    assert list(faults("`DeviceRunner` of lib/device, `entrain_all_reduce`", names)) == ["lib/device", "DeviceRunner"], sorted(names)
    checked = pages.user_pages()
    assert len(checked) > 20, checked
    # Pages on other libraries name their types.
    found = [f"{path}: {fault}" for path in checked for fault in dict.fromkeys(
        faults((ROOT / path).read_text(encoding="utf-8"), set() if path.startswith("docs/migrate/") else names))]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
