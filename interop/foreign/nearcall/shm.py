"""A connection's bytes through shared memory, and large messages in slabs."""

import contextlib
import select
import socket

from .connection import Connection, SocketBytes
from .handshake import PAGE, STEP, layout, upgrade
from .ring import Receiver, Sender, Words
from .wire import ProtocolError


def dial(target, **options):
    """Connects to shm:PATH, or to unix:PATH, where the connection becomes shared memory if the server agrees."""
    sock = socket.socket(socket.AF_UNIX)
    network, _, path = target.partition(":")
    sock.connect(path)
    memory, answer, room = upgrade(sock)
    if memory:
        return Connection(SharedBytes(memory, answer, sock, room), **options)
    if network == "shm":
        sock.close()
        raise ConnectionError(f"no shared memory: {answer}")
    return Connection(SocketBytes(sock), **options)


class SharedBytes:
    """Both rings and both bells. One thread receives, and one sends."""

    def __init__(self, memory, answer, data, room):
        self.data, self.room = data, room
        at = layout(answer.ring, answer.slabs)
        view = memoryview(memory)
        own, peer = view[at.client_segment :], view[at.server_segment :]
        own_words, peer_words = Words(own), Words(peer)
        self.sender = Sender(own_words, peer_words, own[PAGE : PAGE + answer.ring])
        self.receiver = Receiver(own_words, peer_words, peer[PAGE : PAGE + answer.ring])
        slabs = answer.slabs
        self.memory = Slabs(view[at.client_slabs :][:slabs], view[at.server_slabs :][:slabs])
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
                self.ended = heard(self.data)  # then looks once more
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


def bell(sock):
    """Wakes the peer. A socket that is full wakes it anyway."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
        sock.send(b"\1")


def heard(sock):
    """Waits for a bell, and takes all that are there. True says that the peer has closed."""
    select.select([sock], [], [])
    try:
        return not sock.recv(4096)
    except BlockingIOError:
        return False


class Slabs:
    """Large messages of both sides. A message takes whole steps of 64 KiB of this side's slabs."""

    def __init__(self, own, peer):
        self.own, self.peer = own, peer
        self.out = {}  # place to its end, of messages that were not returned

    def put(self, message):
        """Writes a message where there is room. Returns its place, or None."""
        place = 0
        for begin, end in sorted(self.out.items()):
            if begin - place >= len(message):
                break
            place = end
        if place + len(message) > len(self.own):
            return None
        self.own[place : place + len(message)] = message
        self.out[place] = place + (len(message) + STEP - 1) // STEP * STEP
        return place

    def get(self, place, size):
        """The message of the peer at a place."""
        if place + size > len(self.peer):
            raise ProtocolError(f"a message of {size} bytes at {place} of {len(self.peer)}")
        return bytes(self.peer[place : place + size])

    def returned(self, place):
        if self.out.pop(place, None) is None:
            raise ProtocolError(f"a place that was not out: {place}")
