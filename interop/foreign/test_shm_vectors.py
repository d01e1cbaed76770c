"""The vectors of internal/transport/shm/testdata."""

import json
import unittest
from pathlib import Path

from nearcall.handshake import MAGIC, PAGE, VERSION, layout, offer, parse_answer, parse_offer
from nearcall.ring import ASLEEP, HEAD, TAIL, WANTS, Receiver, Sender, Words
from nearcall.wire import LINE

VECTORS = Path(__file__).resolve().parents[2] / "internal" / "transport" / "shm" / "testdata"


def vectors(name):
    return json.loads((VECTORS / name).read_text())


class Handshakes(unittest.TestCase):
    def test_what_is_said(self):
        for vector in vectors("handshakes.json"):
            with self.subTest(vector["about"]):
                self.handshake(vector["says"])

    def handshake(self, says):
        said = bytes.fromhex(says[0]["hex"])
        version, features = parse_offer(said)
        self.assertEqual((version, features), (says[0]["version"], says[0].get("features", 0)))
        if version == VERSION:
            self.assertEqual(offer(), said)
        answer, step = parse_answer(bytes.fromhex(says[1]["hex"])), says[1]
        self.assertEqual(answer.why, step.get("why"))
        numbers = (answer.version, answer.features, answer.ring, answer.slabs)
        self.assertEqual(numbers, tuple(step.get(k, 0) for k in ("version", "features", "ring", "slabs")))
        for step in says[2:]:
            self.assertIn(bytes.fromhex(step["hex"]), (b"+", b"-", LINE))


class Layouts(unittest.TestCase):
    def test_where_the_parts_begin(self):
        for vector in vectors("layouts.json"):
            got = layout(vector["ring"], vector["slabs"])
            self.assertEqual(
                [got.server_segment, got.client_segment, got.server_slabs, got.client_slabs, got.end],
                [vector[k] for k in ("server segment", "client segment", "server slabs", "client slabs", "end")],
            )


class TheWords(unittest.TestCase):
    """A client sends and a server receives, in one thread, step by step."""

    def setUp(self):
        self.vector = vectors("words.json")
        self.pages = {side: memoryview(bytearray(PAGE + self.vector["ring"])) for side in ("server", "client")}
        for page in self.pages.values():
            page[:8] = MAGIC
        words = {side: Words(page) for side, page in self.pages.items()}
        ring = self.pages["client"][PAGE:]
        self.sender = Sender(words["client"], words["server"], ring)
        self.receiver = Receiver(words["server"], words["client"], ring)

    def take(self, most=1 << 20):
        return "room" if self.receiver.take(most)[1] else None

    def put(self, n):
        return "data" if self.sender.put((b"0123456789abcdef" * 300)[:n])[1] else None

    def test_every_step(self):
        ring = self.vector["ring"]
        steps = {
            "the server has made the memory": lambda: None,
            "the client sends its line": lambda: self.put(11),
            "the server receives it": self.take,
            "the server finds nothing, and sleeps": self.receiver.begin_wait,
            "the client fills the ring, round its end": lambda: self.put(ring),
            "the client finds no room, and waits for some": self.sender.begin_wait,
            "the server wakes": self.receiver.end_wait,
            "the server receives a quarter of the ring": lambda: self.take(ring // 4),
            "the server receives another quarter": lambda: self.take(ring // 4),
            "the client wakes": self.sender.end_wait,
            "the server receives the rest": self.take,
            "the server sleeps again": self.receiver.begin_wait,
            "the client sends a byte": lambda: self.put(1),
            "the client fills the ring again, in the same sleep of the server": lambda: self.put(ring - 1),
            "the client waits for room a second time": self.sender.begin_wait,
            "the server wakes again": self.receiver.end_wait,
            "the server receives half of the ring": lambda: self.take(ring // 2),
            "the server receives more before the client wakes": lambda: self.take(ring // 4),
            "the client wakes again": self.sender.end_wait,
        }
        for step in self.vector["steps"]:
            with self.subTest(step["does"]):
                bell = steps[step["does"]]()
                self.assertEqual(bell, step.get("rings"))
                for side, page in self.pages.items():
                    words = page[:PAGE].cast("Q")
                    names = {"asleep": ASLEEP, "head": HEAD, "tail": TAIL, "wants": WANTS}
                    self.assertEqual({k: words[at // 8] for k, at in names.items()}, step[side])
        for side, page in self.pages.items():
            found = [(at, bytes(page[at : at + 8])) for at in range(0, PAGE, 8) if any(page[at : at + 8])]
            self.assertEqual([f"{at}: {word.hex()}" for at, word in found], self.vector["pages"][side])
