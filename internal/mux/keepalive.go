package mux

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// PINGs ask whether the peer is alive, and follow the announcement of a drain. [lifecycle.Life] says
// when.

// appendPing appends a PING to writing.control, and returns the PING's number. mu is held.
func (s *Session) appendPing() uint64 {
	s.pings++
	var data [8]byte
	binary.LittleEndian.PutUint64(data[:], s.pings)
	s.writing.control = wire.AppendPing(s.writing.control, wire.KindPing, data)
	return s.pings
}

// handlePing answers a PING. A server also enforces its minimum time between PINGs. mu is held.
func (s *Session) handlePing(data [8]byte) error {
	s.answerPing(data)
	if s.opts.Client {
		return nil
	}
	if least, yes := s.pingLimit.Exceeded(s.opts.Config, len(s.live) == 0); yes {
		return &dismissal{wire.ByePings, fmt.Sprintf("too many pings: no more than one in %v is taken", least)}
	}
	return nil
}

// A dismissal is the error that ends a session because its peer sends too many PINGs. That breaks
// no rule of the protocol.
type dismissal struct {
	code wire.ByeCode
	text string
}

func (d *dismissal) Error() string { return d.text }

// fromMillis returns a number of milliseconds that a peer has chosen as a duration.
func fromMillis(n uint64) time.Duration {
	return time.Duration(min(n, uint64(math.MaxInt64/2/time.Millisecond))) * time.Millisecond
}

// millis returns d in milliseconds, rounded up.
func millis(d time.Duration) uint64 {
	return (uint64(max(d, 0)) + uint64(time.Millisecond-1)) / uint64(time.Millisecond)
}
