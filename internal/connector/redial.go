package connector

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/backoff"

	"github.com/nearcall/nearcall/internal/durations"
)

// redial decides when the next attempt to connect is due. While attempts fail it follows gRPC's
// backoff.
//
// A server that accepts a session and ends it at once would be redialed in a tight loop.
// So a brief session counts as a failed attempt. A session is brief if it ended before
// the next attempt would have been due and no call on it was answered. The first brief
// session is forgiven, because the server may just have been draining. Any other session
// resets the backoff, so that a server that did serve is redialed at once.
type redial struct {
	failures int       // in a row
	brief    bool      // there was a brief session since the last reset
	due      time.Time // earliest start of the next attempt
	reason   error     // why the last session ended
}

// failed counts a failed attempt that began at dialled. It returns the time at which the next
// attempt is due.
func (r *redial) failed(dialled time.Time, b backoff.Config) time.Time {
	r.due = dialled.Add(interval(b, r.failures))
	r.failures++
	return r.due
}

// ended records the end of a session.
func (r *redial) ended(s *session, b backoff.Config) {
	answered, reason := outcome(s)
	before := *r
	if due := r.failed(s.dialled, b); time.Now().After(due) || answered {
		*r = redial{}
	} else if !before.brief {
		*r = before
		r.brief = true
	}
	r.reason = reason
}

// While brief sessions make the connector back off, calls that do not wait for a session fail with
// the error that failure returns.
func (r *redial) failure() error {
	return fmt.Errorf("the server ends connections as soon as they have begun: %w", r.reason)
}

// outcome reports whether the server answered any call of a session, and why the session
// ended. In-process sessions cannot tell and count as answered: redialing them is cheap.
func outcome(s *session) (answered bool, reason error) {
	if t, ok := s.Session.(interface{ Outcome() (bool, error) }); ok {
		return t.Outcome()
	}
	return true, nil
}

// interval returns the time from the start of one attempt to the start of the next. It is gRPC's
// backoff with jitter, and at least a millisecond.
func interval(b backoff.Config, failures int) time.Duration {
	d, maxDelay := float64(b.BaseDelay), float64(b.MaxDelay)
	for range failures {
		if d *= b.Multiplier; d >= maxDelay {
			break
		}
	}
	d = min(d, maxDelay) * (1 + b.Jitter*(2*rand.Float64()-1))
	return max(durations.Of(d), time.Millisecond)
}
