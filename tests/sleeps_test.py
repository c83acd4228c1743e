"""Checks the sleeps of tests: sleeps_test.py TREE. A test must not sleep to wait for an event that it can observe: it
polls (tests/support/wait.h) or is told. A sleep in a loop is a poll. Every other sleep needs a comment that says why
time must pass, in its line or in the two lines before."""
import pathlib
import re
import sys

SLEEP = re.compile(r"\b(sleep_for|sleep_until|SleepFor|usleep|nanosleep|time\.sleep)\(")
LOOP = re.compile(r"\b(while|for)\b")
COMMENT = re.compile(r"//|# ")


def unexplained(text):
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if SLEEP.search(line) and not any(map(COMMENT.search, lines[max(0, number - 2):number + 1])) \
                and not any(map(LOOP.search, lines[max(0, number - 4):number + 1])):
            yield number + 1, line.strip()


assert list(unexplained("f();\nusleep(1);")) == [(2, "usleep(1);")]
assert not list(unexplained("// slow\nusleep(1);")) and not list(unexplained("while (f()) {\n  usleep(1);\n}"))

tests = pathlib.Path(sys.argv[1], "tests")
sources = [path for path in sorted(tests.rglob("*")) if path.suffix in (".cc", ".h", ".py") and path.name != "sleeps_test.py"]
assert len(sources) > 100, sources
found = [f"{path}:{number}: nothing says why time must pass: {line}"
         for path in sources for number, line in unexplained(path.read_text())]
print("\n".join(found))
sys.exit(len(found) > 0)
