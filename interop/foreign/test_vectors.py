"""The vectors of internal/wire/testdata, decoded and encoded."""

import json
import re
import unittest
from pathlib import Path

from nearcall import wire
from nearcall.blocks import End, Head, Header
from nearcall.frames import Decoder, Encoder, Frame, Hello
from nearcall.wire import LINE, ProtocolError, Splitter

VECTORS = Path(__file__).resolve().parents[2] / "internal" / "wire" / "testdata"
HELLO = dict(
    Version="version", Features="features", Stream="stream", Connection="connection",
    Calls="calls", Block="block", Ping="ping", IdlePing="idle_ping",
)


def vectors(directory):
    found = [(path.name, json.loads(path.read_text())) for path in sorted((VECTORS / directory).glob("*.json"))]
    if not found:
        raise AssertionError(f"no vectors in {VECTORS / directory}")
    return found


def decode_all(vector, limit=1 << 20, places=True):
    """Yields the frames of a vector, including PARTs."""
    data = bytes.fromhex("".join(vector["hex"]))
    decoder = Decoder(vector["from"] == "client", limit, places)
    for kind, stream, body in Splitter(line=data.startswith(LINE)).feed(data):
        yield decoder.decode(kind, stream, body)


def short(data, more=64, shown=16):
    if len(data) > more:
        return f"{data[:shown].hex()}... ({len(data)} bytes)"
    return data.hex()


def show_metadata(metadata):
    def value(k, v):
        text = v.hex() if k.endswith(b"-bin") else v.decode()
        return f"{text[:20]}... ({len(v)} bytes)" if len(v) > 100 else text

    return [[k.decode(), value(k, v)] for k, v in metadata]


def microseconds(text):
    units = {"": 1, "µs": 1, "ms": 1000, "s": 10**6}
    number, unit = re.fullmatch(r"([0-9.]*)(\D*)", text).groups()
    return round(float(number) * units[unit]) if number else 0


def show(f):
    """Returns a frame in the notation of the vectors."""
    out = {"kind": wire.KINDS[f.kind], "stream": f.stream, "code": f.code, "n": f.n}
    out |= {"text": f.text.decode(), "bytes": short(f.data), "size": f.size, "place": f.place}
    out["flags"] = [name for flag, name in wire.FLAGS.items() if f.flags & flag]
    if f.hello:
        out["hello"] = {name: getattr(f.hello, ours) for name, ours in HELLO.items()}
    if isinstance(f.head, Head):
        out["method"] = f.head.method.decode()
        out["profile"] = [s.decode() for s in f.head.profile]
        out["timeout"] = f.head.timeout
    if f.head:
        out["metadata"] = show_metadata(f.head.metadata)
    if f.end:
        status = {"code": f.end.code, "message": f.end.message.decode(), "details": f.end.details.hex()}
        out["status"] = {k: v for k, v in status.items() if v or k == "code"}
        out["trailer"] = show_metadata(f.end.trailer)
    return {k: v for k, v in out.items() if v}


def said(frame):
    """Returns a vector's description of a frame in a comparable form."""
    return frame | {"timeout": microseconds(frame["timeout"])} if "timeout" in frame else frame


def unshow(frame, decoded):
    """Returns the frame that a vector describes. Values that the vector shortens come from the decoded frame."""
    flags = sum(flag for flag, name in wire.FLAGS.items() if name in frame.get("flags", []))
    f = Frame({name: kind for kind, name in wire.KINDS.items()}[frame["kind"]], frame.get("stream", 0), flags)
    f.code, f.text, f.n = frame.get("code", 0), frame.get("text", "").encode(), frame.get("n", 0)
    f.size, f.place = frame.get("size", 0), frame.get("place", 0)
    data = frame.get("bytes", "")
    f.data = decoded.data if "..." in data else bytes.fromhex(data)

    def metadata(name, block):
        shown = frame.get(name, [])
        if any("..." in v for _, v in shown):
            return block.metadata if name == "metadata" else block.trailer
        return [(k.encode(), bytes.fromhex(v) if k.endswith("-bin") else v.encode()) for k, v in shown]

    if "hello" in frame:
        f.hello = Hello(**{HELLO[name]: n for name, n in frame["hello"].items()})
    if "method" in frame:
        profile = tuple(s.encode() for s in frame["profile"])
        timeout = microseconds(frame.get("timeout", ""))
        f.head = Head(frame["method"].encode(), profile, timeout, metadata("metadata", decoded.head))
    elif flags & wire.HEAD:
        f.head = Header(metadata("metadata", decoded.head))
    if "status" in frame:
        status = frame["status"]
        details = bytes.fromhex(status.get("details", ""))
        f.end = End(status["code"], status.get("message", "").encode(), details, metadata("trailer", decoded.end))
    return f


class Frames(unittest.TestCase):
    def test_bytes_decode_to_what_the_vector_says(self):
        for name, vector in vectors("frames"):
            with self.subTest(name):
                got = list(decode_all(vector))
                self.assertEqual([show(f) for f in got], [said(f) for f in vector["frames"]])
                self.assertEqual([f.wrong for f in got], [None] * len(got))

    def test_what_the_vector_says_encodes_to_the_bytes(self):
        for name, vector in vectors("frames"):
            with self.subTest(name):
                encoder = Encoder()
                pairs = zip(vector["frames"], decode_all(vector), strict=True)
                got = b"".join(encoder.encode(unshow(s, d)) for s, d in pairs if s["kind"] != "PART")
                self.assertEqual(got.hex(), "".join(vector["hex"]).removeprefix(LINE.hex()))


class Refused(unittest.TestCase):
    def test_the_last_frame_ends_what_the_vector_says(self):
        for name, vector in vectors("refused"):
            with self.subTest(name):
                self.assertEqual(self.ends(vector), (len(vector["hex"]), vector["ends"]))

    def ends(self, vector):
        """Returns the number of the frame that ends the call or the connection, and which of them it ends."""
        n = 0
        try:
            for n, f in enumerate(decode_all(vector, 16384, vector.get("places", False)), 1):
                if f.wrong:
                    return n, "call"
        except ProtocolError:
            return n + 1, "connection"
        return n, "nothing"


if __name__ == "__main__":
    unittest.main()
