// Command grpcgo runs grpc-go's own tests on nearcall; see package foreign.
//
// It builds the tests of a copy of grpc-go with other imports: package shim/grpc replaces grpc-go's
// package grpc, with servers and clients of nearcall. Kind grpc is the control: the same tests through
// the same shim on grpc-go. Kind ordinary has clients of grpc-go, and servers of nearcall. In the kinds
// targets and targets-grpc clients of nearcall have the tests' own targets, with resolvers and balancers.
//
//	go run ./grpcgo                                  all tests on all kinds
//	go run ./grpcgo -kinds 'tcp inproc' -packages stats
//	go run ./grpcgo -tests 'test\.Retry.*' -v
//
// Tests that fail must be listed in differences.tsv.
package main

import (
	_ "embed"
	"runtime"
	"slices"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	"github.com/nearcall/nearcall/interop/internal/foreign"
)

//go:embed differences.tsv
var tableText string

func main() { project().Main() }

func project() *foreign.Project {
	p := &foreign.Project{
		Name:  "grpc-tests",
		Table: tableText,
		Kinds: names(near.Kinds),
		Groups: map[string][]string{
			"all":     names(near.Kinds[2:]), // those with clients of nearcall
			"paths":   names(near.Kinds[4:]), // of these, those with one server
			"sockets": names([]near.Kind{near.TCP, near.WebSocket, near.Unix, near.SharedMem}),
			"process": names([]near.Kind{near.InProcess, near.Inline, near.Shared, near.Loop}),
			"mapped":  names(near.Kinds[6:]),
		},
		Convert: convert,
		List:    list,
	}
	if runtime.GOOS != "linux" {
		p.Kinds = slices.DeleteFunc(p.Kinds, func(k string) bool { return k == string(near.SharedMem) })
	}
	for _, s := range suites {
		p.Suites = append(p.Suites, foreign.Suite{Name: s.name, Dir: s.to})
	}
	return p
}

func names(kinds []near.Kind) (names []string) {
	for _, k := range kinds {
		names = append(names, string(k))
	}
	return names
}
