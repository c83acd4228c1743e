"""The places in which the replicas of a storm run: how they find each other, and what can be struck there besides them.

    shm       one host, a file store; the transports are those that the library chooses
    tls       a network namespace for each replica, tcp with TLS by a key, a file store; its cable can be cut (needs root)
    etcd      one host, an etcd of three members; a member can be killed
    launcher  one host, entrain-run --elastic, which serves the store; it can be killed

A place ends with close(), which removes all that it has made. Everything stays within loopback and the namespaces."""

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

TREE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LIBC = ctypes.CDLL(None)


class CannotRun(Exception):
    """This machine lacks something that the place needs."""


def spawn(command, said, **more):
    """Starts a process in a session of its own. It is killed if this program ends before it."""
    with open(said, "ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                preexec_fn=lambda: LIBC.prctl(1, signal.SIGKILL), **more)


def end(processes):
    for process in processes:
        process.kill()
        process.wait()


class Shm:
    cuts = False  # replicas can be cut off
    holder = ""  # what can be killed besides the replicas

    def __init__(self, directory, options):
        self.directory, self.options = directory, options
        self.stores = 0
        self.new_store()

    def new_store(self):
        """A job that begins again needs a store that has not been used."""
        self.stores += 1
        self.store = f"file:{self.directory}/store{self.stores}"
        os.makedirs(self.store.removeprefix("file:"))

    def environment(self, rank):
        ranks = str(self.options.replicas)
        return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "ENTRAIN_STORE": self.store}

    def prefix(self, rank):
        """Returns the begin of the command of a replica."""
        return []

    def close(self):
        pass

    def leftovers(self):
        """Returns what has stayed behind after close()."""
        return []


class Tls(Shm):
    cuts = True

    def __init__(self, directory, options):
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise CannotRun("network namespaces need root and the program ip (iproute2)")
        super().__init__(directory, options)
        self.key = os.path.join(directory, "key")
        with open(os.open(self.key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as key:
            key.write(secrets.token_hex(32))
        self.name = f"storm{os.getpid()}"
        self.switch = self.name + "s"
        try:
            self.make()
        except subprocess.CalledProcessError as error:
            self.close()
            raise CannotRun(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        except BaseException:
            self.close()
            raise

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def make(self):
        self.ip("netns", "add", self.switch)
        self.ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "bridge", "up")
        for rank in range(self.options.replicas):
            node = f"{self.name}-{rank}"
            self.ip("netns", "add", node)
            self.ip("link", "add", "eth0", "netns", node, "type", "veth", "peer", "name", f"port{rank}", "netns", self.switch)
            self.ip("-n", self.switch, "link", "set", f"port{rank}", "master", "bridge", "up")
            self.ip("-n", node, "link", "set", "lo", "up")
            self.ip("-n", node, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
            self.ip("-n", node, "link", "set", "eth0", "up")

    def environment(self, rank):
        # Replicas of different hosts may not send plain traffic, so all connections are TLS.
        return {**super().environment(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ENTRAIN_TRANSPORTS": "tcp",
                "ENTRAIN_INTERFACE": "eth0", "ENTRAIN_KEY_FILE": self.key}

    def prefix(self, rank):
        return ["ip", "netns", "exec", f"{self.name}-{rank}"]

    def cut(self, rank):
        self.ip("-n", self.switch, "link", "set", f"port{rank}", "down")

    def mend(self, rank):
        self.ip("-n", self.switch, "link", "set", f"port{rank}", "up")

    def own_namespaces(self):
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.split()
        return [name for name in listed if name.startswith(self.name + "-") or name == self.switch]

    def close(self):
        for name in self.own_namespaces():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def leftovers(self):
        return [f"namespace {name}" for name in self.own_namespaces()]


class Etcd(Shm):
    holder = "etcd member"

    def __init__(self, directory, options):
        program = shutil.which("etcd", path=f"{os.environ['PATH']}:{options.etcd or TREE + '/build/etcd/usr/bin'}")
        if program is None:
            raise CannotRun("etcd (Debian: etcd-server; tools/setup.sh etcd) is not installed")
        ports = free_ports(6)
        self.clients = ports[:3]
        peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        cluster = ",".join(f"m{i}={peer}" for i, peer in enumerate(peers))
        self.commands, self.members, self.down = [], [], None
        for i, peer in enumerate(peers):
            client = f"http://127.0.0.1:{self.clients[i]}"
            self.commands.append([program, f"--name=m{i}", f"--data-dir={directory}/etcd{i}", f"--initial-cluster={cluster}",
                                  f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                                  f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"])
        super().__init__(directory, options)
        try:
            self.members = [self.start(i) for i in range(3)]
            give_up = time.monotonic() + 30
            while not self.has_leader():
                if time.monotonic() > give_up:
                    raise CannotRun("etcd has no leader after 30 s")
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise

    def start(self, member):
        return spawn(self.commands[member], os.path.join(self.directory, f"etcd{member}.said"))

    def has_leader(self):
        request = urllib.request.Request(f"http://127.0.0.1:{self.clients[0]}/v3/maintenance/status", b"{}")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=2) as answer:
                return json.load(answer).get("leader", "0") != "0"
        except OSError:
            return False

    def new_store(self):
        self.stores += 1
        self.store = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.clients) + f"/storm-{self.stores}"

    def kill_holder(self, random):
        self.down = random.randrange(3)
        end([self.members[self.down]])

    def start_holder(self):
        self.members[self.down] = self.start(self.down)

    def close(self):
        end(self.members)


class Launcher(Shm):
    holder = "launcher"

    def prefix(self, rank):
        return [self.options.run, "--elastic", "--max-restarts", "1000000", "-n", str(self.options.replicas), "--no-label", "--"]


PLACES = {"shm": Shm, "tls": Tls, "etcd": Etcd, "launcher": Launcher}


def free_ports(count):
    """Returns ports that the kernel has chosen."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
