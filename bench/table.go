package main

import (
	"runtime"
	"slices"
)

// A Table is a tournament of its own: rows, those who take part in them, and
// whom they are compared with.
type Table struct {
	Name     string // for -tables
	Title    string // says where the calls go
	Rows     []Row
	Rivals   []Rival
	Baseline string // the name of a rival
	File     string // of the results, without the ending

	// Processes says that the rivals' servers are processes of their own. Then
	// the time is noted that both processes had the processor.
	Processes bool
}

// Tables returns all tables that this system can have. In second processes so
// many goroutines are parked.
func Tables(parked int) []Table {
	tables := []Table{inProcess, overSockets("unix", parked), overSockets("tcp", parked)}
	if hasSharedMemory {
		tables = append(tables, overSharedMemory(parked))
	}
	return tables
}

// hasSharedMemory says that nearcall has shared memory here.
const hasSharedMemory = runtime.GOOS == "linux"

// sharedMemory is the name of the table that not all systems have.
const sharedMemory = "shm"

var inProcess = Table{
	Name: "in-process", Title: "in process", File: "in-process",
	Rows: inProcessRows, Rivals: inProcessRivals, Baseline: "grpchan",
}

// overSockets returns the table of two processes.
func overSockets(network string, parked int) Table {
	title := map[string]string{"unix": "over unix sockets", "tcp": "over TCP on the loopback interface"}[network]
	return Table{
		Name: network, Title: title, File: network, Processes: true,
		Rows: peerRows, Rivals: peerRivals(peerSetup{Network: network, Parked: parked}), Baseline: "grpc-go",
	}
}

// overSharedMemory returns the table of two processes in which what needs no
// socket is beside what does. The baseline is that of unix sockets.
func overSharedMemory(parked int) Table {
	return Table{
		Name: sharedMemory, Title: "over shared memory", File: sharedMemory, Processes: true,
		Rows: peerRows, Rivals: sharedMemoryRivals(parked), Baseline: "grpc-go",
	}
}

// base returns the baseline.
func (t Table) base() Rival {
	return t.Rivals[slices.IndexFunc(t.Rivals, func(r Rival) bool { return r.Name == t.Baseline })]
}

// place returns where a rival stands.
func (t Table) place(r Rival) int {
	return slices.IndexFunc(t.Rivals, func(v Rival) bool { return v.Name == r.Name })
}

func tableName(t Table) string { return t.Name }
