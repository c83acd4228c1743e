"""Runs PyTorch's own tests of c10d that do not depend on the back end, against "entrain" and "gloo":

    python tests/python/with_torch/c10d_suite.py [--backends entrain gloo entrain-for-gloo] [--world-size 2] [-k PART...] [--list FILE]

The tests are DistributedTest._DistTestBase of torch.testing._internal.distributed.distributed_test, of the PyTorch that is
installed. Many are for back ends of certain names only: "entrain-for-gloo" runs those for gloo on groups of entrain. Each test runs on
processes of its own. Prints how many pass, fail and are skipped with each back end, and every test whose outcome differs."""
import argparse
import collections
import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time

WORLD_SIZE = "2"
STAND_IN = "entrain-for-gloo"


def suite():
    """Returns the test case of the back end in BACKEND. It is made as in PyTorch's test programs, but with forked
    ranks, which need not import PyTorch again."""
    import torch.testing._internal.common_utils  # noqa: F401

    import entrain.torch  # noqa: F401
    from torch.testing._internal.distributed import distributed_test

    if "C10D_SUITE_STAND_IN" in os.environ:
        stand_in(distributed_test.dist)

    class C10dTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    return C10dTest


def stand_in(dist):
    """Makes groups of "entrain" when the tests request "gloo"."""
    def replaced(function):
        @functools.wraps(function)
        def call(*arguments, **keywords):
            if keywords.get("backend") == "gloo":
                keywords["backend"] = "entrain"
            return function(*arguments, **keywords)

        return call

    dist.init_process_group, dist.new_group = replaced(dist.init_process_group), replaced(dist.new_group)


def run_all(backend, parts, out):
    """Runs the tests in another process, because c10d's tests read the back end when they are imported."""
    import unittest
    case = suite()
    case.setUpClass()
    for name in (name for name in dir(case) if name.startswith("test_")):
        if parts and not any(part in name for part in parts):
            continue
        result, begin = unittest.TestResult(), time.monotonic()
        case(name).run(result)
        text = "\n".join(text for _, text in result.errors + result.failures)
        kind = "failed" if text else "skipped" if result.skipped else "passed"
        why = result.skipped[0][1] if kind == "skipped" else reason(text)
        out.write(json.dumps([name, backend, kind, re.sub(r"\s+", " ", why)[:200], round(time.monotonic() - begin, 1), text[-4000:]]) + "\n")
    os._exit(0)


def reason(text):
    """Returns the line of a traceback that has the error."""
    lines = [line for line in text.splitlines() if re.match(r"([a-z_]\w*\.)*[A-Z]\w*: ", line) and "exited with error" not in line]
    return lines[0] if lines else text.strip().rpartition("\n")[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["entrain", "gloo", "entrain-for-gloo"])
    parser.add_argument("--world-size", default=WORLD_SIZE)
    parser.add_argument("--timeout", type=int, default=30, help="seconds of a test")
    parser.add_argument("-k", nargs="+", default=[], metavar="PART", help="tests with one of these in the name")
    parser.add_argument("--list", metavar="FILE", help="every outcome, a line of JSON each")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        with open(arguments.list, "a", buffering=1) as out:
            run_all(arguments.run, arguments.k, out)
    begin = time.monotonic()
    found = collections.defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.list or os.path.join(folder, "outcomes")
        open(path, "w").close()
        for backend in arguments.backends:
            here = os.path.join(folder, backend)
            os.makedirs(os.path.join(here, "barrier"))
            os.mkdir(os.path.join(here, "test_dir"))
            named = "gloo" if backend == STAND_IN else backend
            environment = {**os.environ, "BACKEND": named, **({"C10D_SUITE_STAND_IN": "1"} if named != backend else {}), "WORLD_SIZE": arguments.world_size, "TEMP_DIR": here,
                           "OMP_NUM_THREADS": "1", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(arguments.timeout)}
            subprocess.run([sys.executable, os.path.abspath(__file__), "--run", backend, "--list", os.path.abspath(path),
                            *(["-k", *arguments.k] if arguments.k else [])], env=environment, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        for line in open(path):
            name, backend, kind, why, seconds, _ = json.loads(line)
            found[name][backend] = (kind, why)
    print(f"{len(found)} tests, {arguments.world_size} processes each, {time.monotonic() - begin:.0f} s")
    for backend in arguments.backends:
        counted = collections.Counter(outcomes.get(backend, ("missing", ""))[0] for outcomes in found.values())
        print(f"{backend}: " + ", ".join(f"{number} {kind}" for kind, number in sorted(counted.items())))
    differ = {name: outcomes for name, outcomes in found.items()
              if len({outcomes.get(backend, ("missing", ""))[0] for backend in arguments.backends}) > 1}
    print(f"{len(differ)} differ")
    for name, outcomes in differ.items():
        print(name)
        for backend, (kind, why) in outcomes.items():
            print(f"    {backend}: {kind} {why}")


if __name__ == "__main__":
    main()
