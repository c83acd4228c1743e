"""Builds the site of the manual in a folder, and checks what readers get: site_test.py ROOT FOLDER. Every link leads to a file and to an
anchor in it, and every function of the library and public name of the Python package is in the reference. The build itself fails if a page
is in no table of docs/README.md, or a link of a page is broken. Skips (77) without the packages of `tools/setup.sh site`."""

import collections
import filecmp
import html.parser
import json
import pathlib
import subprocess
import sys
import urllib.parse

ROOT, FOLDER = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
PYTHON = ROOT / "build/site-python/bin/python"


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page, and its number of lists, tables and so on."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.loaded, self.counts = [], set(), set(), collections.Counter()
        self.inside = "<article" not in text
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.inside |= tag == "article"
        if self.inside and tag in {"li", "tr", "pre", "h2", "h3", "strong", "em"}:
            self.counts[tag] += 1
        for key, value in attributes:
            if key == "id" or (tag == "a" and key == "name"):
                self.anchors.add(value)
            elif key in ("href", "src") and value and (tag != "link" or ("rel", "stylesheet") in attributes):
                self.links.append(value)
                self.loaded |= {value} if tag in ("link", "script", "img") else set()

    def handle_endtag(self, tag):
        self.inside &= tag != "article"


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def misread(folder):
    """Compares the pages with what a renderer of CommonMark makes of them, as the readers of the tree see them."""
    script = "import json, markdown_it, sys; render = markdown_it.MarkdownIt().enable('table').render; " \
             "print(json.dumps({path: render(open(path).read()) for path in sys.argv[1:]}))"
    pages = [path for path in (folder / "pages").rglob("*.md") if "reference" not in path.parts]
    run = subprocess.run([PYTHON, "-c", script, *pages], check=True, stdout=subprocess.PIPE)
    for path, text in json.loads(run.stdout).items():
        relative = pathlib.Path(path).relative_to(folder / "pages")
        shown = relative.parent / "index.html" if relative.name == "README.md" else relative.with_suffix(".html")
        expected, found = Page(text).counts, read(folder / "html" / shown).counts
        if expected != found:
            yield f"{relative}: the site shows {dict(found - expected)} more, {dict(expected - found)} less than CommonMark; empty lines help"


def broken(site):
    pages = {path: read(path) for path in site.rglob("*.html") if path.name != "404.html" and "examples/report" not in str(path)}
    assert len(pages) > 100, len(pages)
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            if url.scheme or url.netloc:
                if link in page.loaded:
                    yield f"{path.relative_to(site)}: loads {link} from another host"
                continue
            if not target.is_file():
                yield f"{path.relative_to(site)}: there is no {link}"
            elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].anchors | {"__top"}:
                yield f"{path.relative_to(site)}: {link} has no such anchor"


def main():
    installed = ROOT / "build/site-python/installed.txt"
    if not installed.exists() or not filecmp.cmp(installed, ROOT / "docs/site/requirements.txt", shallow=False):
        print("skipped: `tools/setup.sh site` has not installed the packages")
        return 77
    subprocess.run([ROOT / "docs/site.sh", FOLDER], check=True)
    site = FOLDER / "html"
    found = [*broken(site), *misread(FOLDER)]

    anchors = {anchor for path in (site / "reference").rglob("*.html") for anchor in read(path).anchors}
    wanted = (ROOT / "tests/api/exported_symbols.txt").read_text().split()
    sys.path.insert(0, str(ROOT / "docs/site"))
    import pages
    wanted += [name for text in pages.python_pages().values() for name in text.split() if name.startswith("entrain.") and ":" not in name]
    assert {"entrain.torch.EDiT", "entrain.observe.Observer", "entrain_all_reduce"} <= {*wanted}
    found += [f"the reference lacks {name}" for name in wanted if name not in anchors]

    for path in pages.programs():
        shown = site / f"reference/programs/{path.name}.html"
        if not (shown.exists() and "print this help" in shown.read_text(encoding="utf-8").lower()):
            found.append(f"there is no page with what {path.name} --help says")

    search = (site / "search.json").read_text(encoding="utf-8")
    assert json.loads(search)["items"]
    found += [f"the search does not find {word}" for word in ("entrain_all_reduce", "entrain.torch.EDiT", "ENTRAIN_TRANSPORTS") if word not in search]

    # The check itself finds what is broken.
    (site / "index.html").write_text('<a href="nowhere.html">x</a><a href="SECURITY.html#nowhere">x</a>', encoding="utf-8")
    assert len([fault for fault in broken(site) if fault.startswith("index.html")]) == 2
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
