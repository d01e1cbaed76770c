"""The numbered names and profiles of one direction of a connection."""

from .wire import ProtocolError, string, uint

ROOM = 65536
LONGEST = 256
ENTRY = 32  # overhead of a string in tables and in the size of a block, in bytes


class Table:
    """Numbers for names and profiles. Both sides assign the same numbers."""

    def __init__(self):
        self.room = ROOM
        self.names = []
        self.profiles = []
        self.numbers = {}  # of names and profiles, for the encoder

    def add_name(self, name):
        """Numbers a name. Returns False if the table has no room for it."""
        size = len(name) + ENTRY
        if len(name) > LONGEST or size > self.room:
            return False
        self.room -= size
        self.numbers.setdefault(name, len(self.names))
        self.names.append(name)
        return True

    def add_profile(self, profile):
        size = sum(map(len, profile)) + 5 * ENTRY
        if size > self.room:
            return False
        self.room -= size
        self.profiles.append(profile)
        self.numbers.setdefault(profile, len(self.profiles))
        return True


def put_name(table, name, whole):
    """Encodes a name. A block that is sent in pieces (not whole) numbers no names."""
    number = table.numbers.get(name)
    if number is not None:
        return uint(number + 2)
    if whole and table.add_name(name):
        return b"\x00" + string(name)
    return b"\x01" + string(name)


def get_name(table, cursor, whole):
    number = cursor.uint()
    if number >= 2:
        if number - 2 >= len(table.names):
            raise ProtocolError(f"name {number - 2} did not come")
        return table.names[number - 2]
    name = cursor.string()
    if number == 0:
        if not whole:
            raise ProtocolError("a new name in a block that is sent in pieces")
        if not table.add_name(name):
            raise ProtocolError("a new name that the table has no room for")
    return name


def put_profile(table, profile, whole):
    """Encodes authority, user agent, subtype, encoding and accept."""
    number = table.numbers.get(profile)
    if number is not None:
        return uint(number)
    if whole:
        table.add_profile(profile)
    return b"\x00" + b"".join(map(string, profile))


def get_profile(table, cursor, whole):
    number = cursor.uint()
    if number == 0:
        profile = tuple(cursor.string() for _ in range(5))
        if whole:
            table.add_profile(profile)
        return profile
    if number > len(table.profiles):
        raise ProtocolError(f"profile {number} did not come")
    return table.profiles[number - 1]
