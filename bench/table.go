package main

import (
	"runtime"
	"slices"
)

// A Table is a separate tournament: its rows, its rivals, and the baseline they are compared
// with.
type Table struct {
	Name     string // for -tables
	Title    string // where the calls go
	Rows     []Row
	Rivals   []Rival
	Baseline string // the name of a rival
	File     string // base name of result files, without extension

	// Apart says which alternatives the table leaves out and why.
	Apart string

	// Processes says that each rival's server is a second process. The CPU time of both
	// processes is measured then.
	Processes bool
}

// Tables returns all tables that this system supports. parked is the number of sleeping
// goroutines in second processes.
func Tables(parked int) []Table {
	tables := []Table{inProcess, onLoop, overSockets("unix", parked), overSockets("tcp", parked), overWebSocket(parked), overQUIC(parked)}
	if hasSharedMemory {
		tables = append(tables, overSharedMemory(parked))
	}
	return tables
}

// hasSharedMemory says that nearcall supports shared memory on this system.
const hasSharedMemory = runtime.GOOS == "linux"

// sharedMemory is the name of the table that only some systems have.
const sharedMemory = "shm"

var inProcess = Table{
	Name: "in-process", Title: "in process", File: "in-process",
	Rows: inProcessRows, Rivals: inProcessRivals, Baseline: "grpchan",
}

// onLoop is the table of services on an event loop, in one process. It contains rivals
// without a loop for comparison.
var onLoop = Table{
	Name: "loop", Title: "on an event loop", File: "loop",
	Rows: loopRows, Rivals: loopRivals, Baseline: "grpchan",
	Apart: "go-inprocgrpc, which has an event loop as well, was not to be had when this was measured. Figures of it are known that were " +
		"measured on another occasion, with a version of 2026: unary 51 µs and 215 allocations, a server stream of 100 messages 1640 µs, a bidi echo 28 µs. " +
		"They stand in no ratio to these.",
}

// overSockets returns the table of two processes over a network, unix or tcp.
func overSockets(network string, parked int) Table {
	title := map[string]string{"unix": "over unix sockets", "tcp": "over TCP on the loopback interface"}[network]
	return Table{
		Name: network, Title: title, File: network, Processes: true,
		Rows: peerRows, Rivals: peerRivals(peerSetup{Network: network, Parked: parked}), Baseline: "grpc-go",
	}
}

// overWebSocket returns the table of two processes over a WebSocket, with rivals over TCP.
func overWebSocket(parked int) Table {
	return Table{
		Name: "ws", Title: "over a WebSocket on the loopback interface", File: "websocket", Processes: true,
		Rows: peerRows, Rivals: webSocketRivals(parked), Baseline: "grpc-go",
	}
}

// overQUIC returns the table of two processes over QUIC, with rivals over TCP with TLS.
func overQUIC(parked int) Table {
	return Table{
		Name: "quic", Title: "over QUIC on the loopback interface", File: "quic", Processes: true,
		Rows: peerRows, Rivals: quicRivals(parked), Baseline: "grpc-go",
	}
}

// overSharedMemory returns the table of two processes over shared memory, with rivals over
// sockets for comparison. The baseline is that of unix sockets.
func overSharedMemory(parked int) Table {
	return Table{
		Name: sharedMemory, Title: "over shared memory", File: sharedMemory, Processes: true,
		Rows: peerRows, Rivals: sharedMemoryRivals(parked), Baseline: "grpc-go",
	}
}

// base returns the baseline rival.
func (t Table) base() Rival {
	return t.Rivals[slices.IndexFunc(t.Rivals, func(r Rival) bool { return r.Name == t.Baseline })]
}

// place returns the index of a rival.
func (t Table) place(r Rival) int {
	return slices.IndexFunc(t.Rivals, func(v Rival) bool { return v.Name == r.Name })
}

func tableName(t Table) string { return t.Name }
