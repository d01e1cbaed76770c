package promises

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// age: a connection that has reached MaxConnectionAge takes no more calls, and its calls end well. No
// call of the client fails.
func age(t *testing.T, f *face) {
	inTime(t, func(d time.Duration) bool {
		w := newWatch()
		c, l := f.start(t, &service{unary: w.hold}, ages(keepalive.ServerParameters{MaxConnectionAge: d})).client()
		running := call(t.Context(), c, held())
		if !w.begins(t, running) {
			return false
		}
		// The third connection is made when two are old, so the first is.
		leak.Eventually(t, "the client connects again, twice", func() bool {
			if _, err := c.unary(t.Context(), new(pb.SimpleRequest)); err != nil {
				t.Errorf("a call when a connection is old: %v", err)
			}
			begun, _ := l.counts()
			return begun > 2
		})
		close(w.release)
		wantCode(t, "the call that has run all the time", await(t, "the call ends", running), codes.OK)
		return true
	})
}

// grace: MaxConnectionAgeGrace after that age, the calls of a connection are ended.
func grace(t *testing.T, f *face) {
	inTime(t, func(d time.Duration) bool {
		w := newWatch()
		c, _ := f.start(t, &service{unary: w.hold}, ages(keepalive.ServerParameters{MaxConnectionAge: d, MaxConnectionAgeGrace: d})).client()
		running := call(t.Context(), c, held())
		if !w.begins(t, running) {
			return false
		}
		wantCode(t, "the handler", await(t, "the handler ends", w.ended), codes.Canceled)
		wantCode(t, "the caller", await(t, "the call ends", running), codes.Unavailable)
		return true
	})
}

// idle: a connection ends when it was without calls for MaxConnectionIdle, and not before.
func idle(t *testing.T, f *face) {
	inTime(t, func(d time.Duration) bool {
		h := newWatch()
		w := f.start(t, &service{unary: h.hold}, ages(keepalive.ServerParameters{MaxConnectionIdle: d}))
		busy, b := w.client()
		running := call(t.Context(), busy, held())
		if !h.begins(t, running) {
			return false
		}
		_, endedEarly := b.counts()
		c, l := w.client()
		before, _ := l.counts()
		for n := 1; n <= 2; n++ {
			if _, err := c.unary(t.Context(), new(pb.SimpleRequest)); err != nil {
				return false // the connection ends as the call comes
			}
			leak.Eventually(t, fmt.Sprintf("connection %d ends", n), func() bool {
				begun, ended := l.counts()
				return begun-before >= n && ended == begun-before
			})
		}
		if _, ended := b.counts(); b != l && ended > endedEarly {
			t.Error("a connection with a call ends")
		}
		close(h.release)
		wantCode(t, "a long call", await(t, "the call ends", running), codes.OK)
		return true
	})
}

// begins reports whether the handler of a call begins before the call ends.
func (w *watch) begins(t *testing.T, running <-chan error) bool {
	select {
	case <-w.begun:
		return true
	case <-running:
	case <-time.After(patience / 4): // each connection is old before the call arrives
	}
	return false
}

// inTime calls f with a duration. If f returns false, a busy machine was too slow for that, and f gets
// longer ones.
func inTime(t *testing.T, f func(time.Duration) bool) {
	for d := 30 * time.Millisecond; d < patience; d *= 3 {
		if f(d) {
			return
		}
	}
	t.Error("no call was in time")
}

func ages(p keepalive.ServerParameters) nearcall.ServerOption { return nearcall.KeepaliveParams(p) }
