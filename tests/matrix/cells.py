"""The cells of the fault matrix: phase x fault x transport, and the expected outcome of each cell."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Outcome:
    letter: str
    meaning: str
    lost: object  # True: every rank that is left notices; False: no rank notices; None: depends on the moment
    blames: str = "victim"  # the rank that first errors name: the victim; "an end" of a broken connection; "anyone"
    goes_on: bool = True  # the ranks that are left are in one world afterwards


LOST = Outcome("L", "every rank that is left gets an error that names the victim, or goes on without it", True)
LINK = Outcome("C", "as L, but the error may name the other end of a connection of the victim: the end that reports a broken "
               "connection first is believed", True, "an end")
EITHER = Outcome("E", "as L, or nothing happens", None)
LINK_OR_FINE = Outcome("c", "as C, or nothing happens", None, "an end")
SLOW = Outcome("S", "calls end in time. The library cannot know whether a rank or the network is slow. Some ranks may be left out", None,
               "anyone", False)
STORE = Outcome("D", "calls end in time and say that the store cannot be written; no communicator comes about", True, "anyone", False)
FINE = Outcome("F", "nothing happens", False)
OUTCOMES = (LOST, LINK, EITHER, LINK_OR_FINE, SLOW, STORE, FINE)

PHASES = {
    "bootstrap": "waits in the store for the last rank",
    "connect": "is about to make its first connection",
    "handshake": "has sent its first bytes to a peer",
    "first byte": "has combined the first elements of an all_reduce of 6 MiB",
    "middle": "has combined half of them",
    "last byte": "has combined all of them; the others wait for the result",
    "wait": "has not made the call in which the others wait",
    "exchange": "is between two layers of an exchange of EDiT, with on_loss = finish",
    "commit": "has not handed over its gradients for a round of ACCO",
    "checkpoint": "has created its file of a checkpoint, and not yet written it",
    "join": "is a newcomer that is about to connect to the ranks that take it in",
    "leave": "is destroying its communicator; the others are in a barrier",
}
FAULTS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP; SIGCONT when the others have gone on",
    "reset": "each of its tcp connections is reset, at both ends",
    "half-open": "its ends of its connections are reset, the others' ends stay open and silent",
    "black hole": "its connections carry nothing any more, and stay open",
    "slow reader": "what is sent to it arrives at 40 kB/s",
    "corrupt byte": "one bit of what it sends next is changed, on each connection",
    "wrong key": "its key file has another key, from the beginning",
    "clock jump": "its time of day jumps forward by a day",
    "disk full": "the disk with the store, temporary files and checkpoints is full",
    "no descriptors": "RLIMIT_NOFILE: it gets no further descriptor",
    "no memory": "RLIMIT_AS: its address space cannot grow",
}
TRANSPORTS = ["shm", "tcp", "tcp+TLS", "ucx"]

NETWORK = ("reset", "half-open", "black hole", "slow reader", "corrupt byte")
ANY = None

# (phases, faults, transports, expected outcome). The first row that fits counts.
RULES = [
    # Cells that do not exist.
    (ANY, NETWORK, ("shm",), "shared memory has no connection that a network could break"),
    (("bootstrap",), NETWORK, ANY, "there is no connection to a peer yet"),
    (ANY, ("corrupt byte",), ("ucx",), "ucx has no checksum of its own: SECURITY.md"),
    (ANY, ("wrong key",), ("shm",), "shared memory is guarded by the user id, not by a key: SECURITY.md"),
    (("connect",), ("wrong key",), ANY, LINK),
    (("join",), ("wrong key",), ANY, LOST),
    (ANY, ("wrong key",), ANY, "keys are compared in the handshake alone: see connect and join"),
    (("bootstrap",), ("disk full",), ANY, STORE),
    (("checkpoint", "join"), ("disk full",), ANY, EITHER),
    (ANY, ("disk full",), ANY, "nothing is written to a disk in this phase"),
    (("leave",), ("clock jump", "no descriptors", "no memory"), ANY, LOST),  # it has left all the same
    # Faults that harm no rank.
    (ANY, ("clock jump",), ANY, FINE),
    (("connect", "handshake"), ("reset", "half-open", "black hole"), ANY, LINK),
    # Faults of a resource whose use may be over already, or that may not be needed.
    (ANY, ("slow reader",), ANY, SLOW),
    (ANY, ("corrupt byte",), ANY, LINK_OR_FINE),
    (("connect", "handshake"), ("no memory",), ("tcp+TLS",), LINK_OR_FINE),  # OpenSSL tells the peer first
    (("last byte", "leave"), NETWORK, ANY, EITHER),
    (ANY, ("no descriptors", "no memory"), ANY, EITHER),
    (ANY, ANY, ANY, LOST),
]

# The cells that the tests run: each phase, fault and transport at least once; few that wait out a deadline.
QUICK = [
    ("bootstrap", "kill", "shm"), ("connect", "kill", "tcp"), ("handshake", "kill", "tcp+TLS"), ("first byte", "kill", "ucx"),
    ("middle", "reset", "tcp+TLS"), ("last byte", "half-open", "tcp"), ("wait", "stop", "shm"), ("exchange", "kill", "tcp"),
    ("commit", "black hole", "tcp"), ("checkpoint", "disk full", "shm"), ("join", "wrong key", "tcp"), ("leave", "kill", "shm"),
    ("middle", "corrupt byte", "tcp+TLS"), ("exchange", "clock jump", "ucx"), ("connect", "no descriptors", "shm"),
    ("exchange", "no memory", "tcp"), ("first byte", "slow reader", "tcp"), ("middle", "reset", "ucx"),
    ("middle", "corrupt byte", "tcp"), ("connect", "no descriptors", "tcp"), ("exchange", "stop", "tcp"), ("join", "kill", "ucx"),
    ("checkpoint", "kill", "tcp+TLS"), ("commit", "kill", "ucx"), ("bootstrap", "stop", "tcp"), ("handshake", "reset", "tcp"),
]


def expected(phase, fault, transport):
    """Returns the Outcome, or the reason why there is no such cell."""
    for phases, faults, transports, outcome in RULES:
        if all(of is ANY or one in of for one, of in ((phase, phases), (fault, faults), (transport, transports))):
            return outcome
    raise AssertionError("the last rule fits every cell")


def all_cells():
    return [(phase, fault, transport) for fault in FAULTS for phase in PHASES for transport in TRANSPORTS
            if expected(phase, fault, transport) in OUTCOMES]
