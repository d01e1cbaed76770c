package main

import "slices"

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

// Tables returns all tables. In second processes so many goroutines are parked.
func Tables(parked int) []Table {
	return []Table{inProcess, overSockets("unix", parked), overSockets("tcp", parked)}
}

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

// base returns the baseline.
func (t Table) base() Rival {
	return t.Rivals[slices.IndexFunc(t.Rivals, func(r Rival) bool { return r.Name == t.Baseline })]
}

// place returns where a rival stands.
func (t Table) place(r Rival) int {
	return slices.IndexFunc(t.Rivals, func(v Rival) bool { return v.Name == r.Name })
}

func tableName(t Table) string { return t.Name }
