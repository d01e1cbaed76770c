"""The handshake for shared memory over a unix socket: the offer, the answer and the verdict."""

import array
import ctypes
import fcntl
import mmap
import os
import socket
import struct
from dataclasses import dataclass

from .wire import Cursor, ProtocolError, uint

LINE = b"nearcall/1 shm\n"
VERSION = 1
PAGE = 4096  # before each ring
STEP = 65536
MAGIC = b"nearshm1"
SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
GET_SEALS = 1034
TMPFS = 0x01021994


@dataclass
class Answer:
    """A server's answer to an offer. `why` is the reason if the server declines."""

    version: int = 0
    features: int = 0
    ring: int = 0
    slabs: int = 0
    why: str = None


def offer(version=VERSION, features=0, more=b""):
    body = uint(version) + uint(features) + more
    return LINE + bytes([len(body)]) + body


def parse_offer(data):
    """Returns the version and the features of an offer."""
    if data[: len(LINE)] != LINE or len(data) <= len(LINE) or len(data) != len(LINE) + 1 + data[len(LINE)]:
        raise ProtocolError(f"{data!r} is no offer")
    body = Cursor(data[len(LINE) + 1 :])
    return body.uint(), body.uint()


def parse_answer(data):
    """Parses a complete answer. Raises ProtocolError if it is not valid for this client's offer."""
    if data[: len(LINE)] != LINE or data[len(LINE) : len(LINE) + 1] not in (b"+", b"-"):
        raise ProtocolError(f"{data!r} is no answer to an offer")
    body = Cursor(data[len(LINE) + 2 :])
    if data[len(LINE) : len(LINE) + 1] == b"-":
        return Answer(why=body.rest().decode(errors="replace"))
    answer = Answer(body.uint(), body.uint(), body.uint(), body.uint())
    if answer.version != VERSION or answer.features:
        raise ProtocolError(f"the server answers with version {answer.version} and features {answer.features}")
    if answer.ring & answer.ring - 1 or not 4 << 10 <= answer.ring <= 1 << 20:
        raise ProtocolError(f"a ring of {answer.ring} bytes")
    if answer.slabs % STEP or answer.slabs > 64 << 20:
        raise ProtocolError(f"slabs of {answer.slabs} bytes")
    return answer


@dataclass
class Layout:
    """The offsets of the parts of the memory."""

    server_segment: int
    client_segment: int
    server_slabs: int
    client_slabs: int
    end: int


def layout(ring, slabs):
    p = (PAGE + ring + STEP - 1) // STEP * STEP
    return Layout(0, p, 2 * p, 2 * p + slabs, 2 * p + 2 * slabs)


def exchange(sock):
    """Offers shared memory on a socket. Returns the answer and the descriptors that came with it."""
    sock.sendall(offer())
    data, descriptors = b"", array.array("i")
    head = len(LINE) + 2
    while len(data) < head + (data[head - 1] if len(data) >= head else 0):
        due = head + (data[head - 1] if len(data) >= head else 0) - len(data)
        got, ancillary, _, _ = sock.recvmsg(due, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) // 4 * 4])
        if not got:
            close_all(descriptors)
            raise ConnectionError("the server closed the connection instead of an answer")
        data += got
    return parse_answer(data), list(descriptors)


def close_all(descriptors):
    for fd in descriptors:
        os.close(fd)


def check_memory(fd, answer):
    """Raises ValueError unless the memory matches the answer."""
    seals = fcntl.fcntl(fd, GET_SEALS)
    if seals & SEALS != SEALS:
        raise ValueError(f"the memory has the seals {seals:#x}")
    if filesystem(fd) != TMPFS:
        raise ValueError(f"the memory is of the file system {filesystem(fd):#x}")
    size, due = os.fstat(fd).st_size, layout(answer.ring, answer.slabs).end
    if size != due:
        raise ValueError(f"the memory has {size} bytes, not {due}")


def filesystem(fd):
    """Returns f_type of fstatfs, which Python's library does not provide."""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(fd, buffer):
        raise OSError(ctypes.get_errno(), "fstatfs")
    return struct.unpack_from("@l", buffer)[0]


class Memory:
    """The parts of the memory that a client uses. It allocates pages before it writes to them: a write to a hole raises
    SIGBUS if the system has no free pages."""

    def __init__(self, fd, answer):
        check_memory(fd, answer)
        self.answer, at = answer, layout(answer.ring, answer.slabs)
        length = PAGE + answer.ring
        os.posix_fallocate(fd, at.client_segment, length)
        self.own = mmap.mmap(fd, length, offset=at.client_segment)
        self.peer = mmap.mmap(fd, length, offset=at.server_segment, prot=mmap.PROT_READ)
        for segment in (self.own, self.peer):
            if segment[: len(MAGIC)] != MAGIC:
                raise ValueError("the memory does not begin with its magic")
        self.fd = os.dup(fd)  # for slabs
        self.own_slabs, self.peer_slabs = at.client_slabs, at.server_slabs

    def read_slab(self, place, size):
        """Reads from the server's slabs. They are not mapped, so that reading a hole allocates no memory."""
        data = b""
        while len(data) < size:
            more = os.pread(self.fd, size - len(data), self.peer_slabs + place + len(data))
            if not more:
                raise ProtocolError("the memory is shorter than it was")
            data += more
        return data

    def write_slab(self, place, data):
        """Writes to this side's slabs. Raises OSError if the system has no free pages."""
        os.posix_fallocate(self.fd, self.own_slabs + place, len(data))
        at = 0
        while at < len(data):
            at += os.pwrite(self.fd, data[at:], self.own_slabs + place + at)

    def close(self):
        os.close(self.fd)


def upgrade(sock):
    """Sets up shared memory. Returns (Memory, room socket, None), or (None, None, why) to stay on the socket."""
    answer, descriptors = exchange(sock)
    if answer.why is not None:
        close_all(descriptors)
        return None, None, answer.why
    try:
        if len(descriptors) != 2:
            raise ValueError(f"{len(descriptors)} descriptors came")
        memory = Memory(descriptors[0], answer)
        room = socket.socket(fileno=os.dup(descriptors[1]))
    except (ValueError, OSError) as err:
        sock.sendall(b"-")
        return None, None, f"declined: {err}"
    finally:
        close_all(descriptors)
    sock.sendall(b"+")
    return memory, room, None
