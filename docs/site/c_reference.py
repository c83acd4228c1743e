"""Makes pages of the C reference from the headers in include/entrain: a page for each section of a header, the text of the comments beside
the declarations, and the lines of examples/*.c that call them.

A header is a comment about the whole, and then items: a comment and the declarations below it, up to an empty line or the next comment.
A line "/* ---- TITLE ----" begins a section."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

SECTION = re.compile(r"/\* -{4} (.*?)(?: -+ *(?=\*/|$)|(?= \*/)|$)")
NAME = re.compile(
    r"^(?:ENTRAIN_API|static (?:ENTRAIN_INLINE|inline)) [\w* ]*?\b(entrain_\w+)\(|^typedef .*\(\*(entrain_\w+)\)\(|^} (entrain_\w+);"
    r"|^typedef (?:struct )?\w+ (entrain_\w+);|^ +(ENTRAIN_\w+) =|^#define (ENTRAIN_\w+)", re.MULTILINE)
WORD = re.compile(r"`[^`]*`|\b(?:docs/[\w-]+|SECURITY)\.md\b|\b(?:entrain_|ENTRAIN_|[A-Z]+_(?=[A-Z]))\w+(?:\(\)|\*)?|[*_<>\[\]|#~]")


@dataclasses.dataclass
class Item:
    comment: str
    code: str

    @property
    def names(self) -> list[str]:
        return [next(filter(None, found)) for found in NAME.findall(self.code)]


@dataclasses.dataclass
class Section:
    title: str
    text: str
    items: list[Item]


def comment_text(lines: list[str]) -> str:
    """Returns the text between /* and */ without the stars at the beginning of lines."""
    text = "\n".join(lines)
    text = re.sub(r"^/\* ?|\s*\*/$", "", text)
    return re.sub(r"^ \* ?", "", text, flags=re.MULTILINE)


def pieces(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Divides a header into comments at the beginning of a line, statements, and empty lines."""
    found: list[tuple[str, list[str]]] = []
    while lines:
        if not lines[0]:
            found.append(("empty", []))
            lines = lines[1:]
            continue
        if lines[0].startswith("/*"):
            end = next(i for i, line in enumerate(lines) if "*/" in line) + 1
            kind = "comment"
        else:
            # A statement ends at a line that is not indented and at which all brackets are closed.
            kind, end, depth, code = "code", 0, 0, ""
            while depth > 0 or not (code.startswith("#") or code.endswith((";", "}"))):
                code = re.sub(r"/\*.*?(\*/|$)", "", lines[end]).rstrip()
                depth += len(re.findall(r"[{(]", code)) - len(re.findall(r"[})]", code))
                end += 1
            # A comment may go on behind the end of its statement.
            while "*/" not in lines[end - 1].rpartition("/*")[2] and "/*" in lines[end - 1]:
                end += 1
        found.append((kind, lines[:end]))
        lines = lines[end:]
    return found


