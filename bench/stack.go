package main

import (
	"errors"
	"net"
)

// A stack carries calls from one process to another.
type stack struct {
	// serve listens, and returns where. It does not wait for clients; stop
	// returns when all that serve started has ended.
	serve func(network, address string, s Services) (at string, stop func(), err error)

	// dial readies a connection for the callers of a row.
	dial func(network, address string, row Row) (Conn, error)
}

// stacks are all of them, by the names that rivals have. Where there is shared
// memory, watched-line is one, too.
var stacks = map[string]stack{
	"nearcall":   {serveNearcall, dialNearcall},
	"grpc-go":    {serveGRPC, dialGRPC},
	"drpc":       {serveDRPC, dialDRPC},
	"ttrpc":      {serveTTRPC, dialTTRPC},
	"connect-go": {serveConnect, dialConnect},
	"raw":        {serveRaw, dialRaw},
	"protobuf":   {serveProtobuf, dialProtobuf},
}

// maxMessage is what messages may have where that is for servers and clients to
// say: more than any row has.
const maxMessage = 16 << 20

const (
	rawNote      = "no RPC: as many bytes there and back on a net.Conn, after their length in four bytes."
	protobufNote = "raw, with the messages encoded and decoded by both sides: the least that a call with copies takes where both block in reading."
)

// peerRivals take part where the services are in a second process.
func peerRivals(setup peerSetup) []Rival {
	rivals := []Rival{
		{Name: "nearcall"},
		{Name: "grpc-go"},
		{Name: "drpc", Note: "a connection has one call at a time; rows with several callers use its pool, which dials a connection for each."},
		{Name: "ttrpc", Without: []Absence{
			{func(r Row) bool { return r.Size >= 4<<20 }, "ttrpc has no messages of more than 4 MB"},
		}},
		{Name: "connect-go", Note: "Connect's own protocol, over net/http and HTTP/2 without TLS; compression is off, as it is elsewhere."},
		{Name: "raw", Limit: true, Note: rawNote, Without: withoutCalls("raw")},
		{Name: "protobuf", Limit: true, Note: protobufNote, Without: withoutCalls("protobuf")},
	}
	for i, r := range rivals {
		setup.Stack = r.Name
		rivals[i].Dial = overPeer(setup)
	}
	return rivals
}

// What nearcall has that is no network of package net.
const (
	shmNetwork      = "shm"
	upgradedNetwork = "unix+shm" // a unix socket that becomes shared memory
)

// sharedMemoryRivals take part where the services are in a second process that
// can share memory with this one. Those without a process of their own are
// limits of it.
func sharedMemoryRivals(parked int) []Rival {
	over := func(stack, network string) func(Row) (Conn, error) {
		return overPeer(peerSetup{Stack: stack, Network: network, Parked: parked})
	}
	return []Rival{
		{Name: "nearcall", Dial: over("nearcall", shmNetwork), Note: "over shm:PATH."},
		{Name: "nearcall-upgraded", Dial: over("nearcall", upgradedNetwork), Note: "over unix:PATH, which becomes shared memory when it connects."},
		{Name: "grpc-go", Dial: over("grpc-go", "unix"), Note: "over a unix socket, as raw and protobuf are."},
		{Name: "raw", Limit: true, Dial: over("raw", "unix"), Note: rawNote, Without: withoutCalls("raw")},
		{Name: "protobuf", Limit: true, Dial: over("protobuf", "unix"), Note: protobufNote, Without: withoutCalls("protobuf")},
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

// withoutCalls is what there is not where a connection is nothing but messages
// there and back.
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

// serveOn listens and makes serve accept until the listener is closed or what
// serve returns is called.
func serveOn(network, address string, serve func(net.Listener) (run func(), stop func())) (string, func(), error) {
	lis, err := net.Listen(network, address)
	if err != nil {
		return "", nil, err
	}
	return lis.Addr().String(), serveFrom(lis, serve), nil
}

// serveFrom is serveOn for a listener that there is.
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
