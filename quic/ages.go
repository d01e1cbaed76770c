package quic

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/durations"
)

// ages are a server's limits for the age and the idle time of a connection. The timers are
// guarded by the session's mu.
type ages struct {
	limits    keepalive.ServerParameters
	idleSince time.Time
	idle, age *time.Timer
}

// startTimers starts the timers of a session's life.
func (s *session) startTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLiveness()
	if d := s.ages.limits.MaxConnectionIdle; d > 0 {
		s.ages.idleSince = time.Now()
		s.ages.idle = time.AfterFunc(d, s.onIdle)
	}
	if d := s.ages.limits.MaxConnectionAge; d > 0 {
		s.ages.age = time.AfterFunc(durations.Age(d), s.onAge)
	}
}

// stopTimers stops all timers of a session that has ended.
func (s *session) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*time.Timer{s.ages.idle, s.ages.age, s.sweep, s.stall.timer, s.release, s.drain.timer, s.liveness.timer} {
		if t != nil {
			t.Stop()
		}
	}
}

// noteIdle records when the last call ended. mu is held.
func (s *session) noteIdle() {
	if s.ages.idle != nil && len(s.live) == 0 {
		s.ages.idleSince = time.Now()
	}
}

// onIdle ends a session that has been without calls for MaxConnectionIdle.
func (s *session) onIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.ages.limits.MaxConnectionIdle
	if s.ended != nil {
		return
	}
	if len(s.live) == 0 {
		if left -= time.Since(s.ages.idleSince); left <= 0 {
			s.retire(errors.New("the connection was idle for MaxConnectionIdle"))
			return
		}
	}
	s.ages.idle.Reset(durations.Recheck(left))
}

var errOld = errors.New("the connection reached MaxConnectionAge")

// onAge drains a session that has reached MaxConnectionAge. After the grace period, if any, it
// closes the session.
func (s *session) onAge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return
	}
	if grace := s.ages.limits.MaxConnectionAgeGrace; grace != 0 {
		s.ages.age = time.AfterFunc(grace, func() { _ = s.Close(fmt.Errorf("%s: %w", s.name, errOld)) })
	}
	s.announce() // and not retire: running handlers may still make calls
	s.leaving = true
	s.leaveIfIdle()
}
