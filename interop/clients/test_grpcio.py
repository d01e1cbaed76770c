"""Calls of Python's grpcio to a nearcall server.

clients_test.go runs this file. NEARCALL_PLACES says where it serves orders.proto, with the
handlers of service_test.go.
"""

import json
import os
import queue
import unittest

import grpc
from grpc_status import rpc_status

import orders_pb2 as pb
import orders_pb2_grpc as stubs

FOR_EVER, FOR_AN_END, FOR_OTHERS, AT_ONCE = 1, 2, 3, 500
LATE = 30  # seconds; no call takes so long


class Calls:
    """The tests at one place, which a subclass sets."""

    place = None

    def setUp(self):
        address = self.place["Address"]
        if self.place["Unix"]:
            address = "unix:" + address
        if self.place["CA"]:
            with open(self.place["CA"], "rb") as f:
                self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(f.read()))
        else:
            self.channel = grpc.insecure_channel(address)
        self.addCleanup(self.channel.close)
        self.orders = stubs.OrdersStub(self.channel)

    def assert_code(self, code, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception

    def test_unary(self):
        order = self.orders.Place(pb.PlaceRequest(customer="ann", item="té", quantity=2), timeout=LATE)
        self.assertEqual(order, pb.Order(id=1, customer="ann", item="té", quantity=2))

    def test_server_stream(self):
        listed = list(self.orders.List(pb.ListRequest(customer="ann"), timeout=LATE))
        self.assertEqual([o.id for o in listed], list(range(100)))

    def test_client_stream(self):
        reply = self.orders.Import((pb.PlaceRequest(item="tea") for _ in range(200)), timeout=LATE)
        self.assertEqual(reply.placed, 200)

    def test_bidi_stream(self):
        offers = queue.SimpleQueue()
        answers = self.orders.Haggle(iter(offers.get, None), timeout=LATE)
        for cents in range(1, 100):  # each offer follows the answer to the last one
            offers.put(pb.Offer(cents=cents))
            self.assertEqual(next(answers).ask_cents, cents)
        offers.put(None)
        self.assertEqual(list(answers), [])
        self.assertEqual(answers.code(), grpc.StatusCode.OK)

    def test_metadata_both_ways(self):
        sent = (("x-echo", "one"), ("x-echo", "two"), ("x-echo-bin", bytes(range(256))))
        _, call = self.orders.Place.with_call(pb.PlaceRequest(quantity=1), metadata=sent, timeout=LATE)
        self.assertEqual([v for k, v in call.initial_metadata() if k == "x-echo"], ["one", "two"])
        self.assertEqual([v for k, v in call.trailing_metadata() if k == "x-echo-bin"], [bytes(range(256))])

    def test_gzip(self):
        item = "tea" * 100_000
        order, call = self.orders.Place.with_call(
            pb.PlaceRequest(item=item, quantity=1), compression=grpc.Compression.Gzip, timeout=LATE)
        self.assertEqual(order.item, item)
        self.assertIn(("request-encoding", "gzip"), call.initial_metadata())

    def test_status_details(self):
        err = self.assert_code(grpc.StatusCode.RESOURCE_EXHAUSTED,
                               lambda: self.orders.Place(pb.PlaceRequest(item="tea"), timeout=LATE))
        status = rpc_status.from_call(err)
        self.assertEqual(status.message, "too few: ä")
        shortage = pb.Shortage()
        self.assertTrue(status.details[0].Unpack(shortage))
        self.assertEqual(shortage, pb.Shortage(item="tea", wanted=2, left=1))

    def test_unknown_method(self):
        unknown = self.channel.unary_unary("/nearcall.examples.orders.Orders/Nothing")
        self.assert_code(grpc.StatusCode.UNIMPLEMENTED, lambda: unknown(b"", timeout=LATE))

    def test_larger_than_the_limit(self):
        request = pb.PlaceRequest(item="x" * (5 << 20), quantity=1)
        self.assert_code(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: self.orders.Place(request, timeout=LATE))

    def test_deadline(self):
        grpc.channel_ready_future(self.channel).result(timeout=LATE)
        for timeout in (0.3, 3, LATE):
            call = self.orders.List(pb.ListRequest(customer="waits"), timeout=timeout)
            try:
                next(call)  # the handler runs
            except grpc.RpcError:
                continue  # the deadline came first
            with self.assertRaises(grpc.RpcError) as caught:
                next(call)
            break
        else:
            self.fail("no handler ran in time")
        # The server's timer may fire first. Then grpc-go resets the stream, and grpcio says so.
        if caught.exception.details() != "Received RST_STREAM with error code 8":
            self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED, caught.exception.details())
        self.orders.Await(pb.AwaitRequest(id=FOR_AN_END), timeout=LATE)

    def test_cancel(self):
        call = self.orders.List(pb.ListRequest(customer="waits"), timeout=LATE)
        next(call)  # the handler runs
        call.cancel()
        self.assertEqual(call.code(), grpc.StatusCode.CANCELLED)
        self.orders.Await(pb.AwaitRequest(id=FOR_AN_END), timeout=LATE)

    def test_many_calls_at_once(self):
        calls = [self.orders.Await.future(pb.AwaitRequest(id=FOR_OTHERS), timeout=LATE) for _ in range(AT_ONCE)]
        self.assertEqual([c.result().id for c in calls], [FOR_OTHERS] * AT_ONCE)


for _place in json.loads(os.environ["NEARCALL_PLACES"]):
    _name = "".join(word.title() for word in _place["Name"].split("_"))
    globals()[_name] = type(_name, (Calls, unittest.TestCase), {"place": _place})
