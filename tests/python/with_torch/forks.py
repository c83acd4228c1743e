"""Forks ranks from a process that has imported PyTorch, because each import takes seconds of processor time. The tests of the
examples and of README.md run programs as users do: as ranks of entrain-run that import PyTorch themselves."""
import atexit
import linecache
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
from multiprocessing import connection

_context = multiprocessing.get_context("forkserver")
# The last two are imported by PyTorch itself, when fully_shard and checkpoints are first used.
_context.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.testing",
                                 "torch._dynamo", "fsspec.core"])


def stage():
    """With TEST_STAGING, all parameters have a twin, as if they were on an accelerator. EDiT's twins are NaN whenever the library
    has no right to read them."""
    if not os.environ.get("TEST_STAGING"):
        return
    import entrain.torch
    from entrain.torch._layers import Layer
    for kind in (entrain.torch.EDiT, entrain.torch.AEDiT, entrain.torch.ACCO):
        kind.__init__.__kwdefaults__["staging"] = True
    store = Layer.store

    def store_and_spoil(layer):
        store(layer)
        if layer.host is not layer.flats[0]:
            layer.host.fill_(float("nan"))

    Layer.store = store_and_spoil


def _main(code, arguments, environment, stdin, stdout):
    """Runs a program as an interpreter does: with its own streams and module, and the functions of its end."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    os.dup2(stdout.fileno(), 2)
    stdin.close()
    stdout.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    sys.argv = ["-c", *arguments]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    linecache.cache["<program>"] = (len(code), None, code.splitlines(True), "<program>")  # for tracebacks
    stage()
    try:
        exec(compile(code, "<program>", "exec"), module.__dict__)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()


class Process:
    """A forked process that runs `code`, with the functions of subprocess.Popen that the tests need. One pipe is its standard
    input, another its standard output and error."""

    def __init__(self, code, *arguments, environment=None):
        theirs, stdin = _context.Pipe(duplex=False)
        stdout, mine = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_main, args=(code, [str(one) for one in arguments],
                                                             {**os.environ, **(environment or {})}, theirs, mine))
        self._process.start()
        self.pid, self.sentinel = self._process.pid, self._process.sentinel
        self.stdin, self.stdout = open(os.dup(stdin.fileno()), "w"), open(os.dup(stdout.fileno()))
        for end in (theirs, stdin, stdout, mine):
            end.close()
        self.text = None  # the whole output, once the thread of read() has it
        self._reader = None

    @property
    def returncode(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()

    def read(self):
        """Closes the standard input, and starts the thread that reads the output to `text`. Returns the thread."""
        def read():
            self.text = self.stdout.read()

        if self._reader is None:
            self.stdin.close()
            self._reader = threading.Thread(target=read, daemon=True)
            self._reader.start()
        return self._reader

    def communicate(self, timeout):
        """Returns (the output, None) when the process has ended."""
        self.read().join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired("a forked rank", timeout)
        self._process.join()
        return self.text, None


def script(code, *arguments, size, timeout=40, environment=None):
    """Runs `code` on `size` ranks that find each other by Comm.from_env. `environment` has more variables. All ranks must end
    with 0. If one does not, kills the others and fails with the output of all."""
    import entrain  # not above: the forked processes import this module before they have their variables
    with entrain.Store.serve("tcp://127.0.0.1:0") as store:
        ranks = [Process(code, *arguments, environment={
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "ENTRAIN_STORE": store.url, **(environment or {})}) for rank in range(size)]
        for process in ranks:
            process.read()
        deadline, running, failure = time.monotonic() + timeout, list(ranks), None
        while running and not failure:
            if not connection.wait([process.sentinel for process in running], max(0, deadline - time.monotonic())):
                failure = "they hang"
            for process in [process for process in running if process.returncode is not None]:
                running.remove(process)
                if process.returncode != 0:
                    failure = f"rank {ranks.index(process)} ended with {process.returncode}"
        for process in running:
            process.kill()
        for process in ranks:
            process.read().join(10)
    assert not failure, "\n".join([failure, *(f"[{rank}] {process.text}" for rank, process in enumerate(ranks))])
