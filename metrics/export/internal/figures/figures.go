// Package figures names the figures of package metrics for the readers.
package figures

import (
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/nearcall/nearcall/metrics/metricspb"
)

// A Figure has a value for each set of labels. Names, labels and units are OpenTelemetry's, and for the
// calls of a server those of gRPC (gRFC A66).
type Figure struct {
	Name, Unit, Help string
	Grows            bool // it only grows
	Labels           []string
	Read             func(*metricspb.Snapshot, Add)
}

// Add adds a value with labels.
type Add func(value float64, labels ...string)

// All are the figures.
var All = []Figure{
	{"grpc.server.call.started", "{call}", "Calls that the server has begun.", true, []string{"grpc.method"}, func(s *metricspb.Snapshot, add Add) {
		for _, m := range s.GetMethods() {
			add(float64(m.GetBegun()), MethodOf(m))
		}
	}},
	{"nearcall.server.call.ended", "{call}", "Calls that the server has ended.", true, []string{"grpc.method", "grpc.status"}, func(s *metricspb.Snapshot, add Add) {
		for _, m := range s.GetMethods() {
			for status, n := range m.GetEnded() {
				add(float64(n), MethodOf(m), code.Code(status).String())
			}
		}
	}},
	{"nearcall.sessions", "{session}", "Open sessions of this process.", false, []string{"nearcall.side", "nearcall.path"}, func(s *metricspb.Snapshot, add Add) {
		for _, n := range s.GetSessions() {
			add(float64(n.GetOpen()), n.GetSide(), n.GetPath())
		}
	}},
	{"nearcall.sessions.opened", "{session}", "Sessions that were opened.", true, []string{"nearcall.side", "nearcall.path"}, func(s *metricspb.Snapshot, add Add) {
		for _, n := range s.GetSessions() {
			add(float64(n.GetOpened()), n.GetSide(), n.GetPath())
		}
	}},
	{"nearcall.connections.not_nearer", "{connection}", "Connections that did not become shared memory or in process, by reason.", true, []string{"nearcall.reason"}, func(s *metricspb.Snapshot, add Add) {
		for _, n := range s.GetNotNearer() {
			add(float64(n.GetConnections()), n.GetReason())
		}
	}},
	{"nearcall.client.retries", "{attempt}", "Attempts of calls that were made again.", true, []string{"nearcall.retry"}, func(s *metricspb.Snapshot, add Add) {
		add(float64(s.GetTransparentRetries()), "transparent")
		add(float64(s.GetPolicyRetries()), "policy")
	}},
	one("nearcall.client.reconnections", "{connection}", "Connections in place of one that was lost or drained.", true, func(s *metricspb.Snapshot) float64 { return float64(s.GetReconnections()) }),
	one("nearcall.shared_memory.upgrades", "{connection}", "Sockets that became shared memory.", true, ofMemory(func(m *metricspb.SharedMemory) uint64 { return m.GetUpgrades() })),
	one("nearcall.shared_memory.fallbacks", "{connection}", "Sockets that did not after an offer.", true, ofMemory(func(m *metricspb.SharedMemory) uint64 { return m.GetFallbacks() })),
	one("nearcall.shared_memory.connections", "{connection}", "Connections of shared memory.", false, ofMemory(func(m *metricspb.SharedMemory) int64 { return m.GetConnections() })),
	one("nearcall.shared_memory.usage", "By", "Shared memory in use.", false, ofMemory(func(m *metricspb.SharedMemory) int64 { return m.GetBytes() })),
	one("nearcall.shared_memory.large_messages", "{message}", "Messages that were written whole for the peer to copy.", true, ofMemory(func(m *metricspb.SharedMemory) uint64 { return m.GetLargeMessages() })),
	one("nearcall.shared_memory.no_room", "{message}", "Large messages that were sent in pieces for lack of room.", true, ofMemory(func(m *metricspb.SharedMemory) uint64 { return m.GetNoRoom() })),
	one("nearcall.shared_memory.wakeups", "{wakeup}", "Wake-ups of sleeping peers.", true, ofMemory(func(m *metricspb.SharedMemory) uint64 { return m.GetWakeups() })),
}

func one(name, unit, help string, grows bool, read func(*metricspb.Snapshot) float64) Figure {
	return Figure{name, unit, help, grows, nil, func(s *metricspb.Snapshot, add Add) { add(read(s)) }}
}

func ofMemory[N int64 | uint64](read func(*metricspb.SharedMemory) N) func(*metricspb.Snapshot) float64 {
	return func(s *metricspb.Snapshot) float64 { return float64(read(s.GetSharedMemory())) }
}

// MethodOf returns the label of a method.
func MethodOf(m *metricspb.Method) string {
	if m.GetName() == "" {
		return "other"
	}
	return strings.TrimPrefix(m.GetName(), "/")
}