def sections(header: str) -> list[Section]:
    """Reads a header. The first section is the comment at its head and what stands before the first title."""
    body = re.sub(r"(?:^/\*(?:(?!\*/).)*\*/\n)?^#if(?!ndef ENTRAIN_\w+_H_$).*?^#endif.*?$", "", header, flags=re.DOTALL | re.MULTILINE)
    found = [Section("", "", [])]
    comment, fresh = "", True
    for kind, lines in pieces(body.splitlines()):
        if kind == "empty":
            fresh = True
        elif kind == "comment" and (title := SECTION.match(lines[0])):
            short, _, rest = re.sub(r": see (docs/\S+)| \((docs/\S+)\)", r". See \1\2.", title[1]).partition(". ")
            short, _, more = short.partition(": ")
            text = comment_text(["/* " + lines[0][title.end():].strip(" -"), *lines[1:]]).strip(" -\n")
            found.append(Section(short.strip(" -."), "\n\n".join(filter(None, [more and more[0].upper() + more[1:] + ".", rest.strip(" -"), text])), []))
            fresh = True
        elif kind == "comment":
            if fresh and comment:
                found[-1].text += "\n\n" + comment
            comment, fresh = comment_text(lines), True
        elif re.match(r"#(?!define (?!\w+_H_$))", lines[0]):
            found[0].text, comment = found[0].text or comment, ""
        else:
            code = "\n".join(lines)
            defined = re.match(r"static (?:ENTRAIN_INLINE|inline) [^{]*(?= {)", code)
            code = defined[0] + ";" if defined else code
            items = found[-1].items
            begins = re.match(r"enum {|typedef struct \w+ {", code) and not re.search(r"^typedef int32_t \w+;$", items[-1].code if items else "")
            if items and not comment and (defined or not (fresh or begins)):
                items[-1].code += "\n" + code
            elif not re.search(r"\benum { \w+_ =|\w_\(", code):
                items.append(Item(comment, code))
            comment, fresh = "", False
    return found


def markdown(text: str, known: dict[str, str]) -> str:
    """Turns the text of a comment into Markdown: paragraphs, lists, and indented lines as they stand."""
    def word(match: re.Match[str]) -> str:
        name = match[0].strip("`").removesuffix("()")
        if name.endswith(".md"):
            return f"[{name}](/{name})"
        if target := next((full for full in (name, f"ENTRAIN_{name}") if full in known), ""):
            return f"[`{match[0].strip('`')}`][{target}]"
        if len(match[0]) == 1:
            return {"<": "&lt;", ">": "&gt;"}.get(match[0], "\\" + match[0])
        return match[0] if match[0].startswith("`") else f"`{match[0]}`"

    result: list[str] = []
    mode, margin = "text", 0
    # Lines that begin with 1, 2, ... are a list; a line that begins with a value ("0 (default): ...") is not.
    numbers = [int(number) for number in re.findall(r"^ *(\d+) (?=\S)", text, re.MULTILINE)]
    numbered = len(numbers) > 1 and numbers == list(range(1, len(numbers) + 1))
    for line in text.splitlines():
        bare = line.lstrip()
        indent = len(line) - len(bare)
        start = re.match(r"(-|\d+) (?=\S)" if numbered else r"(-) (?=\S)", bare)
        if not bare:
            mode = "list end" if mode == "list" else "text"
            result.append("")
        elif start and (mode == "list" or start[1] == "-" or indent <= 1) and mode != "plain" and indent <= 4:
            if mode == "text":
                result.append("")
            mode, margin = "list", indent + len(start[0])
            result.append(("1. " if start[1].isdigit() else "- ") + WORD.sub(word, bare[len(start[0]):]))
        elif mode in ("list", "list end") and indent >= margin:
            mode = "list"
            result.append("    " + WORD.sub(word, bare))
        elif indent >= 2 or (mode == "plain" and (indent or re.match(r"\S +\|", bare))):
            if mode != "plain":
                result.append("")
            mode = "plain"
            result.append("    " + line)
        else:
            if mode != "text":
                result.append("")
            mode = "text"
            result.append(WORD.sub(word, line))
    return "\n".join(result).strip("\n")


def uses(name: str, examples: dict[str, str]) -> tuple[str, str] | None:
    """Returns the first example that calls a function, and the lines around the call."""
    for path, text in examples.items():
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if re.search(rf"\b{name}\(", line):
                first = last = number
                while first > 0 and number - first < 6 and lines[first - 1]:
                    first -= 1
                while last + 1 < len(lines) and last - number < 6 and lines[last + 1]:
                    last += 1
                indent = min(len(row) - len(row.lstrip()) for row in lines[first:last + 1])
                return path, "\n".join(row[indent:] for row in lines[first:last + 1])
    return None


