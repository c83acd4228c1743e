"""Checks that every link between the pages of the project leads to a file, and to a heading of this file: links_test.py
ROOT."""

import pathlib
import re
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NOT_OURS = {".git", "build", ".cache"}


def pages(root):
    for path in sorted(root.rglob("*.md")):
        if not NOT_OURS & set(path.relative_to(root).parts):
            yield path


def anchors(page):
    """Returns the anchors that a Markdown renderer gives to the headings of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def faults(root):
    for page in pages(root):
        for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            if "://" in link or link.startswith("mailto:"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield f"{page.relative_to(root)}: there is no {link}"
            elif anchor and anchor not in anchors(target):
                yield f"{page.relative_to(root)}: {target.relative_to(root)} has no heading #{anchor}"


def main():
    found = list(faults(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
