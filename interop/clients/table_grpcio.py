"""Calls of Python's grpcio to the servers of the table of docs/semantics.md.

table_test.go runs this file, writes the cells to its standard input, and reads from its standard
output what the calls were like.
"""

import json
import queue
import sys

import grpc

import orders_pb2 as pb
import orders_pb2_grpc as stubs

LATE = 30  # seconds; no call takes so long


def read(name):
    if not name:
        return None
    with open(name, "rb") as f:
        return f.read()


def call(cell):
    """Returns the protocol of the TLS handshake, which the server has answered with."""
    if cell["TLS"]:
        credentials = grpc.ssl_channel_credentials(read(cell["CA"]), read(cell["Key"]), read(cell["Cert"]))
        channel = grpc.secure_channel(cell["Address"], credentials)
    else:
        channel = grpc.insecure_channel(cell["Address"])
    with channel:
        orders = stubs.OrdersStub(channel)
        order = orders.Place(pb.PlaceRequest(customer="ann", item="tea", quantity=1), timeout=LATE)
        assert (order.id, order.customer, order.quantity) == (1, "ann", 1), order
        listed = [o.id for o in orders.List(pb.ListRequest(customer="ann"), timeout=LATE)]
        assert listed == list(range(100)), listed
        offers = queue.SimpleQueue()
        answers = orders.Haggle(iter(offers.get, None), timeout=LATE)
        for cents in (7, 8):  # each offer follows the answer to the last one
            offers.put(pb.Offer(cents=cents))
            answer = next(answers)
            assert answer.ask_cents == cents, answer
        offers.put(None)
        assert list(answers) == []
        return order.item


cells = json.load(sys.stdin)["Cells"]
for cell in cells:
    try:
        cell["ALPN"] = call(cell)
    except Exception as e:
        cell["Err"] = repr(e)
json.dump(cells, sys.stdout)
