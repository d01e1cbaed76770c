"""The conversations in internal/wire/testdata: what they say, and the credit of each side after each frame."""

import json
import unittest

from nearcall import wire
from nearcall.blocks import Head
from nearcall.frames import Decoder, Hello
from nearcall.session import Session
from nearcall.stream import CANCELLED, cost_of_call, cost_of_connection
from nearcall.wire import LINE, Splitter
from test_vectors import VECTORS, said, show, vectors


class Credit:
    """The credit of one side, computed from the frames."""

    def __init__(self):
        self.connection = 65536
        self.first = 65536
        self.calls = {}

    def sends(self, f):
        self.connection -= cost_of_connection(f)
        self.calls[f.stream] = self.calls.get(f.stream, self.first) - cost_of_call(f)

    def gets(self, f):
        if f.kind == wire.HELLO:
            self.connection += f.hello.connection - 65536
            self.calls = {n: left + f.hello.stream - 65536 for n, left in self.calls.items()}
            self.first = f.hello.stream
        if f.kind == wire.CREDIT and f.stream:
            self.calls[f.stream] += f.n
        elif f.kind == wire.CREDIT:
            self.connection += f.n


def conversation(name):
    return json.loads((VECTORS / "conversations" / f"{name}.json").read_text())["said"]


class Conversation(unittest.TestCase):
    def agree(self, step, connection, calls):
        self.assertEqual(connection, step["connection"])
        for number, left in step.get("calls", {}).items():
            self.assertEqual(calls[int(number)], left, f"call {number}")

    def test_credit_follows_from_what_was_said(self):
        for name, vector in vectors("conversations"):
            with self.subTest(name):
                self.follow(vector["said"])

    def follow(self, conversation):
        splitters = {side: Splitter() for side in ("client", "server")}
        decoders = {side: Decoder(side == "client", 1 << 20) for side in splitters}
        credit = {side: Credit() for side in splitters}
        for step in conversation:
            side, other = step["from"], "server" if step["from"] == "client" else "client"
            for kind, stream, body in splitters[side].feed(bytes.fromhex(step["hex"])):
                f = decoders[side].decode(kind, stream, body)
                self.assertEqual(show(f), said(step["frame"]))
                credit[other].gets(f)
                if f.kind == wire.STREAM:
                    credit[side].sends(f)
            for name, has in credit.items():
                self.agree(step[name], has.connection, has.calls)

    def test_the_client_says_the_same(self):
        steps = conversation("credit")
        session = Session(Hello())
        profile = (b"host", b"nearcall-go/0", b"", b"", b"")
        calls = {}

        def call(method, message):
            stream = session.open(Head(method, profile))
            session.send(stream, message, end=True)
            return stream

        for n, step in enumerate(steps):
            data = bytes.fromhex(step["hex"])
            with self.subTest(n):
                if step["from"] == "server":
                    session.receive(data)
                else:
                    if n == 2:
                        calls[1] = call(b"/shop.Shop/Import", b"0123456789" * 10_000)
                    if step.get("frame", {}).get("stream") == 3 and 3 not in calls:
                        calls[3] = call(b"/shop.Shop/Watch", b"")
                    if step.get("frame", {}).get("kind") == "DRAIN":
                        session.bye()
                    if step.get("frame", {}).get("kind") == "RESET":
                        session.reset(calls[3], 0, CANCELLED, "")
                    self.assertEqual(session.next(), data)
                self.agree(step["client"], session.window, {n: s.window for n, s in calls.items()})

    def test_a_call_in_place_of_one_that_is_reset_is_made_at_once(self):
        steps = conversation("reset")
        session = Session(Hello())
        calls = []

        def call():
            calls.append(session.open(Head(b"/shop.Shop/Watch", (b"host", b"nearcall-go/0", b"", b"", b""))))
            session.send(calls[-1], b"shelf", end=True)

        for n, step in enumerate(steps):
            data, kind = bytes.fromhex(step["hex"]), step.get("frame", {}).get("kind")
            with self.subTest(n):
                if step["from"] == "server":
                    session.receive(data)
                    continue
                if kind == "STREAM" and not calls:
                    call()
                    call()
                    call()  # it waits
                if kind == "RESET":
                    self.assertIsNone(session.next())
                    session.reset(calls[0], 0, CANCELLED, "")
                if kind == "DRAIN":
                    session.bye()
                self.assertEqual(session.next(), data)
        self.assertEqual([list(c.received) for c in calls], [[], [(b"news", False)], [(b"news", False)]])

    def test_the_line_is_said_first(self):
        self.assertEqual(bytes.fromhex(conversation("credit")[0]["hex"]), LINE)
