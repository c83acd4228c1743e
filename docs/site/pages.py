"""Writes the pages of the site and its configuration to a folder: pages.py FOLDER. docs/site.sh builds the site from them.

Pages of the tree keep their paths, so that their links work in the site as they do in the tree. A file that a page links to becomes a page
that shows it, or is copied. The reference of the API is made from the headers and from docstrings.

The navigation is made from the tables of docs/README.md, one part for each of its headings. Pages in a folder stand below the README of
the folder, in the order in which it names them. A page that no table leads to is an error."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any, Iterator

import c_reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
MANUAL = "docs/README.md"
# The programs of which a page shows --help, if they are built.
PROGRAMS = ("tools/entrain-run", "tools/entrain-perf", "examples/trainer/entrain-train")
BUILDS = ("build/release", "build/dev")
NOT_OURS = re.compile(r"(?:^|/)(?:\.|build/|dist/)")
COPIED = {".svg", ".png", ".csv", ".html"}
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#:]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Code, headings and links, which stay, and names of the API in backticks.
NAME = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|^#.*?$|\[[^\]]*\]\([^)]*\)|`((entrain[._][\w.]+)(?:\(\))?)`", re.DOTALL | re.MULTILINE)
# Code, which stays, and formulas between $ or $$.
MATH = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|`[^`\n]*`|\$\$(.+?)\$\$|(?<![\w$\\])\$(?! )([^$\n]+?)(?<! )\$(?!\w)", re.DOTALL | re.MULTILINE)

known: set[str] = set()  # the names that the reference describes


def links(path: str, text: str) -> Iterator[str]:
    """Returns the paths of the files and folders of the tree that a page links to."""
    for _, target, _ in LINK.findall(FENCE.sub("", text)):
        full = (ROOT / target[1:] if target.startswith("/") else (ROOT / path).parent / target).resolve()
        if full.is_relative_to(ROOT) and full.exists():
            yield str(full.relative_to(ROOT))


def place(path: str) -> str:
    """Returns the page that stands for a file or folder of the tree."""
    full = ROOT / path
    if full.parts[-3:-1] == ("include", "entrain"):
        return f"reference/c/{full.stem}/README.md"
    return f"{path}/README.md" if full.is_dir() else path if full.suffix in {".md", *COPIED} else f"{path}.md"


def entries(path: str) -> list[str]:
    """Returns the files in a folder."""
    return sorted(str(entry.relative_to(ROOT)) for entry in (ROOT / path).glob("[!.]*") if entry.is_file())


def shown(path: str) -> str:
    """Returns a page that shows a file, or lists a folder that has no README."""
    full = ROOT / path
    if full.is_dir():
        return f"# {path}\n\n" + "\n".join(f"- [{entry}](/{place(entry)})" for entry in entries(path))
    language = {".h": "c", ".c": "c", ".cc": "cpp", ".py": "python", ".sh": "sh", ".yaml": "yaml"}.get(full.suffix, "text")
    return f"# {path}\n\n`````{language}\n{full.read_text(encoding='utf-8')}\n`````\n"


def parsed(module: str) -> ast.Module:
    path = ROOT / "python" / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def python_pages() -> dict[str, str]:
    """Returns the pages of the Python reference: one for each module from which a package takes public names, one for entrain.observe, and
    one for each module of entrain.integrations. Nothing is imported. A class that derives from another one of its page stands behind it, with
    its own members."""
    made: dict[str, dict[str, str]] = {}
    for package in ("entrain", "entrain.torch"):
        tree = parsed(package)
        public = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and "__all__" == getattr(node.targets[0], "id", ""))
        for node in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
            names = [alias.asname or alias.name for alias in node.names if (alias.asname or alias.name) in public]
            classes = parsed(f"{package}.{node.module}").body if node.module else []
            derived = {item.name for item in classes if isinstance(item, ast.ClassDef) and {ast.unparse(base) for base in item.bases} & set(names)}
            made.setdefault(f"{package}/{(node.module or 'optim').lstrip('_')}", {}).update(
                (f"{package}.{name}", "    options: {inherited_members: false, show_bases: true}\n" if name in derived else "")
                for name in sorted(names, key=lambda name: name in derived))
    made["entrain/observe"] = {"entrain.observe.Observer": ""}
    for path in sorted((ROOT / "python/entrain/integrations").glob("[a-z]*.py")):
        made[f"entrain.integrations/{path.stem}"] = {f"entrain.integrations.{path.stem}": ""}
    pages = {path: names for path, names in made.items() if names}
    known.update(name for names in pages.values() for name in names)
    return {f"reference/python/{path}.md": f"# {path.replace('/', ': ')}\n\n" + "".join(f"::: {name}\n{options}\n" for name, options in names.items())
            for path, names in pages.items()}


def programs() -> list[pathlib.Path]:
    """Returns the programs that are built, each of the first build that has it."""
    built = ([ROOT / build / name for build in BUILDS if (ROOT / build / name).exists()] for name in PROGRAMS)
    return [found[0] for found in built if found]


def program_pages() -> dict[str, str]:
    """Returns a page for each program that is built, with what its --help says."""
    made = {}
    for path in programs():
        text = subprocess.run([path, "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
        made[f"reference/programs/{path.name}.md"] = f"# {path.name}\n\n```text\n{text.rstrip()}\n```\n"
    return made


def tree_pages() -> dict[str, str]:
    paths = [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*.md"))]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if not NOT_OURS.search(path)}


def parts(pages: dict[str, str]) -> dict[str, list[list[str]]]:
    """Returns what each part of the manual contains: pages, each with those below it."""
    sections = re.split(r"^## (.*)$", pages[MANUAL], flags=re.MULTILINE)[1:]
    listed = {title: [path for path in links(MANUAL, body) if path in pages] for title, body in zip(sections[::2], sections[1::2])}
    left = set(pages) - {"README.md", MANUAL} - {path for paths in listed.values() for path in paths}
    found: dict[str, list[list[str]]] = {}
    for part, paths in listed.items():
        found[part] = []
        for path in paths:
            folder = path.removesuffix("README.md")
            below = [other for other in dict.fromkeys([*links(path, pages[path]), *sorted(left)]) if other in left and other.startswith(folder)]
            left -= set(below)
            found[part].append([path, *below])
    if left:
        sys.exit(f"{MANUAL}: no table leads to " + ", ".join(sorted(left)))
    return found


def user_pages() -> list[str]:
    return [page for part, groups in parts(tree_pages()).items() if part != "Developers" for group in groups for page in group]


def navigation(pages: dict[str, str], reference: list[str]) -> list[Any]:
    nav: list[Any] = [{"Home": "README.md"}]
    for part, found in parts(pages).items():
        inside: list[Any] = [MANUAL] if len(nav) == 1 else []
        for path, *below in found:
            title = re.search(r"^# (.*)$", pages[path], re.MULTILINE)
            inside.append({title[1] if title else path: [path, *below]} if below else path)
        if part == "Reference":
            for language in ("c", "python"):
                groups: dict[str, list[str]] = {}
                for uri in reference:
                    if uri.startswith(f"reference/{language}/"):
                        groups.setdefault(uri.split("/")[2] + (".h" if language == "c" else ""), []).append(uri)
                inside.append({f"{language.capitalize()} API": [{name: uris} for name, uris in groups.items()]})
            if programs := [uri for uri in reference if uri.startswith("reference/programs/")]:
                inside.append({"Programs": programs})
        nav.append({part: inside})
    return nav


def in_site(uri: str, text: str) -> str:
    """Makes links to files of the tree links to the pages that show them, names of the API links to the reference, and formulas MathML."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        if not (match[1] or match[2]):
            return match[0]
        if match[1]:
            return f'<span class="formula">{convert(match[1], display="block")}</span>'
        return f"<span>{convert(match[2])}</span>"

    def link(match: re.Match[str]) -> str:
        path = next(links(uri, match[0]), "")
        target = place(path) if path else match[2].removeprefix("/")
        return f"{match[1]}{os.path.relpath(target, os.path.dirname(uri))}{match[3]}" if match[2].startswith("/") or path not in ("", target) else match[0]

    def name(match: re.Match[str]) -> str:
        return f"[`{match[1]}`][{match[2]}]" if match[2] in known else match[0]

    return LINK.sub(link, text if uri.startswith("reference/") else NAME.sub(name, MATH.sub(formula, text)))


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    pages = tree_pages()
    reference, names = c_reference.pages(ROOT)
    known.update(names)
    reference.update(python_pages())
    reference.update(program_pages())
    version = re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert version
    made = {**pages, **reference}
    wanted = {target for path, text in made.items() for target in links(path, text)}
    while wanted:
        path = wanted.pop()
        if (ROOT / path).suffix in COPIED:
            (out / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, out / "pages" / path)
        elif place(path) not in made:
            made[place(path)] = shown(path)
            wanted |= set(entries(path))
    for uri, text in made.items():
        (out / "pages" / uri).parent.mkdir(parents=True, exist_ok=True)
        (out / "pages" / uri).write_text(in_site(uri, text), encoding="utf-8")
    shutil.copytree(ROOT / "docs/site/assets", out / "pages/assets")
    for name in ("python", "docs/site/docstrings.py"):
        (out / pathlib.Path(name).name).symlink_to(ROOT / name)
    settings = (ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8")
    # JSON is YAML, too.
    nav = json.dumps(navigation(pages, list(reference)), indent=1)
    (out / "mkdocs.yml").write_text(f"{settings}\nsite_name: Entrain {version[1]}\nnav: {nav}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
