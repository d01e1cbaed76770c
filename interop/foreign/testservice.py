"""The part of grpc.testing.TestService that the tests use. Messages are encoded by hand."""

from nearcall import protobuf
from nearcall.protobuf import message

SERVICE = "/grpc.testing.TestService/"
EMPTY = SERVICE + "EmptyCall"
UNARY = SERVICE + "UnaryCall"
OUTPUT = SERVICE + "StreamingOutputCall"
INPUT = SERVICE + "StreamingInputCall"
DUPLEX = SERVICE + "FullDuplexCall"

INITIAL = b"x-grpc-test-echo-initial"
TRAILING = b"x-grpc-test-echo-trailing"


def payload(size):
    return message((2, (bytes(range(251)) * (size // 251 + 1))[:size]))


def simple_request(size=0, reply=0, code=0, text=""):
    fields = [(2, reply), (3, payload(size))]
    if code:
        fields.append((7, echo_status(code, text)))
    return message(*fields)


def simple_response(data):
    """Returns the payload of a reply, and the number of bytes that the server received."""
    return protobuf.single(protobuf.single(data, 1), 2), int(protobuf.single(data, 2))


def echo_status(code, text):
    return message((1, code), (2, text.encode()))


def output_request(sizes, code=0, text=""):
    fields = [(2, message((1, size))) for size in sizes]
    if code:
        fields.append((7, echo_status(code, text)))
    return message(*fields)


def output_response(data):
    return protobuf.single(protobuf.single(data, 1), 2)


def input_request(size):
    return message((1, payload(size)))


def input_response(data):
    return protobuf.integer(data, 1)


def body(size):
    """Returns the payload that both sides send for a size."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]
