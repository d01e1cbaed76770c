package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

const maxStrikes = 2 // gRPC's

// keepaliveState tracks whether the peer is alive. Guarded by mu.
type keepaliveState struct {
	every, timeout time.Duration // every is 0 if no PINGs are sent
	always         bool          // PINGs are sent also without an open call

	timer       *time.Timer
	heard       bool          // data has arrived since the timer was set
	heardAt     time.Time     // when it last arrived
	pingSent    bool          // a PING was sent, and nothing has arrived since
	pingSentAt  time.Time     // when the last PING was sent
	timeoutLeft time.Duration // the rest of the timeout when the timer fires
	dormant     bool          // PINGs are paused, or sent more rarely, until a call opens

	idle      *time.Timer // ends the session after a long time without calls
	idleSince time.Time
	age       *time.Timer // ends the session when it is too old

	PingLimit
	pings uint64
}

// A PingLimit counts the PINGs of a client that come too early, as gRPC's servers do.
type PingLimit struct {
	strikes  int
	lastPing time.Time // when the client last sent a PING
	spoke    bool      // this side has sent a frame of a call since then
}

// Spoke records that this side has sent a frame of a call. The next PING is not too early then.
func (l *PingLimit) Spoke() { l.spoke = true }

// Exceeded records a PING, and reports whether too many have come too early, which is within
// least of the previous PING. idle says that no call is open.
func (l *PingLimit) Exceeded(c *options.Connections, idle bool) (least time.Duration, yes bool) {
	now := time.Now()
	least = c.LeastPing
	if idle {
		least = c.LeastIdlePing
	}
	switch {
	case l.spoke:
		l.strikes = 0
	case now.Sub(l.lastPing) < least:
		l.strikes++
	}
	l.lastPing, l.spoke = now, false
	return least, l.strikes > maxStrikes
}

// startKeepalive starts the timers. mu is held.
func (s *Session) startKeepalive() {
	p := &s.keepalive
	c := s.opts.Config
	p.every, p.timeout, p.always = c.Pings.Every, c.Pings.Timeout, c.Pings.WithoutCalls
	if c.IdleLimit > 0 {
		p.idleSince = time.Now()
		p.idle = time.AfterFunc(c.IdleLimit, s.onIdleTimer)
	}
	if c.AgeLimit > 0 {
		p.age = time.AfterFunc(durations.Age(c.AgeLimit), s.onMaxAge)
	}
	if p.every > 0 {
		p.timer = time.AfterFunc(p.every, s.onKeepaliveTimer)
	}
}

// onKeepaliveTimer sends a PING, or ends the session if the peer has not answered the
// last one in time.
func (s *Session) onKeepaliveTimer() {
	s.mu.Lock()
	p := &s.keepalive
	switch {
	case s.ended != nil:
	case p.heard:
		p.heard, p.pingSent = false, false
		p.timer.Reset(max(p.every-time.Since(p.heardAt), 0))
	case p.pingSent && p.timeoutLeft <= 0:
		s.mu.Unlock()
		s.fail(errDead)
		return
	case !p.always && len(s.live) == 0:
		p.pingSent, p.dormant = false, true
	case p.pingSent:
		p.resetTimer()
	default:
		s.pingWhenAllowed()
	}
	s.flush(false)
}

var errDead = errors.New("keepalive: the peer did not answer a ping in time")

// pingWhenAllowed sends a PING, or sets the timer to when the peer allows the next one. It adds a
// tenth to the peer's minimum time between PINGs, because the network may delay one PING and not
// the next. mu is held.
func (s *Session) pingWhenAllowed() {
	p := &s.keepalive
	minInterval, idle := s.hello.Ping, len(s.live) == 0
	if idle {
		minInterval = s.hello.IdlePing
	}
	minInterval = min(minInterval, uint64(math.MaxInt64/2/time.Millisecond))
	between := time.Duration(minInterval) * time.Millisecond
	if due := between + between/10 - time.Since(p.pingSentAt); due > 0 && !p.pingSentAt.IsZero() {
		p.dormant = idle // the minimum may be shorter once a call opens
		p.timer.Reset(due)
		return
	}
	s.sendPing()
}

// sendPing sends a PING. mu is held.
func (s *Session) sendPing() {
	p := &s.keepalive
	p.pingSent, p.heard, p.dormant = true, false, false
	s.appendPing()
	p.timeoutLeft = p.timeout
	p.resetTimer()
}

// appendPing appends a PING to writing.control, and returns the PING's number. mu is held.
func (s *Session) appendPing() uint64 {
	p := &s.keepalive
	p.pingSentAt = time.Now()
	p.pings++
	var data [8]byte
	binary.LittleEndian.PutUint64(data[:], p.pings)
	s.writing.control = wire.AppendPing(s.writing.control, wire.KindPing, data)
	return p.pings
}

// resetTimer sets the timer for the next check whether the PING was answered. As in
// gRPC, the session checks at least once per ping interval. mu is held.
func (p *keepaliveState) resetTimer() {
	d := min(p.every, p.timeoutLeft)
	p.timeoutLeft -= d
	p.timer.Reset(d)
}

// onIdleTimer ends a session that has been without calls for MaxConnectionIdle.
func (s *Session) onIdleTimer() {
	s.mu.Lock()
	p := &s.keepalive
	left := s.opts.Config.IdleLimit
	if s.ended != nil {
		s.mu.Unlock()
		return
	}
	if len(s.live) == 0 {
		if left -= time.Since(p.idleSince); left <= 0 {
			s.retire(errors.New("the connection was idle for MaxConnectionIdle"))
			s.flush(false)
			return
		}
	}
	p.idle.Reset(durations.Recheck(left))
	s.mu.Unlock()
}

// onMaxAge drains a session that has reached MaxConnectionAge. After the grace period,
// if any, it closes the session.
func (s *Session) onMaxAge() {
	s.mu.Lock()
	p := &s.keepalive
	if s.ended == nil {
		if grace := s.opts.Config.AgeGrace; grace != 0 {
			p.age = time.AfterFunc(grace, func() { _ = s.Close(errOld) })
		}
		s.announce() // and not retire: running handlers may still make calls
		s.leave(errOld)
	}
	s.flush(false)
}

var errOld = errors.New("the connection reached MaxConnectionAge")

// millis returns d in milliseconds, rounded up.
func millis(d time.Duration) uint64 {
	return (uint64(max(d, 0)) + uint64(time.Millisecond-1)) / uint64(time.Millisecond)
}

// handlePing answers a PING. A server also enforces its minimum time between PINGs. mu is held.
func (s *Session) handlePing(data [8]byte) error {
	s.answerPing(data)
	if s.opts.Client {
		return nil
	}
	if least, yes := s.keepalive.Exceeded(s.opts.Config, len(s.live) == 0); yes {
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
