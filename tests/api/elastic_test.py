"""Runs one program (elastic.c) under elastic launchers, over an etcd of three members:  elastic_test.py PROGRAM CASE
Ranks are lost and come back, or stay away; the leader of etcd is killed in each case. Exits with 77 where a case cannot run."""
import collections
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

TREE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = sys.argv[1]
LAUNCHERS = re.compile(r"ENTRAIN_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|OMPI_|PMI|SLURM_|TORCHELASTIC_|GROUP_|JOB_")
CLEAN = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(holds, what, seconds=60):
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, f"not in {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.02)


class Etcd:
    def __init__(self, folder):
        program = shutil.which("etcd", path=f"{os.environ['PATH']}:{TREE}/build/etcd/usr/bin")
        if program is None:
            skip("etcd (Debian: etcd-server) is not installed")
        ports = free_ports(6)
        self.clients, peers = ports[:3], ports[3:]
        cluster = ",".join(f"m{i}=http://127.0.0.1:{peer}" for i, peer in enumerate(peers))
        self.members = []
        for i, (client, peer) in enumerate(zip(self.clients, peers)):
            with open(f"{folder}/etcd{i}.log", "w") as log:
                self.members.append(subprocess.Popen(
                    [program, f"--name=m{i}", f"--data-dir={folder}/m{i}", f"--initial-cluster={cluster}",
                     f"--listen-client-urls=http://127.0.0.1:{client}", f"--advertise-client-urls=http://127.0.0.1:{client}",
                     f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"],
                    stdout=log, stderr=log))
        wait_for(lambda: self.leader() is not None, "a leader of etcd")

    def status(self, member):
        request = urllib.request.Request(f"http://127.0.0.1:{self.clients[member]}/v3/maintenance/status", b"{}")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=2) as answer:
                return json.load(answer)
        except OSError:
            return None

    def leader(self):
        for member in range(3):
            status = self.status(member)
            if status and status.get("leader", "0") == status["header"]["member_id"]:
                return member
        return None

    def kill_leader(self):
        self.members[self.leader()].kill()

    def hosts(self):
        return ",".join(f"127.0.0.1:{client}" for client in self.clients)

    def close(self):
        for member in self.members:
            member.kill()
            member.wait()


