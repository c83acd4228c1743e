"""Runs bench/cluster.sh and checks its output: cluster_test.py ENTRAIN_PERF. Exits with 77 (skipped) if no cluster can
be made here."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "bench" / "cluster.sh"
PERF = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else None
BUILD = PERF.parents[1] if PERF else None
# Longer ways need the program that delays frames, which is built with the benchmarks.
needs_delays = unittest.skipUnless(BUILD and (BUILD / "bench" / "delay-frames").exists(), "delay-frames is not built")


def namespaces():
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=10).stdout
    return [line.split()[0] for line in said.splitlines() if line]


def obstacle():
    """Returns the reason why no cluster can be made here, in one line, or "" if one can be made."""
    for tool in ("bash", "ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    name = f"entrain-try-{os.getpid()}"
    try:
        for command in (f"ip netns add {name}", f"ip -n {name} link add bridge type bridge",
                        f"ip -n {name} link add one type veth peer name other",
                        f"tc -n {name} qdisc replace dev one root tbf rate 1gbit burst 262144 latency 50ms",
                        f"ip netns exec {name} true"):
            done = subprocess.run(command.split(), capture_output=True, text=True, timeout=10)
            if done.returncode != 0:
                return f"{command}: {done.stderr.strip()}"
        return ""
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)


def program_of(server, client):
    """Returns a program for every node. Node 0 listens and runs `server`, the others connect to it and run `client`."""
    return f"""
