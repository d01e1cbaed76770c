"""Decoding and encoding of frames for one direction of a connection."""

from dataclasses import dataclass

from . import wire
from .blocks import get_end, get_head, get_header
from .names import Table
from .wire import (
    COMPRESSED, END, HEAD, MESSAGE, MORE, PIECE, PLACE, STREAM,
    Cursor, ProtocolError, frame, uint,
)

LEAST_PLACED = 32768  # the smallest message with PLACE


@dataclass
class Hello:
    version: int = 1
    features: int = 0
    stream: int = 65536
    connection: int = 65536
    calls: int = 0
    block: int = 16384
    ping: int = 0
    idle_ping: int = 0

    def encode(self):
        return frame(wire.HELLO, 0, b"".join(uint(getattr(self, f)) for f in self.__dataclass_fields__))


@dataclass
class Frame:
    """A frame. Fields that its kind and its flags do not use are None, 0 or empty."""

    kind: int
    stream: int = 0
    flags: int = 0
    head: object = None  # Head from a caller, Header from a callee
    end: object = None
    size: int = 0  # of the whole message
    place: int = 0
    data: bytes = b""  # the message or piece; the body of PING, PONG and PART
    code: int = 0
    text: bytes = b""
    n: int = 0
    hello: Hello = None
    wrong: str = None  # the reason if the frame is an error of its call only


class Decoder:
    """Decodes the frames of one side, after the line."""

    def __init__(self, from_client, limit, places=False):
        self.from_client = from_client
        self.limit = limit  # the largest block that the receiver accepts
        self.places = places  # over shared memory
        self.table = Table()
        self.parts = None  # the stream and the bytes of an incomplete block

    def from_caller(self, stream):
        return (stream % 2 == 1) == self.from_client

    def decode(self, kind, stream, body):
        if self.parts and (stream != self.parts[0] or kind != wire.PART and kind < STREAM):
            raise ProtocolError("a frame between those of a block")
        if 0x40 <= kind < 0x80:
            return Frame(kind, stream)
        if kind >= STREAM:
            return self.stream_frame(stream, kind & 0x7F, body)
        if kind not in wire.KINDS:
            raise ProtocolError(f"a frame of the kind {kind:#x}")
        if kind in (wire.PART, wire.RESET) and not stream:
            raise ProtocolError(f"{wire.KINDS[kind]} of no call")
        if kind not in (wire.PART, wire.RESET, wire.CREDIT) and stream:
            raise ProtocolError(f"{wire.KINDS[kind]} of call {stream}")
        f = getattr(self, wire.KINDS[kind].lower())(Frame(kind, stream), body)
        body.done()
        return f

    def hello(self, f, body):
        f.hello = Hello(*(body.uint() for _ in Hello.__dataclass_fields__))
        body.rest()
        if not f.hello.version:
            raise ProtocolError("HELLO with version 0")
        if min(f.hello.stream, f.hello.connection) < 65536 or f.hello.block < 16384:
            raise ProtocolError("HELLO with less than the least")
        return f

    def part(self, f, body):
        f.data = body.rest()
        stream, data = self.parts or (f.stream, b"")
        self.parts = f.stream, data + f.data
        if len(self.parts[1]) > self.limit:
            raise ProtocolError(f"a block of more than {self.limit} bytes")
        return f

    def reset(self, f, body):
        f.code, f.text = body.uint(), body.rest()
        return f

    bye = reset

    def credit(self, f, body):
        f.n = body.uint()
        if not f.n:
            raise ProtocolError("CREDIT of nothing")
        return f

    def ping(self, f, body):
        f.data = body.take(8)
        return f

    pong = ping

    def drain(self, f, body):
        f.n = body.uint()
        return f

    def ret(self, f, body):
        if not self.places:
            raise ProtocolError("RETURN without shared memory")
        f.place = body.uint()
        return f

    def stream_frame(self, stream, flags, body):
        if not stream:
            raise ProtocolError("STREAM of no call")
        check_flags(flags, self.places)
        whole = self.parts is None
        if not whole:
            if not flags & HEAD and (not flags & END or self.from_caller(stream)):
                raise ProtocolError("parts of a block, and a frame that has none")
            body = Cursor(self.parts[1] + body.rest())
            self.parts = None
        f = Frame(STREAM, stream, flags)
        self.blocks(f, body, whole)
        if flags & PLACE:
            f.size, f.place = body.uint(), body.uint()
            if f.size < LEAST_PLACED:
                raise ProtocolError(f"a message of {f.size} bytes in shared memory")
        elif flags & MESSAGE:
            if flags & MORE:
                f.size = body.uint()
            f.data = body.rest()
            if not flags & MORE:
                f.size = len(f.data)
        elif flags & PIECE:
            f.data = body.rest()
        if flags & (PIECE | MORE) and not f.data:
            raise ProtocolError("an empty piece")
        body.done()
        return f

    def blocks(self, f, body, whole):
        wrong_head = wrong_end = None
        if f.flags & HEAD:
            get = get_head if self.from_caller(f.stream) else get_header
            f.head, wrong_head = get(self.table, body, whole, self.limit)
        if f.flags & END and not self.from_caller(f.stream):
            f.end, wrong_end = get_end(self.table, body, whole, self.limit)
        f.wrong = wrong_head or wrong_end


