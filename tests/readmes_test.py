"""Checks the length of READMEs: readmes_test.py ROOT. A README says what its folder is, its rules and how to add to it,
in at most 700 words besides tables, pictures and code. Longer texts belong on a page of docs."""

import pathlib
import re
import sys

MOST_WORDS = 700
NOT_OURS = {".git", "build", ".cache"}


def words(text):
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return sum(len(line.split()) for line in prose.splitlines() if not line.startswith(("|", "    ")))


assert words("one two\n| three |\n```\nfour\n```\n    five\n") == 2


def main():
    root = pathlib.Path(sys.argv[1])
    pages = [path for path in sorted(root.rglob("README.md")) if not NOT_OURS & set(path.relative_to(root).parts)]
    assert len(pages) > 20, pages
    long = [f"{path}: {count} words, {MOST_WORDS} at most" for path in pages if (count := words(path.read_text(encoding="utf-8"))) > MOST_WORDS]
    print("\n".join(long))
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