import os, random, socket, time
if os.environ['RANK'] == '0':
    server = socket.create_server(('10.77.0.1', 7000))
{textwrap.indent(textwrap.dedent(server), "    ")}
else:
    while True:
        try: peer = socket.create_connection(('10.77.0.1', 7000), 5); break
        except ConnectionRefusedError: time.sleep(0.01)
{textwrap.indent(textwrap.dedent(client), "    ")}
"""


class Cluster(unittest.TestCase):
    def start(self, *arguments, **environment):
        return subprocess.Popen(["bash", SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **environment})

    def end(self, process):
        """Waits until the process has ended. Checks that no namespace of it is left. Returns its stdout and stderr."""
        said = process.communicate(timeout=60)
        self.assertEqual([name for name in namespaces() if name.startswith(f"ent{process.pid}")], [])
        return said

    def test_a_command_runs_once_a_node(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "lines")
            process = self.start("--nodes", "2", "--rate", "1gbit", PERF, "all_reduce", "--transport", "tcp",
                                 "--min-bytes", "8", "--max-bytes", "128K", "--factor", "128", "--budget", "0.01", "--json", file)
            _, errors = self.end(process)
            self.assertEqual((process.returncode, errors), (0, ""))
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([line["bytes"] for line in lines], [8, 1 << 10, 128 << 10])
        for line in lines:
            self.assertEqual((line["ranks"], line["transport"], line["wrong"]), (2, "tcp", 0))

    def test_a_limit_for_each_connection_is_made_up_for(self):
        process = self.start("--nodes", "2", "--rate", "1gbit", "--connection", "100mbit", PERF, "all_reduce", "--transport", "tcp",
                             "--min-bytes", "4M", "--max-bytes", "4M", "--budget", "3", ENTRAIN_LOG="info")
        output, errors = self.end(process)
        if "htb" in errors or "bpf" in errors:
            self.skipTest(f"this kernel limits no connections: {errors.splitlines()[0]}")
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("large payloads by 2 connections", errors)
        self.assertEqual(output.splitlines()[-1].split()[8], "0", output)

    @needs_delays
    def test_a_delay_is_that_of_the_round_trip(self):
        program = program_of("""
            peer = server.accept()[0]
            begun = time.monotonic()
            for _ in range(3): peer.sendall(b'x'); peer.recv(1)
            print((time.monotonic() - begun) / 3)""", """
            for _ in range(3): peer.sendall(peer.recv(1))""")
        process = self.start("--nodes", "2", "--rate", "1gbit", "--delay", "120", "--build", BUILD, sys.executable, "-c", program)
        output, errors = self.end(process)
        self.assertEqual((process.returncode, errors), (0, ""))
        self.assertGreaterEqual(float(output), 0.120)
        self.assertLess(float(output), 0.120 + 0.25, "on a busy machine")

    @needs_delays
    def test_nodes_of_a_site_are_near_each_other(self):
        program = program_of("""
            for _ in range(2):
                peer = server.accept()[0]
                node, times = int(peer.recv(1)), []
                for _ in range(5):
                    begun = time.monotonic(); peer.sendall(b'x'); peer.recv(1); times.append(time.monotonic() - begun)
                print(node, min(times))""", """
            peer.sendall(os.environ['RANK'].encode())
            for _ in range(5): peer.sendall(peer.recv(1))""")
        process = self.start("--sites", "2,1", "--rate", "1gbit", "--site-rate", "500mbit", "--delay", "200", "--build", BUILD,
                             sys.executable, "-c", program)
        output, errors = self.end(process)
        self.assertEqual((process.returncode, errors), (0, ""))
        times = {int(node): float(time) for node, time in (line.split() for line in output.splitlines())}
        self.assertLess(times[1], 0.200)
        self.assertGreaterEqual(times[2], 0.200)

    @needs_delays
    def test_single_packets_are_lost_and_the_bytes_arrive(self):
        program = program_of("""
            peer, got = server.accept()[0], bytearray()
            while len(got) < 8 << 20: got += peer.recv(1 << 20)
            print(got == random.Random(1).randbytes(8 << 20))""", """
            peer.sendall(random.Random(1).randbytes(8 << 20))""")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "counts")
            process = self.start("--nodes", "2", "--rate", "1gbit", "--loss", "2", "--reorder", "1", "--jitter", "1", "--seed", "7",
                                 "--counts", file, "--build", BUILD, sys.executable, "-c", program)
            output, errors = self.end(process)
            self.assertEqual((process.returncode, output, errors), (0, "True\n", ""))
            counts = json.loads(file.read_text())
        self.assertGreater(counts["packets"], (8 << 20) // 1448)
        # The limits are at least four deviations of a binomial distribution away.
        self.assertTrue(0.01 < counts["lost"] / counts["packets"] < 0.03, counts)
        self.assertTrue(0.004 < counts["held_back"] / counts["packets"] < 0.02, counts)
        self.assertLess(counts["frames"], counts["packets"], "no super-frames: nothing was cut")

    @needs_delays
    def test_ranks_meet_over_a_long_way(self):
        # Creation takes six round trips and a tenth of a second; the rest is for a busy machine.
        process = self.start("--nodes", "3", "--rate", "1gbit", "--delay", "300", "--build", BUILD, PERF, "all_reduce",
                             "--transport", "tcp", "--min-bytes", "8", "--max-bytes", "8", "--budget", "0.01")
        begun = time.monotonic()
        output, errors = self.end(process)
        self.assertEqual((process.returncode, errors), (0, ""), output)
        self.assertLess(time.monotonic() - begun, 30)

    def test_nothing_is_left_when_a_node_fails(self):
        process = self.start("--nodes", "2", "--rate", "1gbit", "sh", "-c", "exit $((RANK * 3))")
        self.end(process)
        self.assertEqual(process.returncode, 3)

    def test_nothing_is_left_when_it_is_ended(self):
        process = self.start("--nodes", "2", "--rate", "1gbit", "sh", "-c", "echo up; exec sleep 60")
        self.assertEqual(process.stdout.readline(), "up\n")
        process.send_signal(signal.SIGTERM)
        self.end(process)
        self.assertEqual(process.returncode, 143)

    def test_wrong_arguments_are_named(self):
        for option, value in (("--nodes", "1"), ("--nodes", "x"), ("--nodes", "65"), ("--rate", "fast"), ("--rate", "1gbit,x"),
                              ("--rate", "0mbit"), ("--connection", "slow"), ("--burst", "-1"), ("--burst", "much"), ("--delay", "-1"), ("--delay", "long"), ("--loss", "100"), ("--loss", "x"), ("--jitter", "0.5"), ("--reorder", "-1"), ("--sites", "2,0"),
                              ("--sites", "one"), ("--site-rate", "1gbit"), ("--up", "fast"), ("--up", "9:1gbit"), ("--seed", "x"), ("--speed", "1")):
            process = self.start(option, value, "true")
            output, errors = self.end(process)
            self.assertEqual((process.returncode, output), (2, ""), errors)
            self.assertTrue(errors.startswith(f"cluster.sh: {option}: "), errors)
            self.assertIn(value.split(",")[-1] if option != "--speed" else "no such option", errors)


if __name__ == "__main__":
    why = obstacle()
    if why:
        print("skipped:", why)
        sys.exit(77)
    unittest.main()
