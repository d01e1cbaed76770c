"""gRPC's calls over shared memory."""

import os
import socket
import struct
import sys
import unittest

import test_calls
from host import Server
from nearcall import wire
from nearcall.call import Call, CallError, unary
from nearcall.handshake import LINE, check_memory, close_all, exchange, offer, upgrade
from nearcall.shm import SharedBytes, dial
from nearcall.stream import UNAVAILABLE
from nearcall.wire import BYE, COMPRESSED, END, MESSAGE, MORE, PIECE, PLACE, RETURN, STREAM, frame, uint
from raw import Raw
from test_connection import WAIT, head
from testservice import (
    DUPLEX, EMPTY, INPUT, OUTPUT, UNARY, body, input_request, input_response, output_request, simple_request,
    simple_response,
)

linux = unittest.skipUnless(sys.platform == "linux", "shared memory needs Linux")


@linux
class OverSharedMemory(test_calls.Calls, unittest.TestCase):
    network = "shm"
    expected = "shm"
    dial = staticmethod(dial)

    def test_large_messages_have_places(self):
        places = []
        memory = self.conn.session.memory
        get, memory.get = memory.get, lambda place, size: places.append(size) or get(place, size)
        try:
            reply = unary(self.conn, UNARY, simple_request(3_000_000, 3_000_000))
        finally:
            memory.get = get
        self.assertEqual(simple_response(reply), (body(3_000_000), 3_000_000))
        self.assertGreaterEqual(places[0], 3_000_000)
        self.conn.ping()  # the server's RETURN frames come before the PONG
        self.assertEqual(memory.out, {})

    def test_a_large_message_that_finds_no_place_goes_through_the_ring(self):
        memory = self.conn.session.memory
        before, memory.length = memory.length, 0
        try:
            reply = unary(self.conn, UNARY, simple_request(2_000_000))
        finally:
            memory.length = before
        self.assertEqual(simple_response(reply)[1], 2_000_000)

    def test_places_of_calls_that_are_over(self):
        for _ in range(30):
            call = Call(self.conn, OUTPUT)
            call.send(output_request([1_000_000] * 5), end=True)
            call.recv()
            call.cancel()
        self.assertEqual(simple_response(unary(self.conn, UNARY, simple_request(1, 40_000)))[0], body(40_000))


@linux
class OverUnixThatBecomesSharedMemory(unittest.TestCase):
    def test_the_server_agrees(self):
        with dial(Server("unix").target) as conn:
            call = Call(conn, UNARY)
            call.send(simple_request(), end=True)
            self.assertIn((b"network", b"shm"), call.header())

    def test_the_server_declines(self):
        with dial(Server("unix", upgrade=0).target) as conn:
            call = Call(conn, UNARY)
            call.send(simple_request(), end=True)
            self.assertIn((b"network", b"unix"), call.header())

    def test_a_client_that_does_not_offer(self):
        with test_calls.dial(Server("unix").target) as conn:
            self.assertEqual(unary(conn, EMPTY, b""), b"")


class RawShared(Raw):
    """A raw connection through the rings."""

    def __init__(self, target):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(target.partition(":")[2])
        memory, room, _ = upgrade(sock)
        self.shared = SharedBytes(memory, sock, room)
        super().__init__(None, sock=self)
        self.decoder.places = True

    def settimeout(self, _):
        pass

    def sendall(self, data):
        self.shared.send(data)

    def recv(self, _):
        return self.shared.recv()

    def close(self):
        self.shared.close()


