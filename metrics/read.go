package metrics

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

var started = time.Now()

// Read returns the figures of this process, without calls by method. It is safe for concurrent use. Each
// counter is exact, but together they are not of one instant.
func Read() *metricspb.Snapshot {
	shm := &counters.Shm
	s := &metricspb.Snapshot{
		Since: started.UnixNano(), Now: time.Now().UnixNano(),
		TransparentRetries: counters.TransparentRetries.Load(), PolicyRetries: counters.PolicyRetries.Load(), Reconnections: counters.Reconnections.Load(),
		SharedMemory: &metricspb.SharedMemory{
			Upgrades: shm.Upgrades.Load(), Fallbacks: shm.Fallbacks.Load(), Connections: shm.Connections.Load(), Bytes: shm.Bytes.Load(),
			LargeMessages: shm.LargeMessages.Load(), NoRoom: shm.NoRoom.Load(), Wakeups: shm.Wakeups.Load(),
		},
	}
	for _, side := range []string{"client", "server"} {
		for p := range counters.Paths {
			if open, opened := counters.Sessions(side == "client", p); opened > 0 {
				s.Sessions = append(s.Sessions, &metricspb.Sessions{Side: side, Path: p.String(), Open: open, Opened: opened})
			}
		}
	}
	for r := range counters.Reasons {
		if n := counters.Stays(r); n > 0 {
			s.NotNearer = append(s.NotNearer, &metricspb.NotNearer{Reason: r.String(), Connections: n})
		}
	}
	return s
}

// Read returns the figures of this process, and the calls by method. A nil *Calls has none.
func (c *Calls) Read() *metricspb.Snapshot {
	s := Read()
	if c == nil {
		return s
	}
	c.once.Do(c.learn)
	s.Since = c.since.UnixNano()
	add := func(name string, m *method) {
		if m != nil && m.begun.Load() > 0 {
			s.Methods = append(s.Methods, m.proto(name))
		}
	}
	add("", &c.others)
	for _, name := range slices.Sorted(maps.Keys(c.methods)) {
		add(name, c.methods[name])
	}
	return s
}

// proto returns the counters. It first reads how many calls have ended, then their times, and last
// how many have begun. So it never shows more ended calls than times or begun calls.
func (m *method) proto(name string) *metricspb.Method {
	p := &metricspb.Method{Name: name, Ended: make(map[uint32]uint64)}
	for code := range m.ended {
		if n := m.ended[code].Load(); n > 0 {
			p.Ended[uint32(code)] = n
		}
	}
	p.Times, p.TotalNanoseconds = m.times.proto(), m.took.Load()
	p.Begun = m.begun.Load()
	return p
}

// String returns the result of Read in JSON, so that a *Calls is an expvar.Var.
func (c *Calls) String() string {
	b, _ := json.Marshal(c.Read()) // of numbers and strings
	return string(b)
}

// service serves the figures.
type service struct {
	metricspb.UnimplementedMetricsServer
	calls *Calls
}

func (s service) Get(context.Context, *metricspb.GetRequest) (*metricspb.Snapshot, error) {
	return s.calls.Read(), nil
}
