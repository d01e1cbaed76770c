package connector

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/backoff"
)

// A pace says how soon the next attempt to connect may follow the last. While attempts
// fail it is gRPC's backoff.
//
// A server that says hello and leaves at once would be dialled again and again, as
// fast as it can. So a brief session counts as an attempt that failed: one that ended
// without an answer to any call, sooner than the next attempt would have followed. The
// first brief session does not count, as a server may have drained just then. After
// any other session the backoff starts over: a server that served, or was there for a
// while, is replaced without a pause.
type pace struct {
	failures int       // one after the other
	brief    bool      // there was a brief session among them, or before
	due      time.Time // no session is dialled before
	reason   error     // why the last session ended
}

// failed counts an attempt that failed, and returns when the next is due.
func (p *pace) failed(dialled time.Time, b backoff.Config) time.Time {
	p.due = dialled.Add(interval(b, p.failures))
	p.failures++
	return p.due
}

// ended counts a session that has ended.
func (p *pace) ended(s *session, b backoff.Config) {
	answered, reason := outcome(s)
	before := *p
	if due := p.failed(s.dialled, b); time.Now().After(due) || answered {
		*p = pace{}
	} else if !before.brief {
		*p = before
		p.brief = true
	}
	p.reason = reason
}

// failure is the error of calls that do not wait until the next session is due.
func (p *pace) failure() error {
	return fmt.Errorf("the server ends connections as soon as they have begun: %w", p.reason)
}

// outcome reports whether the server has answered any call of a session, and why the
// session ended. Sessions that cannot tell are in process: dialling them again is cheap.
func outcome(s *session) (answered bool, reason error) {
	if t, ok := s.Session.(interface{ Outcome() (bool, error) }); ok {
		return t.Outcome()
	}
	return true, nil
}

// interval is the time from the start of one attempt to the next: gRPC's backoff, with
// jitter.
func interval(b backoff.Config, failures int) time.Duration {
	d, maxDelay := float64(b.BaseDelay), float64(b.MaxDelay)
	for range failures {
		if d *= b.Multiplier; d >= maxDelay {
			break
		}
	}
	d = min(d, maxDelay) * (1 + b.Jitter*(2*rand.Float64()-1))
	return time.Duration(max(d, float64(time.Millisecond)))
}
