"""One call on its caller's side: the messages to send, the messages received, and the call's credit."""

from collections import deque

from . import wire
from .blocks import End
from .frames import LEAST_PLACED
from .wire import COMPRESSED, END, HEAD, MESSAGE, MORE, PIECE, PLACE, ProtocolError, uint

CANCELLED, UNKNOWN, DEADLINE_EXCEEDED = 1, 2, 4
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
RESETS = {0: CANCELLED, 1: DEADLINE_EXCEEDED, 2: UNAVAILABLE, 4: INTERNAL, 5: RESOURCE_EXHAUSTED}
MESSAGE_COST = 5  # of credit, in addition to a message's bytes


class Stream:
    def __init__(self, head, window, give):
        self.head = head
        self.number = 0  # assigned when the head is sent
        self.window = window  # the credit for sending
        # Messages to send: pairs of message and whether it is compressed.
        self.messages = deque()
        self.offset = 0  # in the first message
        self.half_close = False
        self.sent_end = False
        # Receiving. given is the peer's credit; held counts the bytes that wait for the reader.
        self.size_of_window = self.given = give
        self.held = 0
        self.header = None
        self.received = deque()  # pairs of message and whether it is compressed
        self.piece = None  # of an incomplete message: received bytes, full size, compressed
        self.end = None
        self.unprocessed = False  # no handler saw the call

    def idle(self):
        """Reports whether there is nothing to send."""
        return not self.head and not self.messages and self.half_close == self.sent_end

    def fail(self, code, text):
        if not self.end:
            self.end = End(code, text.encode())
        self.messages.clear()

    # Sending

    def next(self, encoder, connection, memory):
        """Returns the next frames and what they cost of the connection's credit, or None if nothing can be sent."""
        flags, parts, body = 0, b"", b""
        if self.head:
            flags |= HEAD
            parts, body = encoder.blocks(self.number, self.head)
            self.head = None
        data, message_flags, call, conn = b"", 0, 0, 0
        if self.messages:
            space = wire.FRAME - 1 - len(uint(self.number)) - len(body)
            data, message_flags, call, conn = self.message(space, connection, memory)
        flags |= message_flags
        if self.half_close and not self.messages and not self.sent_end:
            flags |= END
            self.sent_end = True
        if not flags:
            return None
        self.window -= call
        return parts + wire.frame(wire.STREAM | flags, self.number, body + data), conn

    def message(self, space, connection, memory):
        """Takes as much of the first message as space and credit allow. Returns bytes, flags, and both costs."""
        message, compressed = self.messages[0]
        if self.offset:
            data = message[self.offset :][: max(0, min(space, self.window, connection))]
            if not data:
                return b"", 0, 0, 0
            return data, PIECE | self.advance(len(data)), len(data), len(data)
        credit = min(self.window, connection) - MESSAGE_COST
        if credit < 0:
            return b"", 0, 0, 0
        if memory and len(message) >= LEAST_PLACED and not compressed:
            place = memory.put(message)
            if place is not None:
                self.advance(len(message))
                return uint(len(message)) + uint(place), MESSAGE | PLACE, MESSAGE_COST + len(message), MESSAGE_COST
        flags, size = MESSAGE | (COMPRESSED if compressed else 0), b""
        data = message[: min(space, credit)]
        if len(data) < len(message):
            size = uint(len(message))
            data = message[: max(0, min(space - len(size), credit))]
            if not data:
                return b"", 0, 0, 0
        cost = MESSAGE_COST + len(data)
        return size + data, flags | self.advance(len(data)), cost, cost

    def advance(self, n):
        """Counts n bytes of the first message as sent. Returns MORE if some are left, and otherwise 0."""
        self.offset += n
        if self.offset < len(self.messages[0][0]):
            return MORE
        self.messages.popleft()
        self.offset = 0
        return 0

    # Receiving

    def receive(self, f, message=None):
        """Handles a frame of the callee. With PLACE, message is the message at that place."""
        if f.flags & HEAD:
            if self.header is not None or self.piece:
                raise ProtocolError("a second HEAD")
            self.header = f.head.metadata
        if f.flags & (MESSAGE | PIECE):
            if self.header is None:
                self.header = []
            self.receive_message(f, message)
        if f.end:
            if self.piece:
                raise ProtocolError("END between the pieces of a message")
            self.end = f.end
            self.messages.clear()

    def receive_message(self, f, message):
        self.given -= cost_of_call(f)
        compressed = bool(f.flags & COMPRESSED)
        if f.flags & MESSAGE:
            if self.piece:
                raise ProtocolError("a message between the pieces of another")
            if f.flags & PLACE:
                self.arrived(message, False)
                return
            self.piece = [bytearray(), f.size, compressed]
        elif not self.piece:
            raise ProtocolError("a piece of no message")
        data, size, compressed = self.piece
        data += f.data
        if len(data) > size or (len(data) == size) == bool(f.flags & MORE):
            raise ProtocolError(f"{len(data)} bytes of a message of {size}")
        if not f.flags & MORE:
            self.piece = None
            self.arrived(bytes(data), compressed)

    def arrived(self, message, compressed):
        self.held += MESSAGE_COST + len(message)
        self.received.append((message, compressed))

    def take(self):
        """Returns the next received message, and whether it is compressed."""
        message, compressed = self.received.popleft()
        self.held -= MESSAGE_COST + len(message)
        return message, compressed

    def credit(self):
        """Returns the credit to give the callee now, or 0.

        It gives credit if the next message for the reader needs more, or if half of the window is free.
        """
        least = self.piece[1] - len(self.piece[0]) if self.piece and not self.received else 0
        n = max(least, self.size_of_window - self.held - len(self.piece[0] if self.piece else b"")) - self.given
        if self.end or n <= 0 or n < self.size_of_window // 2 and self.given >= least:
            return 0
        self.given += n
        return n


def cost_of_call(f):
    """Returns the call's credit that a message or piece consumes."""
    if f.flags & MESSAGE:
        return MESSAGE_COST + (f.size if f.flags & PLACE else len(f.data))
    return len(f.data)


def cost_of_connection(f):
    if f.flags & MESSAGE:
        return MESSAGE_COST + (0 if f.flags & PLACE else len(f.data))
    return len(f.data)
