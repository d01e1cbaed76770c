"""Blocks: the heads, headers and ends of calls."""

from dataclasses import dataclass, field

from . import protobuf
from .names import ENTRY, get_name, get_profile, put_name, put_profile
from .wire import string, uint

KEY = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyz-_.!#$%&'*+^`|~")
CONTROL = frozenset(set(range(0x20)) - {0x09} | {0x7F})
RESERVED = frozenset(
    b"content-type user-agent te grpc-message-type grpc-encoding grpc-message grpc-status grpc-timeout".split()
)


class WrongCall(Exception):
    """An invalid block that ends only its call, with RESET, code 4."""


@dataclass
class Head:
    """The block that opens a call. The profile is authority, user agent, subtype, encoding, accept."""

    method: bytes
    profile: tuple
    timeout: int = 0  # microseconds, 0 for no deadline
    metadata: list = field(default_factory=list)  # pairs of key and value

    def size(self):
        return size_of([self.method, *self.profile], self.metadata)

    def encode(self, table, whole):
        return (
            put_name(table, self.method, whole)
            + put_profile(table, self.profile, whole)
            + uint(self.timeout)
            + put_metadata(table, self.metadata, whole)
        )


@dataclass
class Header:
    """The metadata that a callee sends before its messages."""

    metadata: list = field(default_factory=list)

    def size(self):
        return size_of([], self.metadata)

    def encode(self, table, whole):
        return put_metadata(table, self.metadata, whole)


@dataclass
class End:
    """Status and trailer. The details are a google.rpc.Status, or empty."""

    code: int = 0
    message: bytes = b""
    details: bytes = b""
    trailer: list = field(default_factory=list)

    def size(self):
        details = protobuf.repeated(self.details, 3) if self.details else []
        return size_of([self.message], self.trailer) + len(self.details) + len(details) * ENTRY

    def encode(self, table, whole):
        out = uint(self.code)
        if self.code:
            out += string(self.message) + string(self.details)
        return out + put_metadata(table, self.trailer, whole)


def size_of(strings, metadata):
    """Returns the size of a block that counts against HELLO's `block`."""
    return sum(len(s) + ENTRY for s in strings) + sum(len(k) + len(v) + ENTRY for k, v in metadata)


def get_head(table, cursor, whole, limit):
    """Decodes a call head. Returns it with the reason why the call is invalid, or None."""
    method = get_name(table, cursor, whole)
    profile = get_profile(table, cursor, whole)
    timeout = cursor.uint()
    room = limit - size_of([method, *profile], [])
    metadata, wrong = get_metadata(table, cursor, whole, room)
    for text in (method, *profile):
        if not CONTROL.isdisjoint(text):
            wrong = wrong or f"{text!r} has control characters"
    return Head(method, profile, timeout, metadata), wrong


def get_header(table, cursor, whole, limit):
    metadata, wrong = get_metadata(table, cursor, whole, limit)
    return Header(metadata), wrong


def get_end(table, cursor, whole, limit):
    end = End(code=cursor.uint())
    if end.code:
        end.message = cursor.string()
        end.details = cursor.string()
    wrong = check_status(end)
    room = limit if wrong else limit - end.size()
    end.trailer, wrong_trailer = get_metadata(table, cursor, whole, room)
    return end, wrong or wrong_trailer


def check_status(end):
    if end.code >= 1 << 32:
        return f"code {end.code} does not fit into 32 bits"
    try:
        end.message.decode()
    except UnicodeDecodeError:
        return f"the message {end.message!r} is not UTF-8"
    if end.details:
        try:
            code = protobuf.integer(end.details, 1)
            protobuf.repeated(end.details, 3)
        except ValueError as err:
            return f"the details are no status: {err}"
        if code != end.code:
            return f"the details are a status of code {code}, not {end.code}"
    return None


def put_metadata(table, metadata, whole):
    """Encodes pairs of key and value. Values of one key are grouped and keep their order."""
    keys = dict.fromkeys(k for k, _ in metadata)
    ordered = [(k, v) for key in keys for k, v in metadata if k == key]
    return uint(len(ordered)) + b"".join(put_name(table, k, whole) + string(v) for k, v in ordered)


def get_metadata(table, cursor, whole, room):
    """Decodes metadata. Invalid entries, and entries beyond the limit, are read and dropped."""
    metadata, keys, wrong = [], set(), None
    for _ in range(cursor.uint()):
        key, value = get_name(table, cursor, whole), cursor.string()
        room -= len(key) + len(value) + ENTRY
        wrong = wrong or check_entry(key, value)
        if key in keys and metadata and metadata[-1][0] != key:
            wrong = wrong or f"values of {key!r} have others between them"
        if room < 0:
            wrong = wrong or "the block is larger than this side takes"
        if not wrong:
            keys.add(key)
            metadata.append((key, value))
    if room < 0:
        wrong = wrong or "the block is larger than this side takes"
    return metadata, wrong


def check_entry(key, value):
    if not key or not KEY.issuperset(key):
        return f"{key!r} is no key of metadata"
    if not key.endswith(b"-bin") and not CONTROL.isdisjoint(value):
        return f"the value of {key!r} has control characters"
    return None


def reserved(key):
    """Reports whether gRPC reserves a key, so that it must not be sent as metadata."""
    return key.startswith(b":") or key in RESERVED