@linux
class Places(unittest.TestCase):
    """Valid and invalid uses of places."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("shm")
        cls.slabs = 64 << 20

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_a_place_may_be_anywhere(self):
        message = input_request(40_000)
        for place in (0, 4097, self.slabs - 65536, self.slabs - len(message)):
            with self.subTest(place), RawShared(self.server.target) as raw:
                raw.shared.memory.memory.write_slab(place, message)
                raw.send(head(1, MESSAGE | PLACE | END, uint(len(message)) + uint(place), INPUT))
                self.assertEqual(raw.next(RETURN).place, place)
                self.assertEqual(input_response(raw.next(STREAM).data), 40_000)

    def test_places_of_calls_that_are_refused_or_over_come_back(self):
        with RawShared(self.server.target) as raw:
            raw.send(head(1, MESSAGE | PLACE, uint(40_000) + b"\0", "/no.such.Service/Call"))
            self.assertEqual(raw.next(RETURN).place, 0)
            raw.send(frame(STREAM | MESSAGE | PLACE, 1, uint(40_000) + uint(65536)))
            self.assertEqual(raw.next(RETURN).place, 65536)

    def window(self, *last):
        """Sends eleven places and the last frames on one call. Returns the kind and code of PONG or BYE."""
        with RawShared(self.server.target) as raw:
            raw.send(head(1, method=INPUT, metadata=WAIT))
            for n in range(11):
                raw.send(frame(STREAM | MESSAGE | PLACE, 1, uint(32768) + uint(n * 65536)))
            left = raw.hello.stream - 11 * (32768 + 5)
            for f in last:
                raw.send(f(left))
            raw.send(frame(wire.PING, 0, b"12345678"))
            f = raw.next(wire.PONG, BYE)
            return f.kind, f.code

    def test_a_place_takes_5_bytes_and_its_length_of_the_call(self):
        def message(size):
            return frame(STREAM | MESSAGE, 1, b"x" * size)

        self.assertEqual(self.window(lambda left: message(left - 5)), (wire.PONG, 0))
        self.assertEqual(self.window(lambda left: message(left - 4)), (BYE, 1))

    def test_a_place_needs_5_bytes_of_the_call(self):
        def leave(n):
            return lambda left: frame(STREAM | MESSAGE, 1, b"x" * (left - 5 - n))

        def placed(_):
            return frame(STREAM | MESSAGE | PLACE, 1, uint(1 << 20) + uint(1 << 20))

        self.assertEqual(self.window(leave(5), placed), (wire.PONG, 0))
        self.assertEqual(self.window(leave(4), placed), (BYE, 1))

    def test_what_breaks_a_rule_ends_the_connection(self):
        at_0 = uint(40_000) + b"\0"
        for name, data in {
            "COMPRESSED": head(1, MESSAGE | PLACE | COMPRESSED, at_0, INPUT),
            "MORE": head(1, MESSAGE | PLACE | MORE, at_0, INPUT),
            "no MESSAGE": head(1, PLACE, at_0, INPUT),
            "PIECE": head(1, method=INPUT) + frame(STREAM | PLACE | PIECE, 1, at_0),
            "bytes beside it": head(1, MESSAGE | PLACE, at_0 + b"x", INPUT),
            "a small message": head(1, MESSAGE | PLACE, uint(32767) + b"\0", INPUT),
            "outside": head(1, MESSAGE | PLACE, uint(40_000) + uint(self.slabs - 39_999), INPUT),
            "in the same 64 KiB": head(1, MESSAGE | PLACE, uint(40_000) + uint(4096), INPUT, WAIT)
            + frame(STREAM | MESSAGE | PLACE, 1, uint(40_000) + uint(50_000)),
            "where another is": head(1, MESSAGE | PLACE, uint(70_000) + b"\0", INPUT, WAIT)
            + frame(STREAM | MESSAGE | PLACE, 1, uint(40_000) + uint(65536)),
            "RETURN of what was not out": frame(RETURN, 0, b"\0"),
        }.items():
            with self.subTest(name), RawShared(self.server.target) as raw:
                raw.send(data)
                self.assertEqual(raw.next(BYE).code, 1)


@linux
class SetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("unix")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(self.server.target.removeprefix("unix:"))
        self.addCleanup(sock.close)
        return sock

    def test_the_memory_is_what_the_page_says(self):
        answer, descriptors = exchange(self.connect())
        self.assertEqual(len(descriptors), 2)
        check_memory(descriptors[0], answer)
        pair = socket.socket(fileno=descriptors[1])
        self.assertEqual((pair.family, pair.type), (socket.AF_UNIX, socket.SOCK_STREAM))
        pair.close()
        os.close(descriptors[0])
        self.assertEqual((answer.ring, answer.slabs), (256 << 10, 64 << 20))

    def test_a_client_that_declines_goes_on_with_the_socket(self):
        sock = self.connect()
        _, descriptors = exchange(sock)
        close_all(descriptors)
        sock.sendall(b"-")
        with Raw(None, sock=sock) as raw:
            self.assertEqual(raw.hello.version, 1)

    def test_offers_of_later_versions(self):
        sock = self.connect()
        sock.sendall(offer(version=7, features=1 << 40, more=b"what nobody knows"))
        data, ancillary, _, _ = sock.recvmsg(100, 100)
        for _, _, content in ancillary:
            close_all(struct.unpack(f"{len(content) // 4}i", content))
        self.assertEqual(data[: len(LINE) + 1], LINE + b"+")
        self.assertEqual(data[len(LINE) + 2 : len(LINE) + 4], b"\1\0")

    def test_an_offer_that_says_too_little_is_declined(self):
        for offered in (b"", b"\0\0"):  # no version, version 0
            sock = self.connect()
            sock.sendall(LINE + bytes([len(offered)]) + offered)
            self.assertEqual(sock.recv(len(LINE) + 1), LINE + b"-")
            sock.recv(sock.recv(1)[0])
            with Raw(None, sock=sock) as raw:
                self.assertEqual(raw.hello.version, 1)

    def test_a_verdict_of_another_byte_declines(self):
        sock = self.connect()
        _, descriptors = exchange(sock)
        close_all(descriptors)
        sock.sendall(b"x")
        with Raw(None, sock=sock) as raw:
            self.assertEqual(raw.hello.version, 1)

    def test_a_server_of_shared_memory_alone(self):
        server = Server("shm")
        with Raw("unix:" + server.target.partition(":")[2]) as raw:
            self.assertEqual(raw.next(BYE).code, 3)
            self.assertIsNone(raw.next())

    def test_bytes_on_the_data_socket_are_bells(self):
        """The server closes the connection of a client that rings more often than the server sleeps."""
        sock = self.connect()
        _, descriptors = exchange(sock)
        sock.sendall(b"+" + bytes(1000))
        self.assertEqual(sock.recv(1), b"")
        close_all(descriptors)

    def test_a_server_that_stops(self):
        server = Server("shm")
        conn = dial(server.target)
        call = Call(conn, DUPLEX, metadata=[(b"gate", b"1")])
        call.send(b"")
        call.header()
        server.stop()
        with self.assertRaises(CallError) as raised:
            call.recv()
        self.assertEqual(raised.exception.code, UNAVAILABLE)
        self.assertEqual(conn.session.goodbye[0], 3)
        conn.close()

    def test_a_client_that_is_gone(self):
        server = Server("shm")
        conn = dial(server.target)
        call = Call(conn, DUPLEX, metadata=[(b"gate", b"1")])
        call.send(b"")
        call.header()
        conn.carrier.close()
        self.assertEqual(server.ended(), "context canceled")
