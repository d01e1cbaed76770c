package relay_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/relay"
)

// A silent stream has a peer that neither sends nor receives.
type silent struct {
	link.Stream
	once    sync.Once
	aborted chan struct{}
	reason  error
	onAbort func(error)
	replies int // how many messages Recv returns at once
}

func newSilent(replies int) *silent { return &silent{aborted: make(chan struct{}), replies: replies} }

func (s *silent) Send(*link.Frame) error {
	<-s.aborted
	return s.reason
}

func (s *silent) Recv(f *link.Frame) error {
	if s.replies > 0 {
		s.replies--
		f.Got = true
		return nil
	}
	<-s.aborted
	return s.reason
}

func (s *silent) OnAbort(f func(error)) { s.onAbort = f }

func (s *silent) Abort(reason error) {
	s.once.Do(func() {
		s.reason = reason
		if s.onAbort != nil {
			s.onAbort(reason)
		}
		close(s.aborted)
	})
}

// to is a session whose streams are stream. If stream is nil, NewStream waits for its context.
type to struct {
	link.Session
	stream *silent
}

func (s to) NewStream(ctx context.Context, _ *link.CallHeader) (link.Stream, error) {
	if s.stream == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.stream, nil
}

// The deadline of a call ends it on both sides, whatever the relay is waiting for.
func TestADeadlineEndsACallWhosePeersAreSilent(t *testing.T) {
	for name, caller := range map[string]func() *silent{
		"no stream opens":           func() *silent { return nil },
		"nothing is sent":           func() *silent { return newSilent(0) },
		"the reply is not received": func() *silent { return newSilent(1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all sync.WaitGroup
				caller, callee := caller(), newSilent(0)
				r := relay.Acceptor{To: to{stream: caller}, Go: all.Go}
				begun := time.Now()
				if err := r.HandleStream(callee, &link.CallHeader{Profile: &link.Profile{}, Deadline: begun.Add(time.Second)}); err != nil {
					t.Fatal(err)
				}
				all.Wait()
				if d := time.Since(begun); d != time.Second {
					t.Errorf("the relay ends after %v", d)
				}
				for side, s := range map[string]*silent{"caller": caller, "callee": callee} {
					if s != nil && s.reason != context.DeadlineExceeded {
						t.Errorf("the %s's stream ends with %v", side, s.reason)
					}
				}
			})
		})
	}
}
