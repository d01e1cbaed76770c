package server

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/wait"
)

// An inlineStream runs inline every handler that is quick.
type inlineStream struct {
	requesting
	run      link.Runner
	released atomic.Int32
}

// A requesting stream has an empty request.
type requesting struct{ refusable }

func (s *requesting) Recv(f *link.Frame) error {
	f.Reset()
	f.Got, f.EndSend = true, true
	return nil
}

func (s *inlineStream) MayRunInline(d time.Duration) bool        { return d < never }
func (s *inlineStream) RunInline(r link.Runner, _ time.Duration) { s.run = r }
func (s *inlineStream) Release()                                 { s.released.Add(1) }
func (s *inlineStream) offerTo(c *serverConn, m string) error {
	return c.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: m})
}

// proves makes the method count as quick.
func proves(s *Server) {
	for range provenScore {
		s.methods[unaryMethod].handlerTime.ran(time.Microsecond)
	}
}

func TestAMethodProvesThatItIsQuick(t *testing.T) {
	var p handlerTime
	times := func(n int, d time.Duration) {
		for range n {
			p.ran(d)
		}
	}
	quick := func(want bool) {
		t.Helper()
		if got := p.expected() < never; got != want {
			t.Errorf("it is quick: %v, want %v", got, want)
		}
	}
	times(provenScore-1, time.Microsecond)
	quick(false)
	times(1, time.Microsecond)
	quick(true)
	times(1, 2*quickRun)
	quick(false) // it has no reserve yet
	times(1000, 10*time.Microsecond)
	quick(true)
	if d := p.expected(); d < 9*time.Microsecond || d > 10*time.Microsecond {
		t.Errorf("it is expected to take %v, want 10 µs", d)
	}
	times(2, 2*quickRun)
	quick(true) // this may happen
	times(2, 2*quickRun)
	quick(false)
	times(1000, time.Microsecond)
	times(1, inlineCheckTime)
	quick(false)
	times(255, time.Microsecond)
	quick(false)
	times(1, time.Microsecond)
	quick(true)
}

// A goroutine is released from a handler at the second look that sees it, and not again.
func TestTheWatchReleasesGoroutinesFromSlowHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		server := New(limited(0), Config{})
		server.Register(&desc, handlers{Unary: func(context.Context, *msg) (*msg, error) {
			<-release
			return nil, context.Canceled
		}}, nil)
		proves(server)
		c := server.Accept(callservice.Distant{}).(*serverConn)
		s := new(inlineStream)
		if err := s.offerTo(c, unaryMethod); err != nil || s.run == nil {
			t.Fatalf("the call does not run inline: %v", err)
		}
		time.Sleep(10 * inlineCheckTime) // the goroutine has other input to handle first
		go s.run.Run()
		time.Sleep(inlineCheckTime)
		synctest.Wait()
		if s.released.Load() > 0 {
			t.Error("the goroutine is released at once")
		}
		time.Sleep(inlineCheckTime)
		synctest.Wait()
		if s.released.Load() != 1 {
			t.Errorf("the goroutine is released %d times after two looks", s.released.Load())
		}
		time.Sleep(100 * inlineCheckTime)
		synctest.Wait()
		w := &server.scheduler
		w.mu.Lock()
		if s.released.Load() != 1 || w.inline.runs {
			t.Errorf("long after that it is released %d times, the timer runs: %v", s.released.Load(), w.inline.runs)
		}
		w.mu.Unlock()
		close(release)
		synctest.Wait()
		again := new(inlineStream)
		if err := again.offerTo(c, unaryMethod); err != nil || again.run != nil {
			t.Errorf("the next call runs inline: %v, %v", again.run, err)
		}
		c.Closed(errStopped)
		synctest.Wait()
		server.scheduler.close()
	})
}

// A reader that waits for a place would wait for handlers that wait to run on it.
func TestAReaderDoesNotWaitForAPlaceWhileCallsWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3
		server := New(limited(limit), Config{})
		var ran atomic.Int32
		server.Register(&desc, handlers{Unary: func(context.Context, *msg) (*msg, error) {
			ran.Add(1)
			return nil, context.Canceled
		}}, nil)
		proves(server)
		c := server.Accept(callservice.Distant{}).(*serverConn)
		var all []*inlineStream
		for range limit {
			s := new(inlineStream)
			if err := s.offerTo(c, unaryMethod); err != nil || s.run == nil {
				t.Fatalf("the call does not run inline: %v", err)
			}
			all = append(all, s)
		}
		time.Sleep(10 * inlineCheckTime) // the reader has much input to handle
		other := new(requesting)
		if err := c.HandleStream(other, &link.CallHeader{Profile: &link.Profile{}, Method: unaryMethod}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * inlineCheckTime)
		synctest.Wait()
		if ran.Load() > 0 {
			t.Error("a handler runs although no place is free")
		}
		for _, s := range all {
			s.run.Run()
		}
		synctest.Wait()
		if n := ran.Load(); n != limit+1 {
			t.Errorf("%d of %d handlers run", n, limit+1)
		}
		c.Closed(errStopped)
		synctest.Wait()
		server.scheduler.close()
	})
}

// Calls that come when a place was given to one that waits, which has not taken it yet, wait
// behind it, and not for ever.
func TestCallsThatComeWhileOthersWaitForAPlaceRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := New(limited(1), Config{})
		release := make(chan struct{})
		var ran atomic.Int32
		blocks := false
		server.Register(&desc, handlers{Unary: func(context.Context, *msg) (*msg, error) {
			if blocks {
				<-release
			}
			ran.Add(1)
			return nil, context.Canceled
		}}, nil)
		proves(server)
		c := server.Accept(callservice.Distant{}).(*serverConn)
		first := new(inlineStream)
		if err := first.offerTo(c, unaryMethod); err != nil || first.run == nil {
			t.Fatalf("the call does not run inline: %v", err)
		}
		offer := func() {
			if err := c.HandleStream(new(requesting), &link.CallHeader{Profile: &link.Profile{}, Method: unaryMethod}); err != nil {
				t.Error(err)
			}
		}
		offer() // waits for a place
		synctest.Wait()
		mu := &server.scheduler.mu
		mu.Lock() // so that the one that waits does not begin
		blocks = true
		next := server.scheduler.endLocked(c.admission.running[0])
		mu.Unlock()
		wait.Unpark(next)
		offer()
		go offer()
		synctest.Wait()
		close(release)
		synctest.Wait()
		if n := ran.Load(); n != 3 {
			t.Errorf("%d of 3 handlers run", n)
		}
		c.Closed(errStopped)
		synctest.Wait()
		server.scheduler.close()
	})
}
