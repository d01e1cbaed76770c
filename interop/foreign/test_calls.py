"""gRPC's calls over sockets."""

import threading
import unittest

from host import Server
from nearcall import protobuf
from nearcall.call import Call, CallError, client_stream, server_stream, unary
from nearcall.connection import dial
from nearcall.frames import Hello
from nearcall.stream import (
    CANCELLED, DEADLINE_EXCEEDED, INTERNAL, RESOURCE_EXHAUSTED, UNIMPLEMENTED,
)
from nearcall.wire import END, HEAD, MESSAGE
from testservice import (
    DUPLEX, EMPTY, INITIAL, INPUT, OUTPUT, SERVICE, TRAILING, UNARY, body, input_request, input_response,
    output_request, output_response, simple_request, simple_response,
)


class Calls:
    """Tests for every network."""

    network = "unix"
    options = {}
    expected = "unix"

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.network, **cls.options)
        cls.conn = cls.dial(cls.server.target)

    @classmethod
    def tearDownClass(cls):
        cls.conn.close()
        cls.server.stop()

    @staticmethod
    def dial(target, **options):
        return dial(target, **options)

    def test_the_server_saw_the_network(self):
        call = Call(self.conn, UNARY)
        call.send(simple_request(), end=True)
        self.assertIn((b"network", self.expected.encode()), call.header())

    def test_unary_calls_of_many_sizes(self):
        for size in (0, 1, 1000, 32768, 65000, 65536, 100_000, 1_000_000, 5_000_000):
            with self.subTest(size=size):
                reply = unary(self.conn, UNARY, simple_request(size, size))
                self.assertEqual(simple_response(reply), (body(size), size))

    def test_an_empty_message(self):
        self.assertEqual(unary(self.conn, EMPTY, b""), b"")

    def test_a_unary_call_is_one_frame(self):
        before = self.conn.session.next
        sent = []
        self.conn.session.next = lambda: sent.append(before()) or sent[-1]
        try:
            unary(self.conn, EMPTY, b"")
        finally:
            self.conn.session.next = before
        self.assertEqual([data[2] for data in sent if data], [0x80 | HEAD | MESSAGE | END])

    def test_a_head_alone_opens_a_call(self):
        call = Call(self.conn, DUPLEX, metadata=[(b"gate", b"1")])
        call.header()
        self.server.open()
        call.send(end=True)
        self.assertIsNone(call.recv())

    def test_server_stream(self):
        sizes = [1, 0, 70_000, 1_000_000, 5] * 4
        got = [output_response(m) for m in server_stream(self.conn, OUTPUT, output_request(sizes))]
        self.assertEqual(got, [body(n) for n in sizes])

    def test_client_stream(self):
        sizes = [1, 0, 70_000, 1_000_000, 5] * 4
        reply = client_stream(self.conn, INPUT, map(input_request, sizes))
        self.assertEqual(input_response(reply), sum(sizes))

    def test_bidi(self):
        call = Call(self.conn, DUPLEX)
        for size in (31415, 9, 2653, 589790):
            call.send(output_request([size, 1]))
            self.assertEqual(output_response(call.recv()), body(size))
            self.assertEqual(output_response(call.recv()), body(1))
        call.send(end=True)
        self.assertIsNone(call.recv())

    def test_metadata_both_ways(self):
        metadata = [
            (INITIAL, b"one"), (INITIAL, b"two"), (INITIAL + b"-bin", b"\x00,\xff"), (INITIAL + b"-empty", b""),
            (TRAILING + b"-bin", bytes(range(256))), (TRAILING + b"-bin", b""),
        ]
        for _ in range(3):  # the first call sends new names, the others their numbers
            call = Call(self.conn, UNARY, metadata)
            call.send(simple_request(), end=True)
            header = [(k, v) for k, v in call.header() if k != b"network"]
            self.assertEqual(sorted(header), sorted(metadata[:4]))
            self.assertEqual(call.trailer(), metadata[4:])

    def test_header_and_trailer_larger_than_a_frame(self):
        metadata = [(INITIAL, b"h" * 100_000), (TRAILING, b"t" * 200_000)]
        call = Call(self.conn, UNARY, metadata)
        call.send(simple_request(1000, 1000), end=True)
        self.assertIn(metadata[0], call.header())
        self.assertEqual(call.trailer(), metadata[1:])
        self.assertEqual(simple_response(call.recv()), (body(1000), 1000))

    def test_more_names_than_the_table_has_room_for(self):
        for i in range(40):
            metadata = [(INITIAL + b"-%d-%d" % (i, j), b"%d" % j) for j in range(50)]
            call = Call(self.conn, UNARY, metadata)
            call.send(simple_request(), end=True)
            header = [(k, v) for k, v in call.header() if k != b"network"]
            self.assertEqual(sorted(header), sorted(metadata))

    def test_more_profiles_than_the_table_has_room_for(self):
        for i in range(30):
            reply = unary(self.conn, EMPTY, b"", authority=f"{i}." + "a" * 4000)
            self.assertEqual(reply, b"")

    def test_status_with_text(self):
        with self.assertRaises(CallError) as raised:
            unary(self.conn, UNARY, simple_request(code=9, text="nicht böse gemeint"))
        self.assertEqual((raised.exception.code, raised.exception.message), (9, "nicht böse gemeint"))
        self.assertEqual(raised.exception.details, b"")

    def test_status_with_details(self):
        with self.assertRaises(CallError) as raised:
            unary(self.conn, UNARY, simple_request(code=10, text="again"), metadata=[(b"details", b"1")])
        details = raised.exception.details
        self.assertEqual(protobuf.integer(details, 1), 10)
        self.assertEqual(protobuf.single(details, 2), b"again")
        [found] = protobuf.repeated(details, 3)
        self.assertEqual(protobuf.single(found, 1), b"type.googleapis.com/google.rpc.ErrorInfo")
        self.assertEqual(protobuf.single(protobuf.single(found, 2), 1), b"ASKED_FOR")

    def test_status_after_messages(self):
        call = Call(self.conn, OUTPUT)
        call.send(output_request([5], code=5, text="gone"), end=True)
        self.assertEqual(output_response(call.recv()), body(5))
        with self.assertRaises(CallError) as raised:
            call.recv()
        self.assertEqual(raised.exception.code, 5)

    def code_of(self, *args, **options):
        with self.assertRaises(CallError) as raised:
            unary(self.conn, *args, **options)
        return raised.exception.code

    def test_unknown_methods(self):
        self.assertEqual(self.code_of(SERVICE + "NoSuchCall", b""), UNIMPLEMENTED)
        self.assertEqual(self.code_of("/no.such.Service/Call", b""), UNIMPLEMENTED)

    def test_a_message_that_cannot_be_decoded(self):
        self.assertEqual(self.code_of(UNARY, b"\xff"), INTERNAL)

    def test_a_unary_call_with_no_message_or_two(self):
        for messages in ([], [b"", b""]):
            call = Call(self.conn, EMPTY)
            for message in messages:
                call.send(message)
            call.send(end=True)
            with self.assertRaises(CallError) as raised:
                while call.recv() is not None:
                    pass
            self.assertEqual(raised.exception.code, INTERNAL)

    def test_a_message_larger_than_the_server_takes(self):
        server = Server(self.network, messages=1000, **self.options)
        with self.dial(server.target) as conn, self.assertRaises(CallError) as raised:
            unary(conn, UNARY, simple_request(200_000))
        self.assertEqual(raised.exception.code, RESOURCE_EXHAUSTED)

    def test_deadline(self):
        def late(timeout):
            self.assertEqual(self.code_of(UNARY, b"", timeout=timeout, metadata=[(b"gate", b"1")]), DEADLINE_EXCEEDED)

        self.assert_ends_at_its_deadline(late)

    def test_deadline_that_the_server_keeps(self):
        def late(timeout):
            call = Call(self.conn, UNARY, timeout=timeout, metadata=[(b"gate", b"1")])
            call.deadline = None  # this side does not enforce it
            call.send(b"", end=True)
            with self.assertRaises(CallError) as raised:
                call.recv()
            self.assertEqual(raised.exception.code, DEADLINE_EXCEEDED)

        self.assert_ends_at_its_deadline(late)

    def assert_ends_at_its_deadline(self, call):
        for timeout in (0.1, 1, 10):
            call(timeout)
            ended = self.server.ended(timeout)
            if ended is not None:  # otherwise the deadline passed before the handler ran
                break
        self.assertEqual(ended, "context deadline exceeded")

    def test_cancellation(self):
        for timeout in (None, 100):
            call = Call(self.conn, INPUT, timeout=timeout)
            call.send(b"")
            call.cancel()
            with self.assertRaises(CallError) as raised:
                call.recv()
            self.assertEqual(raised.exception.code, CANCELLED)
        self.assertEqual(self.code_of(UNARY, b"\xff"), INTERNAL)  # the connection stays usable

    def test_cancellation_reaches_the_handler(self):
        call = Call(self.conn, DUPLEX, metadata=[(b"gate", b"1")])
        call.send(b"")
        call.header()
        call.cancel()
        self.assertEqual(self.server.ended(), "context canceled")

    def test_a_server_that_reads_late(self):
        call = Call(self.conn, INPUT, metadata=[(b"gate", b"1")])
        sender = threading.Thread(target=lambda: [call.send(input_request(100_000)) for _ in range(30)])
        sender.start()
        unary(self.conn, UNARY, simple_request(100_000, 100_000))  # another call is not blocked
        self.assertTrue(sender.is_alive())
        self.server.open()
        sender.join(10)
        call.send(end=True)
        self.assertEqual(input_response(call.recv()), 3_000_000)

    def test_a_client_that_reads_late(self):
        with self.dial(self.server.target, hello=Hello()) as conn:
            call = Call(conn, OUTPUT)
            call.send(output_request([50_000] * 40), end=True)
            call.header()
            unary(conn, UNARY, simple_request(100_000, 100_000))
            with conn.changed:
                # Over shared memory one message may exceed the window.
                self.assertLessEqual(call.stream.held, 65536 + 50_100)
            got = [output_response(m) for m in iter(call.recv, None)]
            self.assertEqual(got, [body(50_000)] * 40)

    def test_compression(self):
        call = Call(self.conn, UNARY, encoding="gzip")
        call.send(simple_request(100_000, 100_000), end=True)
        self.assertEqual(simple_response(call.recv()), (body(100_000), 100_000))

    def test_an_encoding_that_the_server_does_not_know(self):
        with self.assertRaises(CallError) as raised:
            unary(self.conn, EMPTY, b"", encoding="zstd")
        self.assertEqual(raised.exception.code, UNIMPLEMENTED)
        self.assertEqual(
            raised.exception.message, 'grpc: Decompressor is not installed for grpc-encoding "zstd"'
        )

    def test_many_calls_at_a_time(self):
        right = []

        def calls():
            for size in (10, 200_000, 3000) * 5:
                if simple_response(unary(self.conn, UNARY, simple_request(size, size))) == (body(size), size):
                    right.append(size)

        threads = [threading.Thread(target=calls) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(len(right), 8 * 15)


class OverUnix(Calls, unittest.TestCase):
    options = {"upgrade": 0}


class OverTCP(Calls, unittest.TestCase):
    network = "tcp"
    expected = "tcp"


class WithSmallWindows(Calls, unittest.TestCase):
    options = {"upgrade": 0, "window": 65536}
