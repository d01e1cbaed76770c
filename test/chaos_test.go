package test

import (
	"testing"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
)

// TestChaos makes random calls while they are cancelled, while handlers fail and panic, and
// while servers stop, sessions break and connections close; see [chaos.Run].
//
// It takes about 4 s, divided among the scenarios. NEARCALL_SOAK sets another duration:
//
//	NEARCALL_SOAK=10m go test -race -run TestChaos -timeout 0 ./test
func TestChaos(t *testing.T) {
	lasts := chaos.Duration(t, "NEARCALL_SOAK", 4*time.Second)
	scenarios := []chaos.Scenario{
		{Name: "inproc"},
		{Name: "inproc, inline and limited", Server: []nearcall.ServerOption{nearcall.HandlerPlacement(nearcall.Inline), nearcall.MaxConcurrentStreams(3)}},
		{Name: "inproc, storm", Storm: true, Worker: true, Server: []nearcall.ServerOption{nearcall.HandlerPlacement(nearcall.Workers), nearcall.MaxConcurrentStreams(6)}},
		{Name: "inproc, closing", Storm: true, Closing: true},
	}
	for _, network := range networks("unix") {
		scenarios = append(scenarios,
			onNetwork(network, chaos.Scenario{Name: network, Worker: true}),
			onNetwork(network, chaos.Scenario{Name: network + ", storm", Storm: true, Closing: true, Worker: true}))
	}
	chaos.Run(t, append(scenarios, onLoops()...), lasts)
}
