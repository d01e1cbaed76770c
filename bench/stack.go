package main

import (
	"errors"
	"net"
	"net/http"
)

// A stack carries calls from one process to another.
type stack struct {
	// serve starts a server and returns the address that it listens on. stop ends
	// everything that serve started, and waits for it.
	serve func(network, address string, s Services) (at string, stop func(), err error)

	// dial returns a connection for the callers of a row.
	dial func(network, address string, row Row) (Conn, error)
}

// stacks are the stacks by the names of their rivals. On systems with shared memory init
// functions add watched-line and shmipc-go.
var stacks = map[string]stack{
	"nearcall": {serveNearcall, dialNearcall},
	"grpc-go":  {serveGRPC, dialGRPC},
	"drpc":     {serveDRPC, dialDRPC},
	"ttrpc":    {serveTTRPC, dialTTRPC},
	"raw":      {serveRaw, dialRaw},
	"protobuf": {serveProtobuf, dialProtobuf},

	"connect-nearcall": {serveConnectNearcall, dialConnectNearcall},
	"connect-http1":    overHTTP((*http.Protocols).SetHTTP1),
	"connect-http2":    overHTTP((*http.Protocols).SetUnencryptedHTTP2),
	"connect-http3":    {serveHTTP3, dialHTTP3},

	"raw-websocket": {serveRawWebSocket, dialRawWebSocket},
	"raw-quic":      {serveRawQUIC, dialRawQUIC},
}

// maxMessage is the message size limit of stacks that let servers and clients set one. It
// is larger than any row's messages.
const maxMessage = 16 << 20

const (
	http2Note    = "Connect v2's own protocol, over net/http and HTTP/2 without TLS; compression is off, as it is elsewhere."
	rawNote      = "no RPC: as many bytes there and back on a net.Conn, after their length in four bytes."
	connectNote  = "Connect v2's generated code over nearcall, with nearconnect"
	protobufNote = "raw, with the messages encoded and decoded by both sides: the least that a call with copies takes where both block in reading."
)

// peerRivals returns the rivals between two processes.
func peerRivals(setup peerSetup) []Rival {
	rivals := []Rival{
		{Name: "nearcall", Flat: true},
		{Name: "grpc-go", Flat: true},
		{Name: "drpc", Note: "a connection has one call at a time; rows with several callers use its pool, which dials a connection for each."},
		{Name: "ttrpc", Without: []Absence{
			{func(r Row) bool { return r.Size >= 4<<20 }, "ttrpc has no messages of more than 4 MB"},
			{func(r Row) bool { return r.Kind.Name == ClientStream.Name }, "ttrpc answers client streams with a unary reply, which needs special code"},
		}},
		{Name: "connect-nearcall", Note: connectNote + "."},
		{Name: "connect-http2", Note: http2Note},
		{Name: "connect-http1", Note: "the same over HTTP/1.1. A connection has one call at a time; rows with several callers keep one for each.", Without: []Absence{
			{func(r Row) bool { return r.Kind.Name == BidiEcho.Name }, "connect-http1 has no streams both ways"},
		}},
		{Name: "raw", Limit: true, Note: rawNote, Without: withoutCalls("raw")},
		{Name: "protobuf", Limit: true, Note: protobufNote, Without: withoutCalls("protobuf")},
	}
	for i, r := range rivals {
		setup.Stack = r.Name
		rivals[i].Dial = overPeer(setup)
	}
	return rivals
}

// Networks of nearcall that package net does not have.
const (
	shmNetwork      = "shm"
	upgradedNetwork = "unix+shm" // a unix socket that becomes shared memory
)

// sharedMemoryRivals returns the rivals between two processes that can share memory. Those
// without a second process are lower bounds.
func sharedMemoryRivals(parked int) []Rival {
	over := func(stack, network string) func(Row) (Conn, error) {
		return overPeer(peerSetup{Stack: stack, Network: network, Parked: parked})
	}
	return []Rival{
		{Name: "nearcall", Dial: over("nearcall", shmNetwork), Flat: true, Note: "over shm:PATH."},
		{Name: "nearcall-upgraded", Dial: over("nearcall", upgradedNetwork), Flat: true, Note: "over unix:PATH, which becomes shared memory when it connects."},
		{Name: "grpc-go", Dial: over("grpc-go", "unix"), Flat: true, Note: "over a unix socket, as raw and protobuf are."},
		{Name: "raw", Limit: true, Dial: over("raw", "unix"), Note: rawNote, Without: withoutCalls("raw")},
		{Name: "protobuf", Limit: true, Dial: over("protobuf", "unix"), Note: protobufNote, Without: withoutCalls("protobuf")},
		{
			Name: "shmipc-go", Dial: over("shmipc-go", "unix"), Without: withoutCalls("shmipc-go"),
			Note: "no RPC: as many bytes there and back on a stream of shmipc-go, through 256 MB of shared memory, after their length in four bytes.",
		},
		{
			Name: "watched-line", Limit: true, Dial: over("watched-line", shmNetwork),
			Note: "no RPC: a message there and back in one cache line that both processes watch, which keeps two processors busy. Where they have one each, no call over shared memory takes less.",
			Without: []Absence{{
				func(r Row) bool { return !r.Kind.Unary || r.Callers > 1 || r.Pause > 0 || r.Size > lineMost },
				"watched-line has one caller, who does not rest, and messages that fit in a cache line",
			}},
		},
		copying("one-copy", 1, "the message's bytes copied once there and once back, from memory that is kept to memory that is kept, by one processor of one process: "+
			"what a large message takes where nobody waits and nothing is encoded."),
		copying("two-copies", 2, "the same with two copies each way, as into shared memory and out of it."),
		copying("three-copies", 3, "the same with three."),
	}
}

// withoutCalls returns the rows that a rival cannot take part in because its connection only
// exchanges messages, without calls.
func withoutCalls(rival string) []Absence {
	return []Absence{
		{func(r Row) bool { return !r.Kind.Unary }, rival + " has no streams"},
		{func(r Row) bool { return r.Callers > 1 }, rival + " has one caller"},
	}
}

// overPeer starts a second process, and connects to it.
func overPeer(setup peerSetup) func(Row) (Conn, error) {
	return func(row Row) (Conn, error) {
		setup.Messages = row.Messages
		p, err := startPeer(setup)
		if err != nil {
			return Conn{}, err
		}
		conn, err := stacks[setup.Stack].dial(setup.Network, p.Address, row)
		if err != nil {
			return Conn{}, errors.Join(err, p.stop())
		}
		conn.Peer = p
		return conn, nil
	}
}

// serveOn listens, and starts a goroutine that calls the run that serve returns. The
// function that it returns calls stop.
func serveOn(network, address string, serve func(net.Listener) (run func(), stop func())) (string, func(), error) {
	lis, err := net.Listen(network, address)
	if err != nil {
		return "", nil, err
	}
	return lis.Addr().String(), serveFrom(lis, serve), nil
}

// serveFrom is serveOn for a listener that exists already.
func serveFrom(lis net.Listener, serve func(net.Listener) (run func(), stop func())) (end func()) {
	run, stop := serve(lis)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run()
	}()
	return func() {
		stop()
		<-ended
	}
}