class Job:
    """The folder of a job, and the lines of its log."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.seen = 0

    def kill(self, rank):
        partial = self.folder / "kill.new"
        partial.write_text(str(rank))
        partial.rename(self.folder / "kill")

    def stop(self):
        (self.folder / "stop").touch()

    def news(self):
        log = self.folder / "log"
        return log.read_text().splitlines()[self.seen:] if log.exists() else []

    def expect(self, event, size, number=0, count=None):
        """Waits until all ranks of the world (or `count` ranks) have logged the event. Forgets all earlier lines."""
        wanted = re.compile(f"{event} {number}: rank ([0-9]+) of {size}$")
        count = size if count is None else count
        ranks = lambda: {m[1] for m in map(wanted.match, self.news()) if m}
        wait_for(lambda: len(ranks()) == count, lambda: f"{count} ranks of {size}: {event} {number}; there is {self.news()}")
        self.seen += len(self.news())


def start(job, mode, variables, **more):
    return subprocess.Popen([PROGRAM, mode, job.folder], env={**CLEAN, "ENTRAIN_TIMEOUT": "60s", **variables}, **more)


class Kubelet:
    """Restarts ranks that end with an error, each independently of the others."""

    def __init__(self, job, variables_of):
        self.job, self.variables_of = job, variables_of
        self.ranks = {rank: start(job, "restart", variables) for rank, variables in enumerate(variables_of)}
        self.restarts = collections.Counter()

    def look(self):
        for rank, process in self.ranks.items():
            if process.poll() not in (None, 0):
                self.restarts[rank] += 1
                assert self.restarts[rank] < 20, self.job.news()
                self.ranks[rank] = start(self.job, "restart", self.variables_of[rank])
        return all(process.poll() == 0 for process in self.ranks.values())

    def close(self):
        for process in self.ranks.values():
            process.kill()
            process.wait()


def fields(manifest, pod):
    """Returns the environment of a container as the kubelet makes it from the manifest."""
    variables = {}
    for entry in manifest["spec"]["template"]["spec"]["containers"][0]["env"]:
        value = entry.get("value")
        if value is None:
            value = pod[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        variables[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), value)
    return variables


def kubernetes(etcd, job):
    """Runs the pods of examples/kubernetes/indexed-job.yaml. One pod is lost, and all pods restart independently."""
    try:
        import yaml
    except ImportError:
        skip("Python has no yaml (Debian: python3-yaml)")
    service, manifest = yaml.safe_load_all((TREE / "examples/kubernetes/indexed-job.yaml").read_text())
    etcd_service, etcd_set = yaml.safe_load_all((TREE / "examples/kubernetes/etcd.yaml").read_text())
    spec, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    assert (manifest["apiVersion"], manifest["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert pod["restartPolicy"] in ("OnFailure", "Never")
    for headless in service, etcd_service:
        assert (headless["kind"], headless["spec"]["clusterIP"]) == ("Service", "None")
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": manifest["metadata"]["name"]}
    uid = "9be2a1c4-6d1f-4a43-9f2b-0c8f5d7e3a10"
    size = spec["completions"]
    pods = [{"JOB_COMPLETION_INDEX": str(index),
             **fields(manifest, {"metadata.labels['batch.kubernetes.io/controller-uid']": uid})} for index in range(size)]
    assert all(int(variables["WORLD_SIZE"]) == size == spec["parallelism"] for variables in pods)
    name, members = etcd_service["metadata"]["name"], etcd_set["spec"]["replicas"]
    assert (etcd_set["spec"]["serviceName"], etcd_set["metadata"]["name"]) == (name, name)
    hosts = ",".join(f"{name}-{i}.{name}:2379" for i in range(members))
    assert pods[0]["ENTRAIN_STORE"] == f"etcd://{hosts}/{uid}"
    command = etcd_set["spec"]["template"]["spec"]["containers"][0]["command"]
    assert f"--initial-cluster={','.join(f'{name}-{i}=http://{name}-{i}.{name}:2380' for i in range(members))}" in command
    (volume,), (mount,) = pod["volumes"], pod["containers"][0]["volumeMounts"]
    assert volume["name"] == mount["name"] and volume["secret"]["defaultMode"] == 0o400
    key = tempfile.NamedTemporaryFile("w")  # the secret, which nobody else may read
    key.write(secrets.token_hex(32))
    key.flush()
    for variables in pods:
        assert variables["ENTRAIN_KEY_FILE"] == f"{mount['mountPath']}/key"
        variables["ENTRAIN_KEY_FILE"] = key.name
        variables["ENTRAIN_STORE"] = variables["ENTRAIN_STORE"].replace(hosts, etcd.hosts())
    kubelet = Kubelet(job, pods)
    try:
        job.expect("began", size)
        etcd.kill_leader()
        job.kill(2)
        wait_for(lambda: kubelet.look() or kubelet.restarts[2] > 0, "rank 2 starts again")
        def all_began():
            kubelet.look()
            began = [line for line in job.news() if line.startswith("began")]
            return len(began) >= size
        wait_for(all_began, "a world of four again")
        job.stop()
        wait_for(kubelet.look, "the end")
        print("restarts by rank:", dict(kubelet.restarts))
    finally:
        kubelet.close()


def slurm(etcd, job):
    """Emulates srun --no-kill on four nodes by the variables that the tasks get. The first node, with rank 0, is lost;
    the others stay."""
    ranks = [start(job, "stay", {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4",
                                 "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank), "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0",
                                 "SLURM_STEP_NODELIST": "n[1-4]", "ENTRAIN_STORE": f"etcd://{etcd.hosts()}/job77"})
             for rank in range(4)]
    try:
        job.expect("began", 4)
        etcd.kill_leader()
        job.kill(0)
        job.expect("lost", 4, 0, 3)
        wait_for(lambda: sum(line.endswith("of 3") for line in job.news()) == 3, "the others go on")
        job.stop()
        assert [rank.wait(60) for rank in ranks] == [-signal.SIGKILL, 0, 0, 0]
        job.expect("done", 3)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def torch_variables(etcd, job):
    """Sets the variables of torchrun's agents on two hosts by hand: after a restart their counts differ."""
    def world(counts):
        ranks = []
        for host, count in enumerate(counts):
            for local in range(2):
                ranks.append(start(job, "restart", {
                    "RANK": str(2 * host + local), "WORLD_SIZE": str(2 * len(counts)), "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(host), "GROUP_WORLD_SIZE": str(len(counts)),
                    "TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": str(count),
                    "ENTRAIN_STORE": f"etcd://{etcd.hosts()}/torch"}))
        return ranks
    ranks = []
    try:
        for round, counts in enumerate([[0], [1], [1, 0], [2, 1], [3]]):
            ranks = world(counts)
            size = len(ranks)
            job.expect("began", size)
            if round == 0:
                etcd.kill_leader()
            if round < 4:
                job.kill(size - 1)
                codes = [rank.wait(60) for rank in ranks]
                assert codes == [1] * (size - 1) + [-signal.SIGKILL], codes
                job.expect("lost", size, size - 1, size - 1)
        job.stop()
        assert [rank.wait(60) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def torchrun(etcd, job):
    """Runs torchrun itself: an agent of two ranks, one of which dies; then a second agent, which joins and leaves."""
    program = TREE / "build/python/bin/torchrun"
    if not program.exists() or subprocess.run([program.parent / "python", "-c", "import torch"], capture_output=True).returncode:
        skip("build/python has no torch (tools/setup.sh python torch)")
    [port] = free_ports(1)

    def agent(name):
        log = open(job.folder / f"{name}.log", "w")
        return subprocess.Popen(
            [program, "--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=9", "--rdzv-backend=c10d",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "--monitor-interval=0.2",
             "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3", "--no-python",
             PROGRAM, "restart", job.folder],
            # With a shared store, an agent that joins later waits for ever for MASTER_ADDR, which the first has set for an
            # earlier round (dynamic_rendezvous.py of torch 2.13).
            env={**CLEAN, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "ENTRAIN_TIMEOUT": "60s",
                 "ENTRAIN_STORE": f"etcd://{etcd.hosts()}/torchrun"},
            stdout=log, stderr=log, start_new_session=True)
    agents = []
    try:
        agents.append(agent("first"))
        job.expect("began", 2)
        etcd.kill_leader()
        job.kill(1)
        job.expect("began", 2)  # the first agent has counted a restart
        agents.append(agent("second"))  # it has counted none
        job.expect("began", 4)
        os.killpg(agents.pop().pid, signal.SIGKILL)  # a host is lost; its ranks are sessions of their own
        job.kill(3)
        job.expect("began", 2)
        job.stop()
        assert agents[0].wait(60) == 0
    except BaseException:
        for log in job.folder.glob("*.log"):
            print(f"---- {log.name}", log.read_text()[-3000:], sep="\n")
        raise
    finally:
        for one in agents:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()


with tempfile.TemporaryDirectory(prefix="entrain-elastic-") as top:
    etcd = Etcd(top)
    folder = pathlib.Path(top, "job")
    folder.mkdir()
    try:
        {"kubernetes": kubernetes, "slurm": slurm, "torch_variables": torch_variables, "torchrun": torchrun}[sys.argv[2]](
            etcd, Job(folder))
    finally:
        etcd.close()