def fields(code: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns a statement without the comments of its fields or constants, and these with their comments. A comment at the brace is
    returned with an empty field."""
    if not re.match(r"(typedef struct \w+|typedef .*?;\nenum|enum) {", code):
        return code, []
    found = [(name.strip().rstrip(";,"), comment) for name, comment in re.findall(r"^( [^\n]*?|[^\n]*{) */\* (.*?) ?\*/$", code, re.DOTALL | re.MULTILINE)]
    texts = []
    for name, comment in found:
        first, *rest = comment.split("\n")
        margin = min((len(line) - len(line.lstrip()) for line in rest), default=0)
        texts.append(("" if name.endswith("{") else name, "\n".join([first, *(line[margin:] for line in rest)])))
    return re.sub(r" */\*.*?\*/", "", code, flags=re.DOTALL), texts


def prototype(code: str) -> str:
    """Writes long declarations of functions with one parameter on each line, for narrow screens."""
    def short(match: re.Match[str]) -> str:
        line = re.sub(r"\s+", " ", match[1] + match[2])
        return line if len(line) < 72 else re.sub(r"\s+", " ", match[1]) + "(\n    " + ",\n    ".join(re.sub(r"\s+", " ", match[2])[1:].split(", "))

    code = re.sub(r"^(?:ENTRAIN_API|static ENTRAIN_INLINE|static inline) ", "", code, flags=re.MULTILINE)
    return re.sub(r"^([^ {}/#][^;{}/]*?)(\([^()]*\);)$", short, code, flags=re.MULTILINE)


def heading(item: Item) -> tuple[str, str]:
    """Returns the heading of an item and its anchor."""
    names = item.names
    if not names[0].startswith("ENTRAIN_"):
        main = [name for name in names if name.startswith("entrain_") and not name.endswith("_init")] or names[:1]
        return ", ".join(f"`{name}`" for name in main), main[0]
    prefix = os.path.commonprefix(names).rpartition("_")[0]
    return (f"`{prefix}_*`" if len(names) > 1 and prefix != "ENTRAIN" else ", ".join(f"`{name}`" for name in names)), names[0]


def pages(root: pathlib.Path) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the pages by their path in the site, in order, and the page of each name of the ABI."""
    read = {path.name: sections(path.read_text(encoding="utf-8")) for path in sorted((root / "include/entrain").glob("*.h"))}
    names = {name: f"include/entrain/{header}" for header, found in read.items() for section in found for item in section.items for name in item.names}
    examples = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in sorted((root / "examples").glob("**/*.c"))}
    made: dict[str, str] = {}
    for header, found in read.items():
        stem = header.removesuffix(".h")
        for number, section in enumerate(found):
            slug = re.sub(r"\W+", "-", section.title.lower())
            page = [f"# {section.title or header}", markdown(section.text, names)]
            for item in section.items:
                if not item.names:
                    continue
                title, anchor = heading(item)
                code, texts = fields(item.code)
                inside = {name.split()[0]: "" for name, _ in texts if name.startswith("ENTRAIN_")}
                anchors = "".join(f"[](){{#{name}}}" for name in item.names if name != anchor and name not in inside)
                page += [f"## {title} {{#{anchor}}}", anchors, f"```c\n{prototype(code)}\n```", markdown(item.comment, names)]
                for name, text in texts:
                    mark = f"[](){{#{name.split()[0]}}}" if name.split()[:1] and name.split()[0] in inside and name.split()[0] != anchor else ""
                    text = markdown(text, names)
                    page.append(f"{mark}`{name}`\n\n:   " + text.replace("\n", "\n    ") if name else text[0].upper() + text[1:] + ":")
                for use in dict.fromkeys(filter(None, (uses(name, examples) for name in item.names))):
                    page += [f"From [{use[0]}](/{use[0]}):", f"```c\n{use[1]}\n```"]
            made[f"reference/c/{stem}/{slug if number else 'README'}.md"] = "\n\n".join(filter(None, page)) + "\n"
    return made, names
