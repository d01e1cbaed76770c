package callstats

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nearcall/nearcall/callstats/callstatspb"
)

// service serves the counts.
type service struct {
	callstatspb.UnimplementedCallStatsServer
	stats *Stats
}

func (s service) Get(context.Context, *callstatspb.GetRequest) (*callstatspb.GetReply, error) {
	s.stats.once.Do(s.stats.learn)
	reply := &callstatspb.GetReply{Since: s.stats.since.UnixNano(), Now: time.Now().UnixNano()}
	add := func(name string, m *method) {
		if m != nil && m.begun.Load() > 0 {
			reply.Methods = append(reply.Methods, m.proto(name))
		}
	}
	add("", &s.stats.others)
	for _, name := range slices.Sorted(maps.Keys(s.stats.methods)) {
		add(name, s.stats.methods[name])
	}
	return reply, nil
}

// proto returns the counters. It first reads how many calls have ended, then their times, and last
// how many have begun. So it never shows more ended calls than times or begun calls.
func (m *method) proto(name string) *callstatspb.Method {
	p := &callstatspb.Method{Name: name, Ended: make(map[uint32]uint64)}
	for code := range m.ended {
		if n := m.ended[code].Load(); n > 0 {
			p.Ended[uint32(code)] = n
		}
	}
	p.Times = m.times.proto()
	p.Begun = m.begun.Load()
	return p
}
