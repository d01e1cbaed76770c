"""The basic encoding: numbers, strings, and frames on a stream of bytes."""

LINE = b"nearcall/1\n"
FRAME = 65535  # the most bytes that may follow a frame's length
LARGEST = 1 << 62  # every uint is smaller

HELLO, PART, RESET, CREDIT, PING, PONG, DRAIN, BYE, RETURN = range(1, 10)
STREAM = 0x80
HEAD, MESSAGE, PIECE, MORE, END, COMPRESSED, PLACE = 1, 2, 4, 8, 16, 32, 64

KINDS = {
    HELLO: "HELLO", PART: "PART", RESET: "RESET", CREDIT: "CREDIT", PING: "PING",
    PONG: "PONG", DRAIN: "DRAIN", BYE: "BYE", RETURN: "RETURN", STREAM: "STREAM",
}
FLAGS = {
    HEAD: "HEAD", MESSAGE: "MESSAGE", PIECE: "PIECE", MORE: "MORE",
    END: "END", COMPRESSED: "COMPRESSED", PLACE: "PLACE",
}


class ProtocolError(Exception):
    """The peer broke a rule. The connection ends with BYE, code 1."""


def uint(n):
    """Encodes an unsigned number."""
    if not 0 <= n < LARGEST:
        raise ValueError(f"{n} is not a uint")
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def string(b):
    """Encodes a string with its length first."""
    return uint(len(b)) + b


class Cursor:
    """Reads a body from its beginning to its end."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def left(self):
        return len(self.data) - self.at

    def uint(self):
        n = shift = 0
        while True:
            if not self.left():
                raise ProtocolError("a number is cut short")
            byte = self.data[self.at]
            self.at += 1
            n |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 56:
                raise ProtocolError("a number has more than 9 bytes")
        if byte == 0 and shift:
            raise ProtocolError("a number is not in its shortest form")
        if n >= LARGEST:
            raise ProtocolError("a number is 2^62 or more")
        return n

    def take(self, n):
        if n > self.left():
            raise ProtocolError(f"{n} bytes are due and {self.left()} are left")
        b = self.data[self.at : self.at + n]
        self.at += n
        return b

    def string(self):
        return self.take(self.uint())

    def rest(self):
        return self.take(self.left())

    def done(self):
        if self.left():
            raise ProtocolError(f"{self.left()} bytes are left over")


def frame(kind, stream, body=b""):
    """Encodes one frame."""
    payload = bytes([kind]) + uint(stream) + body
    if len(payload) > FRAME:
        raise ValueError(f"a frame of {len(payload)} bytes")
    return len(payload).to_bytes(2, "little") + payload


class Splitter:
    """Splits received bytes into the line and frames: (kind, stream, Cursor over the body)."""

    def __init__(self, line=True):
        self.line = line
        self.data = bytearray()

    def feed(self, data):
        """Yields the complete frames. The line is checked but not yielded."""
        self.data += data
        if self.line:
            met = bytes(self.data[: len(LINE)])
            if not LINE.startswith(met):
                raise ProtocolError(f"the peer does not speak nearcall/1, it said {met!r}")
            if len(met) < len(LINE):
                return
            del self.data[: len(LINE)]
            self.line = False
        while len(self.data) >= 2:
            length = int.from_bytes(self.data[:2], "little")
            if length < 2:
                raise ProtocolError(f"a frame of {length} bytes")
            if len(self.data) < 2 + length:
                return
            cursor = Cursor(bytes(self.data[2 : 2 + length]))
            del self.data[: 2 + length]
            kind = cursor.take(1)[0]
            yield kind, cursor.uint(), cursor
