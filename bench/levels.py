#!/usr/bin/env python3
"""Compares the levels of SECURITY.md over tcp in one run: plain, with a key, with CRC, with TLS by the key and by certificates.

    bench/levels.py [--build build/release] [--rounds 7] [--bytes 16M] [--budget 0.3] [--hosts] [--rate 10gbit]

Two ranks, each on a core of its own. In each round every level is measured once, one after the other, so that a change of the machine's
speed meets all levels alike. The table has medians over the rounds; "of plain" is the median of the rounds' ratios of rates. --hosts: the
ranks are in two network namespaces on a veth pair (as root; iproute2), --rate limits it in both directions (tc's tbf). Certificates are
made by openssl(1)."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = ["send_recv", "all_reduce"]


def call(command):
    subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_certificates(folder):
    call(f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=authority -days 2 "
         f"-keyout {folder}/ca.key -out {folder}/ca.pem")
    call(f"openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=rank -keyout {folder}/rank.key -out {folder}/rank.csr")
    call(f"openssl x509 -req -in {folder}/rank.csr -CA {folder}/ca.pem -CAkey {folder}/ca.key -CAcreateserial -days 2 -out {folder}/rank.pem")
    os.chmod(f"{folder}/rank.key", 0o600)
    return {"ENTRAIN_TLS_CERT": f"{folder}/rank.pem", "ENTRAIN_TLS_KEY": f"{folder}/rank.key", "ENTRAIN_TLS_CA": f"{folder}/ca.pem"}


def levels_of(folder, hosts):
    """Returns the levels by name, each with the variables that set it."""
    key = pathlib.Path(folder, "key")
    key.write_text(os.urandom(32).hex())
    key.chmod(0o600)
    keyed, certificates = {"ENTRAIN_KEY_FILE": str(key)}, make_certificates(folder)
    if hosts:
        insecure = {"ENTRAIN_INSECURE": "1"}
        return {"plain": insecure, "CRC": {**insecure, "ENTRAIN_CRC": "1"}, "key (TLS)": keyed, "certificates (TLS)": certificates}
    return {"plain": {}, "CRC": {"ENTRAIN_CRC": "1"}, "key": keyed, "key, ENTRAIN_TLS=all": {**keyed, "ENTRAIN_TLS": "all"},
            "certificates, ENTRAIN_TLS=all": {**certificates, "ENTRAIN_TLS": "all"}}


class Hosts:
    """Two network namespaces on a veth pair."""

    def __init__(self, rate):
        self.names = [f"lvl{os.getpid()}{i}" for i in (0, 1)]
        for name in self.names:
            call(f"ip netns add {name}")
        call(f"ip link add eth0 netns {self.names[0]} type veth peer name eth0 netns {self.names[1]}")
        for i, name in enumerate(self.names):
            for command in (f"addr add 10.78.0.{i + 1}/24 dev eth0", "link set eth0 up", "link set lo up"):
                call(f"ip -n {name} {command}")
            if rate:
                call(f"tc -n {name} qdisc replace dev eth0 root tbf rate {rate} burst 1mb latency 50ms")

    def prefix(self, rank):
        return ["ip", "netns", "exec", self.names[rank]]

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def measure(options, case, level, hosts, folder):
    """Runs both ranks once. Returns the median time in microseconds."""
    result = pathlib.Path(folder, "result.json")
    result.unlink(missing_ok=True)
    store = tempfile.mkdtemp(dir=folder)
    ranks = []
    for rank in (0, 1):
        command = ["taskset", "-c", str(rank % os.cpu_count()), str(options.build / "tools" / "entrain-perf"), case, "--transport", "tcp",
                   "--min-bytes", options.bytes, "--max-bytes", options.bytes, "--budget", str(options.budget)]
        if rank == 0:
            command += ["--json", str(result)]
        variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0" if hosts else str(rank), "ENTRAIN_STORE": f"file:{store}",
                     **({"ENTRAIN_INTERFACE": "10.78.0.0/24"} if hosts else {}), **level}
        ranks.append(subprocess.Popen((hosts.prefix(rank) if hosts else []) + command, env=variables, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True))
    for rank in ranks:
        errors = rank.communicate(timeout=120)[1]
        if rank.returncode != 0:
            sys.exit(f"levels.py: {case}: {errors}")
    line = json.loads(result.read_text().splitlines()[-1])
    if line["wrong"] != 0:
        sys.exit(f"levels.py: {case}: {line['wrong']} wrong elements")
    return line["median_us"], line["bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bytes", default="16M")
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--rate", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(options.rate) if options.hosts else None
        try:
            levels = levels_of(folder, options.hosts)
            times = {(case, name): [] for case in CASES for name in levels}
            size = 0
            for _ in range(options.rounds):
                for case in CASES:
                    for name, level in levels.items():
                        time, size = measure(options, case, level, hosts, folder)
                        times[case, name].append(time)
        finally:
            if hosts:
                hosts.remove()
    print("| collective | level | time | rate | of plain (lowest to highest round) |\n|---|---|---|---|---|")
    for case in CASES:
        plain = times[case, "plain"]
        for name in levels:
            mine = times[case, name]
            ratios = sorted(one / other for one, other in zip(plain, mine))
            median = statistics.median(mine)
            print(f"| {case} | {name} | {median / 1e3:.2f} ms | {size / median / 1e3:.2f} GB/s | {statistics.median(ratios):.2f} "
                  f"({ratios[0]:.2f} to {ratios[-1]:.2f}) |")


if __name__ == "__main__":
    main()
