"""A carrier for a connection's bytes in shared memory, with slabs for large messages."""

import contextlib
import select
import socket

from .connection import Connection, SocketBytes
from .handshake import PAGE, STEP, upgrade
from .ring import Receiver, Sender, Words
from .wire import ProtocolError


def dial(target, **options):
    """Connects to shm:PATH or unix:PATH. A unix:PATH connection is upgraded to shared memory if the server agrees."""
    sock = socket.socket(socket.AF_UNIX)
    network, _, path = target.partition(":")
    sock.connect(path)
    memory, room, why = upgrade(sock)
    if memory:
        return Connection(SharedBytes(memory, sock, room), **options)
    if network == "shm":
        sock.close()
        raise ConnectionError(f"no shared memory: {why}")
    return Connection(SocketBytes(sock), **options)


class SharedBytes:
    """Both rings and both bells. One thread may receive while another one sends."""

    def __init__(self, memory, data, room):
        self.data, self.room = data, room
        own, peer = memoryview(memory.own), memoryview(memory.peer)
        own_words, peer_words = Words(own), Words(peer)
        self.sender = Sender(own_words, peer_words, own[PAGE:])
        self.receiver = Receiver(own_words, peer_words, peer[PAGE:])
        self.memory = Slabs(memory)
        self.ended = False
        for sock in (data, room):
            sock.setblocking(False)

    def recv(self):
        while True:
            data, ring = self.receiver.take()
            if ring:
                bell(self.room)
            if data or self.ended:
                return data
            self.receiver.begin_wait()
            if not self.receiver.there():
                self.ended = heard(self.data)  # then checks the ring once more
            self.receiver.end_wait()

    def send(self, data):
        while data:
            n, ring = self.sender.put(data)
            if ring:
                bell(self.data)
            data = data[n:]
            if n or not data:
                continue
            self.sender.begin_wait()
            ended = not self.sender.room() and heard(self.room)
            self.sender.end_wait()
            if ended:
                raise ConnectionError("the peer is gone")

    def finish(self):
        with contextlib.suppress(OSError):
            self.data.shutdown(socket.SHUT_WR)

    def close(self):
        for sock in (self.data, self.room):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.memory.close()


def bell(sock):
    """Wakes the peer. If the socket's buffer is full, the peer wakes anyway."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
        sock.send(b"\1")


def heard(sock):
    """Waits for a bell, and consumes all bells that have arrived. Returns True if the peer has closed the socket."""
    select.select([sock], [], [])
    try:
        return not sock.recv(4096)
    except BlockingIOError:
        return False


class Slabs:
    """Large messages of both sides. A message occupies whole steps of 64 KiB in its sender's slabs."""

    def __init__(self, memory):
        self.memory = memory
        self.length = memory.answer.slabs  # of each side, in bytes
        self.out = {}  # from place to end, for messages that the peer has not returned
        self.close = memory.close

    def put(self, message):
        """Writes a message to a free place. Returns the place, or None if there is none."""
        place = 0
        for begin, end in sorted(self.out.items()):
            if begin - place >= len(message):
                break
            place = end
        if place + len(message) > self.length:
            return None
        try:
            self.memory.write_slab(place, message)
        except OSError:
            return None
        self.out[place] = place + (len(message) + STEP - 1) // STEP * STEP
        return place

    def get(self, place, size):
        """Returns the peer's message at a place."""
        if place + size > self.length:
            raise ProtocolError(f"a message of {size} bytes at {place} of {self.length}")
        return self.memory.read_slab(place, size)

    def returned(self, place):
        if self.out.pop(place, None) is None:
            raise ProtocolError(f"a place that was not out: {place}")
