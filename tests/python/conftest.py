"""Shared by the tests of the Python package: ranks as threads, which start quickly, and ranks as processes."""
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import pytest

import entrain

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUN = os.environ["TEST_ENTRAIN_RUN"]  # entrain-run
_names = itertools.count()

if os.environ.get("TEST_STAGING"):
    sys.path.insert(0, str(ROOT / "tests/python/with_torch"))
    import forks
    forks.stage()


def ranks(size, body, timeout=20.0):
    """Calls body(comm) on `size` ranks, which are threads with a runtime each. Returns the results in rank order. If
    ranks raised, raises the exception of the first of them."""
    name = f"mem:ranks-{next(_names)}"
    results, failures = [None] * size, []

    def run(rank):
        try:
            with entrain.Runtime() as runtime, entrain.Store.open(name) as store, \
                    entrain.Comm.create(store, rank, size, timeout=timeout, runtime=runtime) as comm:
                results[rank] = body(comm)
        except BaseException as failure:  # raised below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * timeout)
        assert not thread.is_alive(), "a rank hangs"
    if failures:
        raise failures[0]
    return results


def start(code, *arguments, size=0, **keywords):
    """Starts a Python process that runs `code`; with `size`, this number of ranks under entrain-run."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    if size:
        command = [RUN, "-n", str(size), "--", *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords)


def finish(process, timeout=40):
    """Waits for the process, which must exit with 0. Returns its output."""
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        pytest.fail(f"it hangs; so far:\n{text}")
    assert process.returncode == 0, f"exit {process.returncode}:\n{text}"
    return text


def script(code, *arguments, size=0, timeout=40, **keywords):
    """Runs `code` until it ends. Returns its output."""
    return finish(start(code, *arguments, size=size, **keywords), timeout)


def watched(file):
    """Returns variables with which a program's interpreters write to `file` the method of each object that they make."""
    path = os.pathsep.join([str(ROOT / "tests/python/watch"), os.environ["PYTHONPATH"]])
    return {**os.environ, "PYTHONPATH": path, "TEST_METHODS": str(file)}


def methods_in(file):
    """Returns the methods that the programs have run (watch/sitecustomize.py)."""
    return set(pathlib.Path(file).read_text().split()) if os.path.exists(file) else set()


#: The method by a word in the name of an example.
METHODS = {"edit": "edit", "aedit": "a-edit", "acco": "acco", "resume": "edit"}


def example(name, *arguments, size=0, timeout=60):
    """Runs an example of examples/python, with `size` as this number of ranks under entrain-run. Returns its output. The example must
    run the method that its name, or its argument --method, says."""
    command = [sys.executable, ROOT / "examples/python" / name, *arguments]
    if size:
        command = [RUN, "-n", size, "--", *command]
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "methods")
        text = finish(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       env=watched(file)), timeout)
        says = {METHODS[word] for word in re.split("[_.]", name) if word in METHODS}
        if "--method" in arguments:
            says = {arguments[arguments.index("--method") + 1]}
        assert methods_in(file) == says, f"{name} says {says} and runs {methods_in(file)}"
    return text
