"""A connection's protocol without input and output: receive takes the received bytes, next returns bytes to send."""

from collections import deque

from . import wire
from .frames import Decoder, Encoder, Frame, Hello
from .stream import INTERNAL, MESSAGE_COST, RESETS, UNAVAILABLE, UNIMPLEMENTED, Stream, cost_of_call, cost_of_connection
from .blocks import End
from .wire import HEAD, LINE, PLACE, ProtocolError, Splitter

MOST_CREDIT = 1 << 62


class Session:
    """A client's side. Not safe for concurrent use."""

    def __init__(self, hello=None, memory=None):
        self.ours = hello or Hello(stream=262144, connection=1 << 20, block=1 << 20)
        self.peer = Hello(version=0)  # until its HELLO arrives
        self.memory = memory  # the slabs, over shared memory
        self.splitter = Splitter()
        self.decoder = Decoder(False, self.ours.block, places=memory is not None)
        self.encoder = Encoder()
        self.control = deque([LINE, self.ours.encode()])
        self.window = 65536  # the credit of this side on the connection
        self.given = self.ours.connection  # the credit of the peer
        self.calls = {}  # open calls by number
        self.waiting = deque()  # calls that have no number yet
        self.turns = deque()  # calls with something to send
        self.number = -1  # the number of our last call
        self.last = 0  # the number of the peer's last call
        self.drained = None  # the last call number in the peer's latest DRAIN
        self.drains = 0
        self.goodbye = None  # (code, text) of the peer's BYE
        self.over = False
        self.pongs = 0

    # Called by the owner

    def open(self, head):
        """Creates a call. next returns its frames when it is the call's turn."""
        stream = Stream(head, 65536 if self.peer.version == 0 else self.peer.stream, self.ours.stream)
        if self.over or self.drained is not None:
            stream.unprocessed = True
            stream.fail(UNAVAILABLE, "the connection takes no new calls")
        else:
            self.waiting.append(stream)
        return stream

    def send(self, stream, message=None, compressed=False, end=False):
        if stream.half_close or stream.end:
            return
        if message is not None:
            stream.messages.append((message, compressed))
        stream.half_close = end
        self.turn(stream)

    def take(self, stream):
        """Returns the next message of a call, and gives its credit back to the callee."""
        message = stream.take()
        self.give(stream)
        return message

    def reset(self, stream, code, status, text):
        """Ends a call early."""
        if stream.end:
            return
        stream.fail(status, text)
        if stream.number:
            self.control.append(self.encoder.encode(Frame(wire.RESET, stream.number, code=code)))
            self.finish(stream)
        elif stream in self.waiting:
            self.waiting.remove(stream)

    def ping(self, data):
        self.control.append(self.encoder.encode(Frame(wire.PING, data=data)))

    def bye(self, code=0, text=""):
        """Sends DRAIN and BYE. This side sends nothing after them."""
        if self.over:
            return
        self.control.append(self.encoder.encode(Frame(wire.DRAIN, n=self.last)))
        self.control.append(self.encoder.encode(Frame(wire.BYE, code=code, text=text.encode()[:4096])))
        self.lost(text or "the connection was closed")

    def lost(self, text):
        """Fails all open calls: nothing more will arrive."""
        self.over = True
        for stream in [*self.calls.values(), *self.waiting]:
            stream.fail(UNAVAILABLE, text)
        self.calls.clear()
        self.waiting.clear()
        self.turns.clear()

    # Sending

    def next(self):
        """Returns the next bytes to send, or None if there are none or no credit for them."""
        if self.control:
            return self.control.popleft()
        while self.waiting and (not self.peer.calls or len(self.calls) < self.peer.calls):
            stream = self.waiting.popleft()
            self.number += 2
            stream.number = self.number
            self.calls[stream.number] = stream
            self.turn(stream)
        for _ in range(len(self.turns)):
            stream = self.turns.popleft()
            if stream.end:
                continue
            found = stream.next(self.encoder, self.window, self.memory)
            if not stream.idle():
                self.turns.append(stream)
            if found:
                data, cost = found
                self.window -= cost
                return data
        return None

    def turn(self, stream):
        if stream.number and stream not in self.turns and not stream.idle():
            self.turns.append(stream)

    # Receiving

    def receive(self, data):
        """Handles received bytes. On a ProtocolError it sends BYE and raises the error."""
        try:
            for kind, number, body in self.splitter.feed(data):
                if self.over:
                    return
                f = self.decoder.decode(kind, number, body)
                if not self.peer.version and f.kind != wire.HELLO:
                    raise ProtocolError("a frame before HELLO")
                if f.kind in wire.KINDS and f.kind != wire.PART:
                    getattr(self, "on_" + wire.KINDS[f.kind].lower())(f)
        except ProtocolError as err:
            self.bye(1, str(err))
            raise

    def on_hello(self, f):
        if self.peer.version:
            raise ProtocolError("a second HELLO")
        self.peer = f.hello
        self.window += f.hello.connection - 65536
        for stream in [*self.calls.values(), *self.waiting]:
            stream.window += f.hello.stream - 65536

    def on_credit(self, f):
        if not f.stream:
            self.window += f.n
            if self.window > MOST_CREDIT:
                raise ProtocolError("credit above 2^62")
            return
        stream = self.call_of(f)
        if stream:
            stream.window += f.n
            if stream.window > MOST_CREDIT:
                raise ProtocolError("credit above 2^62")

    def on_ping(self, f):
        self.control.append(self.encoder.encode(Frame(wire.PONG, data=f.data)))

    def on_pong(self, f):
        self.pongs += 1

    def on_drain(self, f):
        self.drains += 1
        if self.drains > 2 or self.drained is not None and f.n >= self.drained:
            raise ProtocolError("a DRAIN that says nothing new, or a third one")
        self.drained = f.n
        for stream in [*self.calls.values(), *self.waiting]:
            if not stream.number or stream.number > f.n:
                stream.unprocessed = True
                stream.fail(UNAVAILABLE, "the server is going away and did not process the call")
                self.finish(stream)
        self.waiting.clear()

    def on_bye(self, f):
        self.goodbye = f.code, f.text.decode(errors="replace")
        self.lost(self.goodbye[1] or "the server closed the connection")

    def on_reset(self, f):
        stream = self.call_of(f)
        if stream:
            stream.unprocessed = f.code == 2
            stream.fail(RESETS.get(f.code, UNAVAILABLE), f.text.decode(errors="replace"))
            self.finish(stream)

    def on_return(self, f):
        self.memory.returned(f.place)

    def on_stream(self, f):
        message = None
        cost = cost_of_connection(f)
        if cost > self.given:
            raise ProtocolError("more than the connection's credit")
        self.given -= cost
        if f.flags & PLACE:
            message = self.memory.get(f.place, f.size)
            self.control.append(self.encoder.encode(Frame(wire.RETURN, place=f.place)))
        if self.given < self.ours.connection // 2:
            self.credit(0, self.ours.connection - self.given)
            self.given = self.ours.connection
        if f.stream % 2 == 0:
            self.called(f)
            return
        stream = self.call_of(f)
        if not stream:
            return
        if f.wrong:
            self.reset(stream, 4, INTERNAL, f.wrong)
            return
        least = MESSAGE_COST if f.flags & PLACE else cost_of_call(f)
        if least > stream.given:
            raise ProtocolError("more than the call's credit")
        stream.receive(f, message)
        if stream.end:
            self.finish(stream)
        else:
            self.give(stream)

    def called(self, f):
        """Answers a call by the server with UNIMPLEMENTED: this client has no services."""
        if f.stream <= self.last:
            return
        if not f.flags & HEAD:
            raise ProtocolError(f"call {f.stream} was not opened")
        self.last = f.stream
        end = Frame(wire.STREAM, f.stream, wire.END, end=End(UNIMPLEMENTED, b"unknown service"))
        self.control.append(self.encoder.encode(end))

    def call_of(self, f):
        """Returns the call of a frame, or None if it has ended."""
        if f.stream > (self.number if f.stream % 2 else self.last):
            raise ProtocolError(f"call {f.stream} was not opened")
        return self.calls.get(f.stream)

    def give(self, stream):
        n = stream.credit()
        if n:
            self.credit(stream.number, n)

    def credit(self, number, n):
        self.control.append(self.encoder.encode(Frame(wire.CREDIT, number, n=n)))

    def finish(self, stream):
        self.calls.pop(stream.number, None)
