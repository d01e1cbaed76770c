"""A raw connection, on which a test may send any bytes, valid or not."""

import socket

from nearcall import wire
from nearcall.frames import Decoder, Encoder, Hello
from nearcall.wire import LINE, Splitter


class Raw:
    """A unix socket to a server, after the exchange of lines and HELLOs."""

    def __init__(self, target, hello=None, sock=None):
        self.sock = sock or socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        if not sock:
            self.sock.connect(target.removeprefix("unix:"))
        self.encoder = Encoder()
        self.splitter = Splitter()
        self.decoder = Decoder(False, 1 << 20)
        self.frames = []
        hello = hello or Hello(block=1 << 20)
        self.sock.sendall(LINE + hello.encode())
        self.hello = self.next(wire.HELLO).hello

    def send(self, data):
        self.sock.sendall(data)

    def next(self, *kinds):
        """Returns the next frame, or the next one of the given kinds. None at the end of the connection."""
        while True:
            while self.frames:
                f = self.frames.pop(0)
                if not kinds or f.kind in kinds:
                    return f
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.frames = [self.decoder.decode(*f) for f in self.splitter.feed(data)]

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
