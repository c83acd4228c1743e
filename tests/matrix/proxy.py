"""A tcp proxy between the ranks of a world, which breaks the connections of one of them.

A rank connects to the proxy in place of a peer, and first sends three bytes: its rank, and the port that it meant (hooks.cc). The
proxy listens on 127.0.0.2 and dials from 127.0.0.3, so that the library takes the two ends for two hosts.
"""

import selectors
import socket
import struct
import threading
import time

MOST_BUFFERED = 256 << 10
SLOW_BYTES = 2048  # a slow reader takes this number of bytes
SLOW_EVERY_S = 0.05  # in each such time


class Way:
    """One direction of a connection. to_victim: true if the bytes go to the victim."""

    def __init__(self, source, sink, to_victim):
        self.source, self.sink, self.to_victim = source, sink, to_victim
        self.bytes = bytearray()
        self.ended = self.told = False


class Connection:
    def __init__(self, dialer, target, by_victim, port):
        self.dialer, self.target, self.by_victim, self.port = dialer, target, by_victim, port
        self.ways = [Way(dialer, target, not by_victim), Way(target, dialer, by_victim)]
        self.silent = self.altered = False

    def sockets(self):
        return [one for one in (self.dialer, self.target) if one is not None]

    def victims_end(self):
        return self.dialer if self.by_victim else self.target


def reset(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


class Proxy(threading.Thread):
    def __init__(self, victim):
        super().__init__(daemon=True)
        self.victim, self.victim_ports = victim, set()
        self.fault, self.begun = None, threading.Event()
        self.listener = socket.create_server(("127.0.0.2", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.listener.setblocking(False)
        self.wake_out, self.wake_in = socket.socketpair()
        self.connections, self.ending, self.slow_at = [], False, 0.0
        self.start()

    def strike(self, fault):
        """Breaks the victim's connections, existing and later ones. Returns when the existing ones are broken."""
        self.wanted = fault
        self.wake_in.send(b"s")
        self.begun.wait(10)

    def close(self):
        self.ending = True
        self.wake_in.send(b"e")
        self.join(10)

    def run(self):
        while not self.ending:
            self.turn()
        for connection in self.connections:
            for one in connection.sockets():
                one.close()
        for one in (self.listener, self.wake_in, self.wake_out):
            one.close()

    def turn(self):
        with selectors.PollSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ, "accept")
            selector.register(self.wake_out, selectors.EVENT_READ, "wake")
            wanted = {}
            for connection in self.connections:
                if connection.silent:
                    continue
                for way in connection.ways:
                    if not way.ended and len(way.bytes) < MOST_BUFFERED and way.source:
                        wanted[way.source] = wanted.get(way.source, 0) | selectors.EVENT_READ
                    if way.bytes and not self.waits(connection, way):
                        wanted[way.sink] = wanted.get(way.sink, 0) | selectors.EVENT_WRITE
            for one, events in wanted.items():
                selector.register(one, events, "data")
            ready = {key.fileobj: events for key, events in selector.select(SLOW_EVERY_S if self.fault == "slow reader" else 5)}
        if self.wake_out in ready:
            self.wake_out.recv(16)
            if self.fault is None and not self.ending:
                self.fault = self.wanted
                for connection in [each for each in self.connections if self.is_victims(each)]:
                    self.break_one(connection)
                self.begun.set()
        if self.listener in ready:
            self.accept()
        for connection in list(self.connections):
            if not connection.silent:
                self.move(connection, ready)

    def accept(self):
        try:
            dialer, _ = self.listener.accept()
        except OSError:
            return
        dialer.settimeout(5)
        try:
            head = dialer.recv(3, socket.MSG_WAITALL)
            port = (head[1] << 8) + head[2]
            target = socket.create_connection(("127.0.0.1", port), 5, ("127.0.0.3", 0))
        except (OSError, IndexError):
            dialer.close()
            return
        for one in (dialer, target):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        by_victim = head[0] == self.victim
        connection = Connection(dialer, target, by_victim, port)
        self.connections.append(connection)
        if self.fault and self.is_victims(connection):
            self.break_one(connection)

    def is_victims(self, connection):
        return connection.by_victim or connection.port in self.victim_ports

    def break_one(self, connection):
        if self.fault == "reset":
            self.reset_both(connection)
        elif self.fault == "half-open":
            reset(connection.victims_end())
            if connection.by_victim:
                connection.dialer = None
            else:
                connection.target = None
            connection.silent = True
        elif self.fault == "black hole":
            connection.silent = True

    def is_slow(self, connection, way):
        return self.fault == "slow reader" and way.to_victim and self.is_victims(connection)

    def waits(self, connection, way):
        return self.is_slow(connection, way) and time.monotonic() < self.slow_at

    def move(self, connection, ready):
        for way in connection.ways:
            if ready.get(way.source, 0) & selectors.EVENT_READ and not way.ended:
                self.read(connection, way)
                if connection not in self.connections:
                    return
            if way.bytes and not self.waits(connection, way):
                self.write(connection, way)
                if connection not in self.connections:
                    return
            if way.ended and not way.bytes and not way.told:
                way.told = True
                try:
                    way.sink.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
        if all(way.told for way in connection.ways):
            for one in connection.sockets():
                one.close()
            self.connections.remove(connection)

    def read(self, connection, way):
        try:
            got = way.source.recv(MOST_BUFFERED)
        except BlockingIOError:
            return
        except OSError:
            self.reset_both(connection)
            return
        way.ended = not got
        if got and self.fault == "corrupt byte" and self.is_victims(connection) and not way.to_victim and not connection.altered:
            connection.altered = True
            at = len(got) // 2
            got = got[:at] + bytes([got[at] ^ 1]) + got[at + 1:]
        way.bytes += got

    def reset_both(self, connection):
        """Called when one side has reset the connection. Resets both sides, so that the other side sees a reset."""
        for one in connection.sockets():
            reset(one)
        self.connections.remove(connection)

    def write(self, connection, way):
        slow = self.is_slow(connection, way)
        try:
            sent = way.sink.send(way.bytes[:SLOW_BYTES] if slow else way.bytes)
        except BlockingIOError:
            return
        except OSError:
            self.reset_both(connection)
            return
        del way.bytes[:sent]
        if slow:
            self.slow_at = time.monotonic() + SLOW_EVERY_S
