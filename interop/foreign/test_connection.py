"""The lifecycle of a connection: DRAIN, BYE, PING, limits, and errors that end it."""

import threading
import unittest

from host import Server
from nearcall import wire
from nearcall.blocks import Head
from nearcall.call import Call, CallError, unary
from nearcall.connection import dial
from nearcall.frames import Encoder, Frame, Hello
from nearcall.stream import UNAVAILABLE
from nearcall.wire import (
    BYE, COMPRESSED, CREDIT, DRAIN, END, HEAD, MESSAGE, MORE, PART, PIECE, PING, PLACE, RESET, STREAM, frame, uint,
)
from raw import Raw
from testservice import DUPLEX, EMPTY, INPUT, OUTPUT, TRAILING, UNARY, body, output_request, output_response, simple_request

WAIT = [(b"gate", b"1")]
PROFILE = (b"localhost", b"", b"", b"", b"")


def head(number, flags=0, rest=b"", method=EMPTY, metadata=()):
    """Returns the frame that opens a call. It adds no names to the table."""
    block = Head(method.encode(), PROFILE, 0, list(metadata)).encode(Encoder().table, False)
    return frame(STREAM | HEAD | flags, number, block + rest)


class Connection(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(upgrade=0)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_drain_lets_calls_end(self):
        server = Server(upgrade=0)
        conn = dial(server.target)
        call = Call(conn, DUPLEX)
        call.send(output_request([1]))
        self.assertEqual(output_response(call.recv()), body(1))
        server.drain()
        with conn.changed:
            self.assertTrue(conn.wait(lambda: conn.session.drained == call.stream.number, 10))
            self.assertEqual(conn.session.drains, 2)  # the first only announces
        with self.assertRaises(CallError) as raised:
            unary(conn, EMPTY, b"")
        self.assertTrue(raised.exception.unprocessed)
        call.send(output_request([2]))
        self.assertEqual(output_response(call.recv()), body(2))
        call.send(end=True)
        self.assertIsNone(call.recv())
        conn.close()

    def test_a_client_that_drains_still_makes_calls(self):
        with Raw(self.server.target) as raw:
            raw.send(head(1, MESSAGE) + frame(DRAIN, 0, b"\0") + frame(STREAM | END, 1, b""))
            self.assertIsNotNone(raw.next(STREAM).end)  # the client's DRAIN concerns the server's calls
            raw.send(head(3, MESSAGE) + frame(STREAM | END, 3, b""))
            f = raw.next(STREAM, DRAIN, BYE)
            self.assertEqual((f.kind, f.stream), (STREAM, 3))
            self.assertIsNotNone(f.end)

    def test_a_second_drain_is_refused(self):
        with Raw(self.server.target) as raw:
            raw.send(frame(DRAIN, 0, b"\0") + frame(DRAIN, 0, b"\0"))
            self.assertEqual(raw.next(BYE).code, 1)

    def test_stop_ends_calls_with_bye(self):
        server = Server(upgrade=0)
        conn = dial(server.target)
        call = Call(conn, DUPLEX, metadata=WAIT)
        call.send(b"")
        call.header()
        server.stop()
        with self.assertRaises(CallError) as raised:
            call.recv()
        self.assertEqual(raised.exception.code, UNAVAILABLE)
        self.assertFalse(raised.exception.unprocessed)
        self.assertEqual(conn.session.goodbye[0], 3)
        conn.close()

    def test_bye_ends_calls(self):
        with dial(self.server.target) as conn:
            call = Call(conn, DUPLEX, metadata=WAIT)
            call.send(b"")
            call.header()
        with self.assertRaises(CallError) as raised:
            call.recv()
        self.assertEqual(raised.exception.code, UNAVAILABLE)
        self.assertFalse(any(thread.is_alive() for thread in conn.threads))  # the server has closed

    def test_a_connection_that_is_lost_cancels_calls(self):
        server = Server(upgrade=0)
        with Raw(server.target) as raw:
            raw.send(head(1, method=INPUT, metadata=WAIT))
            raw.next(STREAM)
        self.assertEqual(server.ended(), "context canceled")

    def test_ping(self):
        with dial(self.server.target) as conn:
            self.assertTrue(conn.ping())

    def test_pings_that_come_too_often(self):
        with Raw(self.server.target) as raw:
            for _ in range(10):
                raw.send(frame(PING, 0, b"12345678"))
            self.assertEqual(raw.next(BYE).code, 2)

    def test_hello_says_how_often_pings_may_come(self):
        server = Server(upgrade=0, mintime=50)
        with Raw(server.target) as raw:
            self.assertEqual((raw.hello.ping, raw.hello.idle_ping), (50, 50))

    def test_the_server_pings_who_is_quiet(self):
        server = Server(upgrade=0, pings=1000)
        with Raw(server.target) as raw:
            self.assertEqual(len(raw.next(PING).data), 8)

    def test_calls_wait_for_their_turn(self):
        server = Server(upgrade=0, calls=2)
        with dial(server.target) as conn:
            self.assertEqual(conn.ready().calls, 2)
            waiting = [Call(conn, DUPLEX, metadata=WAIT) for _ in range(2)]
            for call in waiting:
                call.send(b"")
            third = threading.Thread(target=lambda: unary(conn, EMPTY, b""))
            third.start()
            conn.ping()
            self.assertTrue(third.is_alive())
            waiting[0].cancel()
            third.join(10)
            self.assertFalse(third.is_alive())

    def test_a_call_too_many_was_not_processed(self):
        server = Server(upgrade=0, calls=2)
        with Raw(server.target) as raw:
            for number in (1, 3, 5):
                raw.send(head(number, method=INPUT, metadata=WAIT))
            refused = raw.next(RESET)
            self.assertEqual((refused.stream, refused.code), (5, 2))

    def test_a_call_may_be_sent_with_the_line(self):
        with dial(self.server.target) as conn:  # dial does not wait for the server's HELLO
            self.assertEqual(unary(conn, EMPTY, b""), b"")

    def test_the_ends_size_is_what_the_page_says(self):
        """The server sends a trailer of the largest size that the client accepts, but not one byte more."""
        for code, text in ((0, ""), (3, "abc")):
            room = 16384 - 32 - len(text) - 32 - len(TRAILING)
            for size, fits in ((room, True), (room + 1, False)):
                request = simple_request(code=code, text=text) if code else b""
                with Raw(self.server.target, Hello()) as raw:
                    raw.send(head(1, MESSAGE | END, request, UNARY, [(TRAILING, b"x" * size)]))
                    f = raw.next(STREAM, RESET)
                    while f.kind == STREAM and not f.end:
                        f = raw.next(STREAM, RESET)
                    self.assertEqual(f.kind == STREAM, fits, (code, size))
                    self.assertIn(f.code, (0, 4))

    def test_a_wrong_call_leaves_the_connection_and_its_names(self):
        encoder = Encoder()
        wrong = Head(EMPTY.encode(), PROFILE, 0, [(b"Upper", b""), (b"lower", b"")])
        right = Head(EMPTY.encode(), PROFILE, 0, [(b"lower", b"")])
        with Raw(self.server.target) as raw:
            raw.send(encoder.encode(Frame(STREAM, 1, HEAD | MESSAGE | END, head=wrong)))
            raw.send(encoder.encode(Frame(STREAM, 3, HEAD | MESSAGE | END, head=right)))
            first, second = raw.next(), raw.next()
            self.assertEqual((first.kind, first.stream, first.code), (RESET, 1, 4))
            self.assertEqual((second.stream, second.end.code), (3, 0))

    def test_what_breaks_a_rule_ends_the_connection(self):
        open_call = head(1, method=INPUT)
        begun = head(1, MESSAGE | MORE, uint(3) + b"a", INPUT)
        gone = head(1, END, method=INPUT, metadata=WAIT)
        for name, data in {
            "STREAM with no step": open_call + frame(STREAM, 1),
            "HEAD for a number below the last": head(5, MESSAGE | END) + head(3, MESSAGE | END),
            "HEAD twice": open_call + open_call,
            "HEAD of the other side's number": head(2),
            "RESET of a call that was not opened": frame(RESET, 7, b"\0"),
            "CREDIT for one": frame(CREDIT, 7, b"\1"),
            "a message after END": gone + frame(STREAM | MESSAGE, 1),
            "END twice": gone + frame(STREAM | END, 1),
            "a piece of no message": open_call + frame(STREAM | PIECE, 1, b"x"),
            "pieces that are too long": begun + frame(STREAM | PIECE, 1, b"abc"),
            "pieces that are too short": begun + frame(STREAM | PIECE, 1, b"a"),
            "MORE with the last": begun + frame(STREAM | PIECE | MORE, 1, b"ab"),
            "a message between pieces": begun + frame(STREAM | MESSAGE, 1),
            "END between pieces": begun + frame(STREAM | END, 1),
            "a frame between PARTs": frame(PART, 1, b"\1") + frame(PING, 0, b"12345678"),
            "one to be ignored between them": frame(PART, 1, b"\1") + frame(0x40, 0),
            "HELLO twice": Hello().encode(),
            "HELLO with too few fields": frame(wire.HELLO, 0, b"\1"),
            "DRAIN twice": gone + frame(DRAIN, 0, b"\0") * 2,
            "credit above 2^62": frame(CREDIT, 0, uint((1 << 62) - 1)),
            "a length of 1": b"\1\0\5",
            "PLACE over a socket": head(1, MESSAGE | PLACE, uint(40_000) + b"\0"),
            "COMPRESSED without MESSAGE": open_call + frame(STREAM | COMPRESSED | END, 1),
            "more than the credit": head(1, MESSAGE | MORE, uint(10 << 20) + b"x" * 65000, INPUT, WAIT)
            + frame(STREAM | PIECE | MORE, 1, b"x" * 65000) * 160,
        }.items():
            with self.subTest(name), Raw(self.server.target) as raw:
                try:
                    raw.send(data)
                except BrokenPipeError:
                    continue
                kinds = []
                while not kinds or kinds[-1].kind != BYE:
                    kinds.append(raw.next(DRAIN, BYE))
                    self.assertIsNotNone(kinds[-1], "the end of bytes without BYE")
                self.assertEqual([f.kind for f in kinds], [DRAIN, BYE])
                self.assertEqual(kinds[-1].code, 1, kinds[-1].text)

    def test_frames_for_later_versions_are_ignored(self):
        with Raw(self.server.target) as raw:
            raw.send(frame(0x40, 0, b"x") + frame(0x7F, 99) + head(1, MESSAGE | END))
            self.assertEqual(raw.next().end.code, 0)

    def test_a_number_that_was_left_out_is_that_of_a_call_that_is_over(self):
        with Raw(self.server.target) as raw:
            raw.send(head(5, MESSAGE | END) + frame(STREAM | MESSAGE, 3) + frame(CREDIT, 1, b"\1") + head(7, MESSAGE | END))
            self.assertEqual({raw.next().stream, raw.next().stream}, {5, 7})

    def test_a_text_that_is_too_long_or_not_utf8_is_no_error(self):
        with Raw(self.server.target) as raw:
            for number, text in ((1, b"x" * 5000), (3, b"\xff")):
                raw.send(head(number, method=INPUT) + frame(RESET, number, b"\0" + text))
            raw.send(head(5, MESSAGE | END))
            self.assertEqual(raw.next(STREAM, BYE).stream, 5)

    def test_hello_may_have_more_than_is_known(self):
        with Raw(self.server.target, hello=LongHello()) as raw:
            raw.send(head(1, MESSAGE | END))
            self.assertEqual(raw.next().end.code, 0)

    def test_what_comes_for_a_call_that_is_over_gives_credit_back(self):
        """Messages in flight when a stream is cancelled still consume the connection's credit."""
        with dial(self.server.target, hello=Hello()) as conn:
            for _ in range(20):
                call = Call(conn, OUTPUT)
                call.send(output_request([50_000] * 4), end=True)
                call.recv()
                call.cancel()
            self.assertEqual(unary(conn, EMPTY, b""), b"")


class LongHello(Hello):
    def encode(self):
        return frame(wire.HELLO, 0, Hello().encode()[4:] + b"more that nobody knows")


if __name__ == "__main__":
    unittest.main()
