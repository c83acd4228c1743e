"""Checks the code blocks of all pages: blocks_test.py ROOT CC. A block is fenced or indented.

C: compiled with all warnings if it includes a header. Any other block is a fragment: the body of a function, or whole functions. It may use
variables and functions of its surroundings, but everything of Entrain that it names must exist and be used as declared.
Python: a block that imports something is parsed, and what it names of the package must exist.
Shell: lines that begin with a command, up to an empty line, or with a prompt, are parsed by sh. The programs of the tree that they call must exist."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

ROOT, CC = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
sys.path.insert(0, str(ROOT / "docs/site"))
import pages  # noqa: E402

FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^|\n\n)((?:    .*\n|\n(?=    ))+)")
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:export|sudo|cd|cc|cmake|ctest|curl|docker|entrain-\w+|kubectl|mpirun|pip|python3?|srun|torchrun"
                     r"|(?:\./|build/|bench/|docs/|examples/|tests/|tools/)[\w./-]+)(?: |$)")
PROGRAM = re.compile(r"(?<![\w./-])(?:bench|docs|examples|tests|tools)/[\w./-]+\.(?:sh|py)\b")
# What a fragment takes from its surroundings.
ABSENT = re.compile(r"error: (?:‘(?!entrain_|ENTRAIN_)\w+’ undeclared|implicit declaration of function ‘(?!entrain_)\w+’"
                    r"|unknown type name ‘(?!entrain_)\w+’)")


def blocks(text):
    """Returns the language and the text of each block of a page."""
    for language, body in FENCED.findall(text):
        yield language, body
    for body in INDENTED.findall(FENCED.sub("", text)):
        body, *prompts = re.split(r"^\$ (.*)$", textwrap.dedent(body.strip("\n")), flags=re.MULTILINE)
        yield from (("sh", prompt) for prompt in prompts[::2])
        first = body.lstrip().split("\n")[0]
        if re.match(r"(import|from) [\w.]+", first):
            yield "python", body
        elif COMMAND.match(first):
            yield from (("sh", part) for part in body.split("\n\n") if COMMAND.match(part.lstrip()))
        elif "#include <" in body or re.search(r"\bentrain_\w+\(.*;", body):
            yield "c", body


def compiled(text, *options):
    """Returns the errors of the compiler."""
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write(text)
        file.flush()
        run = subprocess.run([CC, "-fsyntax-only", "-std=gnu99", f"-I{ROOT}/include", *options, file.name], stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "LC_ALL": "C.UTF-8"})
    return re.findall(r"error: .*", run.stderr)


def c_faults(body):
    if "#include" in body:
        return compiled(body, "-Wall", "-Wextra", "-Werror")
    if not re.search(r"^(?:\w[^;=\n]*\) \{|static |typedef |struct )", body, re.MULTILINE):
        body = f"void fragment(void) {{\n{body}\n}}"
    return [error for error in compiled(f"#include <entrain/entrain.h>\n{body}", "-Werror=implicit-function-declaration") if not ABSENT.match(error)]


def python_faults(body):
    try:
        tree = ast.parse(body)
    except SyntaxError as fault:
        return [f"line {fault.lineno}: {fault.msg}"]
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {f"{node.module}.{alias.name}" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    modules = {".".join(path.relative_to(ROOT / "python").with_suffix("").parts) for path in (ROOT / "python").rglob("*.py")}
    return [f"there is no {name}" for name in sorted(used) if re.fullmatch(r"entrain(\.torch)?\.[a-zA-Z]\w*", name)
            and not {name, f"{name}.__init__"} & (pages.known | modules)]


def sh_faults(body, programs=True):
    run = subprocess.run(["sh", "-n"], input=body, stderr=subprocess.PIPE, text=True)
    return [*run.stderr.splitlines(), *(f"there is no {program}" for program in PROGRAM.findall(body) if programs and not (ROOT / program).exists())]


CHECKS = {"c": c_faults, "python": python_faults, "sh": sh_faults, "bash": sh_faults}


def main():
    pages.python_pages()
    # The checks themselves.
    assert not c_faults("check(entrain_barrier(comm, NULL, NULL));")
    assert c_faults("entrain_barrier(comm);") and c_faults("entrain_barier(comm, NULL, NULL);") and c_faults("x = ENTRAIN_F31;")
    assert not python_faults("import entrain\nentrain.torch.EDiT(m)") and python_faults("import entrain\nentrain.torch.Edit(m)") and python_faults("import (")
    assert not sh_faults("tools/setup.sh deps") and sh_faults("tools/set.sh") and sh_faults("if")

    found, counts = [], dict.fromkeys(CHECKS, 0)
    for path, text in pages.tree_pages().items():
        for language, body in blocks(text):
            if language in CHECKS:
                counts[language] += 1
                # The notebook has commands of earlier commits.
                faults = sh_faults(body, programs=False) if path.startswith("docs/lab/") and language == "sh" else CHECKS[language](body)
                found += [f"{path}: {fault}, in\n{body}" for fault in faults]
    print("\n".join(found), counts)
    assert counts["c"] > 1 and counts["python"] > 9 and counts["sh"] > 30, counts
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