setattr(Decoder, "return", Decoder.ret)


def check_flags(flags, places):
    if not flags & (HEAD | MESSAGE | PIECE | END):
        raise ProtocolError("STREAM with no step of a call")
    if flags & MESSAGE and flags & PIECE:
        raise ProtocolError("MESSAGE and PIECE")
    if flags & MORE and not flags & (MESSAGE | PIECE):
        raise ProtocolError("MORE beside neither MESSAGE nor PIECE")
    if flags & MORE and flags & END:
        raise ProtocolError("END beside MORE")
    if flags & HEAD and flags & PIECE:
        raise ProtocolError("HEAD beside PIECE")
    if flags & COMPRESSED and not flags & MESSAGE:
        raise ProtocolError("COMPRESSED without MESSAGE")
    if flags & PLACE and (not places or not flags & MESSAGE or flags & (MORE | COMPRESSED)):
        raise ProtocolError("PLACE where none can be")


class Encoder:
    """Encodes the frames of one side. Blocks that are too large for a frame become PARTs."""

    def __init__(self):
        self.table = Table()

    def blocks(self, stream, first, second=None):
        """Encodes the blocks of a frame. Returns PART frames and the beginning of the STREAM frame's body."""
        room = wire.FRAME - 1 - len(uint(stream))
        following = [b for b in (first, second) if b]
        if sum(len(b.encode(self.table, False)) for b in following) <= room:
            return b"", b"".join(b.encode(self.table, True) for b in following)
        data, parts = first.encode(self.table, False), b""
        rest = second.encode(self.table, False) if second else b""
        while len(data) + len(rest) > room:
            parts += frame(wire.PART, stream, data[:room])
            data = data[room:]
        return parts, data + rest

    def encode(self, f):
        """Returns the bytes of a frame, preceded by PARTs if its blocks need them."""
        if f.kind == wire.HELLO:
            return f.hello.encode()
        if f.kind in (wire.RESET, wire.BYE):
            return frame(f.kind, f.stream, uint(f.code) + f.text)
        if f.kind in (wire.CREDIT, wire.DRAIN):
            return frame(f.kind, f.stream, uint(f.n))
        if f.kind in (wire.PING, wire.PONG):
            return frame(f.kind, 0, f.data)
        if f.kind == wire.RETURN:
            return frame(f.kind, 0, uint(f.place))
        parts, body = self.blocks(f.stream, f.head or f.end, f.head and f.end)
        if f.flags & PLACE:
            body += uint(f.size) + uint(f.place)
        elif f.flags & MESSAGE and f.flags & MORE:
            body += uint(f.size)
        return parts + frame(STREAM | f.flags, f.stream, body + f.data)
