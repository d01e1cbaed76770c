"""The part of protobuf's encoding that the tests' messages need."""


def varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def message(*fields):
    """Encodes (number, value) pairs: an int as a varint, bytes with their length."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            if value:
                out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return bytes(out)


def fields(data):
    """Decodes into (number, value) pairs; a value is an int, or bytes."""
    at = 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("a varint is cut short")
            byte = data[at]
            at += 1
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    def take(n):
        nonlocal at
        if at + n > len(data):
            raise ValueError("a field is cut short")
        at += n
        return data[at - n : at]

    while at < len(data):
        tag = number()
        kind = tag & 7
        if not tag >> 3:
            raise ValueError("a field has the number 0")
        if kind == 0:
            yield tag >> 3, number()
        elif kind == 1:
            yield tag >> 3, int.from_bytes(take(8), "little")
        elif kind == 2:
            yield tag >> 3, take(number())
        elif kind == 5:
            yield tag >> 3, int.from_bytes(take(4), "little")
        else:
            raise ValueError(f"a field of the kind {kind}")


def integer(data, number):
    """Returns the last value of an integer field, or 0 if there is none."""
    return ([v for n, v in fields(data) if n == number and isinstance(v, int)] or [0])[-1]


def repeated(data, number):
    """Returns all values of a field of strings, bytes or messages."""
    return [v for n, v in fields(data) if n == number and isinstance(v, bytes)]


def single(data, number):
    """Returns the last value of a field of bytes, or b"" if there is none."""
    return (repeated(data, number) or [b""])[-1]
