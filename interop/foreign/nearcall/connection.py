"""A connection over a socket or another byte carrier. One thread reads and one writes."""

import contextlib
import socket
import threading

from .session import Session
from .wire import ProtocolError


class SocketBytes:
    """Carries a Connection's bytes over a socket."""

    memory = None

    def __init__(self, sock):
        self.sock = sock

    def recv(self):
        return self.sock.recv(65536)

    def send(self, data):
        self.sock.sendall(data)

    def finish(self):
        """Ends sending. Received bytes can still be read."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def dial(target, **options):
    """Connects to unix:PATH or tcp:HOST:PORT."""
    network, _, address = target.partition(":")
    if network == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
    else:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(SocketBytes(sock), **options)


class Connection:
    """A connection. Several threads may make calls on it at the same time."""

    def __init__(self, carrier, hello=None):
        self.carrier = carrier
        self.session = Session(hello, carrier.memory)
        self.changed = threading.Condition()
        self.error = None
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self.read, self.write)]
        for thread in self.threads:
            thread.start()

    def read(self):
        text = "the connection was lost"
        try:
            while data := self.carrier.recv():
                with self.changed:
                    self.session.receive(data)
                    self.end_drained()
                    self.changed.notify_all()
                    if self.session.goodbye:
                        break
        except (OSError, ProtocolError) as err:
            self.error, text = err, str(err)
        with self.changed:
            if not self.session.over:
                self.session.lost(text)
            self.changed.notify_all()

    def end_drained(self):
        """Closes a drained connection when its last call has ended."""
        if self.session.drained is not None and not self.session.calls:
            self.session.bye(0)

    def write(self):
        try:
            while True:
                with self.changed:
                    while (data := self.session.next()) is None:
                        if self.session.over:
                            return
                        self.changed.wait()
                    self.changed.notify_all()  # a sender may wait for this
                self.carrier.send(data)
        except OSError:
            pass  # the reader notices, too
        finally:
            self.carrier.finish()

    def wait(self, condition, seconds=None):
        """Waits until the condition holds. The caller holds `changed`. Returns False on a timeout."""
        return self.changed.wait_for(condition, seconds)

    def ping(self, data=b"12345678", seconds=10):
        """Sends a PING and waits for the PONG. Returns False on a timeout."""
        with self.changed:
            before = self.session.pongs
            self.session.ping(data)
            self.changed.notify_all()
            self.wait(lambda: self.session.pongs > before or self.session.over, seconds)
            return self.session.pongs > before

    def ready(self, seconds=10):
        """Waits for the peer's HELLO and returns it."""
        with self.changed:
            self.wait(lambda: self.session.peer.version or self.session.over, seconds)
            return self.session.peer

    def close(self, seconds=10):
        """Sends BYE and waits until the peer has closed the connection."""
        with self.changed:
            self.session.bye(0)
            self.changed.notify_all()
        for thread in self.threads:
            thread.join(seconds)
        self.carrier.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
