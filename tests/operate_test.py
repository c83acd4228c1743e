"""Checks docs/operate.md against the sources: operate_test.py ROOT. Every status code of include/entrain/types.h is in its table, and no other;
every text of its second table is one that the library can say; what its matrix names exists."""

import pathlib
import re
import sys

LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def rows(page, heading):
    """Returns the first cells of the tables of a section."""
    section = re.split(r"^## ", page.split(f"\n## {heading}\n")[1], flags=re.M)[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]


def said(root):
    """Returns all that the sources have as literals, with literals that follow each other joined."""
    found = []
    for folder in ("lib", "transports", "tools", "python/entrain"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".py"):
                text = path.read_text(encoding="utf-8")
                if path.suffix == ".py":
                    text = re.sub(r"\bf\"", '"', text)
                found.append(re.sub(r'"\s+"', "", text))
    return "\n".join(literal for text in found for literal in LITERAL.findall(text))


def faults(root):
    page = (root / "docs/operate.md").read_text(encoding="utf-8")
    header = (root / "include/entrain/types.h").read_text(encoding="utf-8")
    codes = set(re.findall(r"\b(ENTRAIN_\w+) = -?\d+", header.split("typedef int32_t entrain_status_t;")[1].split("};")[0]))
    assert len(codes) > 10, codes
    errors = rows(page, "Errors")
    told = [match[1] for cell in errors if (match := re.fullmatch(r"`(ENTRAIN_\w+)`", cell))]
    for code in sorted(codes.symmetric_difference(told)):
        yield f"{code} is {'not' if code in codes else ''} in the table of errors, and {'' if code in codes else 'not'} in types.h"
    if len(set(told)) != len(told):
        yield "a code is twice in the table of errors"
    texts = [text for cell in errors if not re.fullmatch(r"`(ENTRAIN_\w+)`", cell) for text in re.findall(r"`([^`]+)`", cell)]
    assert len(texts) > 10, texts
    literals = said(root)
    for text in texts:
        for part in filter(None, text.split("…")):
            if part not in literals:
                yield f"no source says {part!r}"
    matrix = page.split("\n## Support\n")[1]
    for name in re.findall(r"`((?:tests|tools|\.ci)/[\w/.]+)", matrix):
        if not (root / name).exists():
            yield f"there is no {name}"


def main():
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
