package nearcall

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/backoff"
)

// A pace says how soon after one attempt to connect the next may follow: by gRPC's
// backoff, where one fails after the other.
//
// A server that says hello and leaves at once would be dialled again and again, as
// fast as it can. So a session counts as an attempt that failed where it was brief:
// it has ended without an answer to any call, sooner than the next attempt would
// have followed. The first is let pass, as a server may have drained just then.
// Any other session begins anew: a server that served, or was there for a while, is
// replaced without a pause.
type pace struct {
	failures int       // one after the other
	brief    bool      // there was a brief session among them, or before
	due      time.Time // not before then a new session is dialled
	reason   error     // why the last session has ended
}

// nearBackoff is the backoff where no network is in between. An attempt costs some
// microseconds, and a server that starts again should be found soon.
var nearBackoff = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// failed takes in that an attempt has failed, and returns when the next is due.
func (p *pace) failed(begun time.Time, b backoff.Config) time.Time {
	p.due = begun.Add(pause(b, p.failures))
	p.failures++
	return p.due
}

// ended takes in that a session has ended.
func (p *pace) ended(s *session, b backoff.Config) {
	answered, reason := outcome(s)
	before := *p
	if due := p.failed(s.begun, b); time.Now().After(due) || answered {
		*p = pace{}
	} else if !before.brief {
		*p = before
		p.brief = true
	}
	p.reason = reason
}

// failure is why calls fail that do not wait until the next session is due.
func (p *pace) failure() error {
	return fmt.Errorf("the server ends connections as soon as they have begun: %w", p.reason)
}

// outcome reports whether a session has brought something of a call's, and why it
// has ended. One that cannot tell is not over a network, and costs little.
func outcome(s *session) (answered bool, reason error) {
	if t, ok := s.Session.(interface{ Outcome() (bool, error) }); ok {
		return t.Outcome()
	}
	return true, nil
}

// pause is the time from the start of an attempt to the next, gRPC's backoff
// with jitter.
func pause(b backoff.Config, failures int) time.Duration {
	d, most := float64(b.BaseDelay), float64(b.MaxDelay)
	for range failures {
		if d *= b.Multiplier; d >= most {
			break
		}
	}
	d = min(d, most) * (1 + b.Jitter*(2*rand.Float64()-1))
	return time.Duration(max(d, float64(time.Millisecond)))
}
