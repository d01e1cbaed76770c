"""gRPC's four kinds of call, with metadata, deadlines, statuses and cancellation."""

import gzip
import time
import zlib

from .blocks import Head, reserved
from .stream import CANCELLED, DEADLINE_EXCEEDED, INTERNAL


class CallError(Exception):
    """A status other than OK. `unprocessed` says that the call may be retried on another connection."""

    def __init__(self, end, unprocessed=False):
        super().__init__(f"code {end.code}: {end.message.decode(errors='replace')}")
        self.code = end.code
        self.message = end.message.decode(errors="replace")
        self.details = end.details
        self.trailer = end.trailer
        self.unprocessed = unprocessed


class Call:
    """A call on a connection. `timeout` is in seconds; `encoding` is gzip or empty.

    A `request` is sent with the head, as the only message.
    """

    def __init__(self, conn, method, metadata=(), timeout=None, encoding="", authority="localhost", request=None):
        self.conn = conn
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.encoding = encoding
        for key, _ in metadata:
            if reserved(key):
                raise ValueError(f"{key!r} is gRPC's own")
        left = 0
        if timeout is not None:
            left = max(1, -int(-timeout * 10**6 // 1))
        profile = (authority.encode(), b"nearcall-python/0", b"", encoding.encode(), b"gzip")
        with conn.changed:
            self.stream = conn.session.open(Head(method.encode(), profile, left, list(metadata)))
            if request is not None:
                conn.session.send(self.stream, *self.compress(request), end=True)
            conn.changed.notify_all()

    def send(self, message=None, end=False):
        """Sends a message and half-closes, as asked. Waits for credit until all of it is sent."""
        with self.conn.changed:
            self.conn.session.send(self.stream, *self.compress(message), end)
            self.conn.changed.notify_all()
            self.wait(lambda: self.stream.idle())

    def recv(self):
        """Returns the next message, or None after the end. Raises CallError if the status is not OK."""
        with self.conn.changed:
            self.wait(lambda: self.stream.received)
            if self.stream.received:
                message, compressed = self.conn.session.take(self.stream)
                self.conn.changed.notify_all()
                return self.decompressed(message) if compressed else message
            if self.stream.end.code:
                raise CallError(self.with_details(), self.stream.unprocessed)
            return None

    def header(self):
        """Returns the header, or [] if the call ended without one."""
        with self.conn.changed:
            self.wait(lambda: self.stream.header is not None)
            return [(k, v) for k, v in self.stream.header or [] if not reserved(k)]

    def trailer(self):
        with self.conn.changed:
            self.wait(lambda: False)
            return [(k, v) for k, v in self.stream.end.trailer if not reserved(k)]

    def cancel(self):
        self.leave(0, CANCELLED, "the call was cancelled")

    def leave(self, code, status, text):
        with self.conn.changed:
            self.conn.session.reset(self.stream, code, status, text)
            self.conn.end_drained()
            self.conn.changed.notify_all()

    def wait(self, condition):
        """Waits until the condition holds or the call has ended. The deadline ends the call."""
        left = None if self.deadline is None else max(0, self.deadline - time.monotonic())
        if not self.conn.wait(lambda: condition() or self.stream.end, left):
            self.leave(1, DEADLINE_EXCEEDED, "the deadline has passed")

    def compress(self, message):
        """Returns the bytes to send for a message, and whether they are compressed."""
        if not self.encoding or not message:
            return message, False
        return gzip.compress(message, mtime=0), True

    def decompressed(self, message):
        encodings = [v.decode() for k, v in self.stream.header if k == b"grpc-encoding"]
        if (encodings or [self.encoding])[-1] != "gzip":
            self.leave(0, INTERNAL, "a message is compressed with what this side does not know")
            raise CallError(self.stream.end)
        try:
            return gzip.decompress(message)
        except (OSError, EOFError, zlib.error) as err:
            self.leave(0, INTERNAL, f"a message cannot be decompressed: {err}")
            raise CallError(self.stream.end) from err

    def with_details(self):
        """Returns the end. The details may come from the trailer."""
        end = self.stream.end
        for key, value in end.trailer:
            if key == b"grpc-status-details-bin" and not end.details:
                end.details = value
        return end


def one(call):
    """Returns the only message of a call."""
    message = call.recv()
    if message is None:
        call.stream.end.code, call.stream.end.message = INTERNAL, b"no message, and status OK"
        raise CallError(call.stream.end)
    if call.recv() is not None:
        call.leave(0, INTERNAL, "two messages where one is due")
        raise CallError(call.stream.end)
    return message


def unary(conn, method, request, **options):
    """Makes a unary call. Returns the reply."""
    return one(Call(conn, method, request=request, **options))


def server_stream(conn, method, request, **options):
    """Makes a call with one request. Yields its replies."""
    call = Call(conn, method, request=request, **options)
    while (message := call.recv()) is not None:
        yield message


def client_stream(conn, method, requests, **options):
    """Makes a call with several requests. Returns the reply."""
    call = Call(conn, method, **options)
    for request in requests:
        call.send(request)
    call.send(end=True)
    return one(call)
