"""Rings in shared memory, and the words with which a side tells the other that it sleeps."""

import threading

from .handshake import PAGE
from .wire import ProtocolError

TAIL, HEAD, ASLEEP, WANTS = 128, 256, 384, 512


class Words:
    """The words of a segment's first page. Stores and loads must be sequentially consistent.

    A Python program cannot issue a memory fence. Here a lock's atomic operations surround each store and each load: a
    store precedes the lock's release, and later loads follow the next acquisition of the lock. On the processors that
    nearcall supports, these are not reordered.
    """

    def __init__(self, page):
        self.words = page[:PAGE].cast("Q")
        self.fence = threading.Lock()

    def load(self, at):
        with self.fence:
            n = self.words[at // 8]
        with self.fence:
            return n

    def store(self, at, n):
        with self.fence:
            self.words[at // 8] = n
        with self.fence:
            pass


class Half:
    """The common part of sender and receiver: a word that says that this side waits, and the decision to ring the peer."""

    def __init__(self, own, peer, ring, own_word, peer_word):
        self.own, self.peer = own, peer  # Words
        self.ring = ring
        self.own_word, self.peer_word = own_word, peer_word
        self.waits = 0  # odd while this side waits
        self.rung = 0  # the peer's wait that the bell was last rung for

    def begin_wait(self):
        self.waits += 1
        self.own.store(self.own_word, self.waits)

    def end_wait(self):
        self.waits += 1
        self.own.store(self.own_word, self.waits)

    def peer_waits(self):
        """Reports whether the peer waits and the bell was not rung yet for this wait. The caller must then ring it."""
        n = self.peer.load(self.peer_word)
        if n % 2 == 0 or n == self.rung:
            return False
        self.rung = n
        return True


class Sender(Half):
    """Puts bytes into this side's ring."""

    def __init__(self, own, peer, ring):
        super().__init__(own, peer, ring, WANTS, ASLEEP)
        self.tail = self.head = 0

    def room(self):
        head = self.peer.load(HEAD)
        if not self.head <= head <= self.tail:
            raise ProtocolError(f"the peer took {head} of {self.tail} bytes, after {self.head}")
        self.head = head
        return len(self.ring) - (self.tail - head)

    def put(self, data):
        """Puts as many bytes as fit. Returns their number, and whether to ring."""
        n = min(len(data), self.room())
        if not n:
            return 0, False
        at = self.tail % len(self.ring)
        first = min(n, len(self.ring) - at)
        self.ring[at : at + first] = data[:first]
        self.ring[: n - first] = data[first:n]
        self.tail += n
        self.own.store(TAIL, self.tail)
        return n, self.peer_waits()


class Receiver(Half):
    """Takes bytes out of the peer's ring."""

    def __init__(self, own, peer, ring):
        super().__init__(own, peer, ring, ASLEEP, WANTS)
        self.tail = self.head = 0

    def there(self):
        tail = self.peer.load(TAIL)
        if not self.tail <= tail <= self.head + len(self.ring):
            raise ProtocolError(f"the peer sent {tail} bytes, after {self.tail}")
        self.tail = tail
        return tail - self.head

    def take(self, most=1 << 16):
        """Takes the available bytes, up to most. Returns them, and whether to ring."""
        n = min(self.there(), most)
        if not n:
            return b"", False
        at = self.head % len(self.ring)
        first = min(n, len(self.ring) - at)
        data = bytes(self.ring[at : at + first]) + bytes(self.ring[: n - first])
        self.head += n
        self.own.store(HEAD, self.head)
        empty = self.tail - self.head <= len(self.ring) // 2
        return data, empty and self.peer_waits()
