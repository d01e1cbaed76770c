package server

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// newAdmission returns an admission with limit places.
func newAdmission(limit int) *admission {
	return &admission{mu: new(sync.Mutex), limit: limit, ahead: true}
}

// fullAdmission returns an admission whose only place is taken.
func fullAdmission() *admission {
	a := newAdmission(1)
	a.taken = 1
	return a
}

// free returns the number of free places.
func free(a *admission) int { return a.limit - a.taken }

// waitFor starts a goroutine that acquires a place, and returns a channel for the result.
func waitFor(ctx context.Context, a *admission) <-chan error {
	got := make(chan error, 1)
	go func() { got <- a.admit(ctx) }()
	synctest.Wait()
	return got
}

// taken callservice.Reports whether a place was taken.
func taken(got <-chan error) bool {
	synctest.Wait()
	return len(got) == 1
}

func TestAnAdmissionBoundsWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(2)
		first, second, third := waitFor(t.Context(), a), waitFor(t.Context(), a), waitFor(t.Context(), a)
		if !taken(first) || !taken(second) || taken(third) {
			t.Fatalf("of two places: %v, %v, %v", taken(first), taken(second), taken(third))
		}
		a.giveBack()
		if !taken(third) {
			t.Error("a place that was given back is not taken")
		}
		a.giveBack()
		a.giveBack()
		if free(a) != 2 || a.queue.Len() != 0 {
			t.Errorf("in the end %d places are free and %d wait", free(a), a.queue.Len())
		}
	})
}

// TestManyWhoGiveUpAPlaceAtOnce, as they do at a common deadline, each take the same time
// however many wait: the admission is locked meanwhile.
func TestManyWhoGiveUpAPlaceAtOnce(t *testing.T) {
	needs.Time(t)
	const few, times = 3_000, 8
	giveUp := func(n int) time.Duration {
		a := fullAdmission()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if err := a.admit(ctx); err == nil {
					t.Error("there is a place")
				}
			})
		}
		for queued := 0; queued < n; time.Sleep(time.Millisecond) {
			a.mu.Lock()
			queued = a.queue.Len()
			a.mu.Unlock()
		}
		begun := time.Now()
		cancel()
		all.Wait()
		if free(a) != 0 || a.queue.Len() != 0 {
			t.Errorf("in the end %d places are free and %d wait", free(a), a.queue.Len())
		}
		return time.Since(begun)
	}
	short, long := time.Duration(0), time.Duration(math.MaxInt64)
	for range 15 { // a busy machine makes some runs longer, and none shorter
		short, long = max(short, giveUp(few)), min(long, giveUp(few*times))
		if long < 3*times*short {
			return
		}
	}
	t.Errorf("%d take %v, %d take %v", few, short, few*times, long)
}

func TestAnAdmissionServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := fullAdmission()
		var waiting []<-chan error
		for range 10 {
			waiting = append(waiting, waitFor(t.Context(), a))
		}
		for i := range waiting {
			a.giveBack()
			for j, w := range waiting {
				if taken(w) != (j <= i) {
					t.Fatalf("after %d were given, the place of %d is taken: %v", i+1, j, taken(w))
				}
			}
		}
	})
}

func TestAWaiterThatGivesUpHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := fullAdmission()
		first := waitFor(t.Context(), a)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		second := waitFor(short, a)
		third := waitFor(t.Context(), a)
		if err := <-second; err != context.DeadlineExceeded {
			t.Fatalf("the second gives up with %v", err)
		}
		if free(a) != 0 || a.queue.Len() != 2 {
			t.Errorf("%d free, %d wait: who gave up was counted", free(a), a.queue.Len())
		}
		a.giveBack()
		if !taken(first) || taken(third) {
			t.Error("who waits longest was not served")
		}
		a.giveBack()
		if !taken(third) {
			t.Error("the third was not served")
		}
		a.giveBack()
		if free(a) != 1 {
			t.Errorf("%d places are free, want 1", free(a))
		}
	})
}

func TestAContextThatHasEndedMayTakeAFreePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a := newAdmission(1)
		if err := a.admit(ctx); err != nil {
			t.Errorf("nobody waited: %v", err)
		}
		if err := a.admit(ctx); err != context.Canceled || a.queue.Len() != 0 {
			t.Errorf("%v, %d wait", err, a.queue.Len())
		}
	})
}

// A caller that is granted a place just as its context ends passes it on.
func TestAnAdmissionLosesNoPlaceAndMakesNone(t *testing.T) {
	const places, workers, rounds = 3, 16, 3000
	a := newAdmission(places)
	var running, most atomic.Int32
	var all sync.WaitGroup
	for i := range uint64(workers) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(i, 1))
			for range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				if r.IntN(2) == 0 {
					go cancel()
				}
				if a.admit(ctx) == nil {
					n := running.Add(1)
					if m := most.Load(); n > m {
						most.CompareAndSwap(m, n)
					}
					running.Add(-1)
					a.giveBack()
				}
				cancel()
			}
		})
	}
	all.Wait()
	if n := most.Load(); n > places {
		t.Errorf("%d ran at a time, with %d places", n, places)
	}
	if free(a) != places || a.queue.Len() != 0 {
		t.Errorf("in the end %d places are free and %d wait, want %d and none", free(a), a.queue.Len(), places)
	}
}

// A handler that ignores its context never releases its place. The end of the session must
// wake a caller that waits for it, as that may have no deadline.
func TestTheEndOfASessionReachesCallersThatWaitForAPlace(t *testing.T) {
	for name, end := range map[string]func(*bed){
		"stop":  func(b *bed) { b.server.Stop() },
		"close": func(b *bed) { _ = b.session.Close(status.Error(codes.Unavailable, "closed")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				b := start(t, handlers{Unary: func(_ context.Context, in *msg) (*msg, error) {
					<-release // ignores its context
					return in, nil
				}}, func(c *options.Server) { c.SetMaxStreams(1); c.PlaceHandlers = options.OnWorkers }, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				calls := make(chan error, 3)
				for range 2 {
					go func() {
						_, err := b.call(ctx)
						calls <- err
					}()
					synctest.Wait()
				}
				go func() {
					_, err := b.NewStream(ctx, streamDesc, streamMethod)
					calls <- err
				}()
				synctest.Wait()
				end(b)
				synctest.Wait()
				if n := len(calls); n != 3 {
					t.Errorf("%d calls of 3 ended: those that wait for a place were forgotten", n)
				}
				close(release)
				for range 3 {
					callservice.WantCode(t, <-calls, codes.Unavailable)
				}
			})
		})
	}
}

// A drain refuses the calls that wait for a place, and lets those that run finish.
func TestADrainRefusesCallsThatWaitForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := start(t, handlers{Unary: func(_ context.Context, in *msg) (*msg, error) {
			<-release
			return in, nil
		}}, func(c *options.Server) { c.SetMaxStreams(1); c.PlaceHandlers = options.OnWorkers }, nil)
		runs, waits := make(chan error, 1), make(chan error, 1)
		for _, ended := range []chan error{runs, waits} {
			go func() {
				_, err := b.call(t.Context())
				ended <- err
			}()
			synctest.Wait()
		}
		go b.server.GracefulStop()
		callservice.WantCode(t, <-waits, codes.Unavailable)
		close(release)
		callservice.WantCode(t, <-runs, codes.OK)
	})
}

func TestEveryCallGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, handlers{}, func(c *options.Server) { c.SetMaxStreams(2) }, nil)
		for range 5 {
			_, err := b.call(t.Context())
			callservice.WantCode(t, err, codes.OK)
			_, err = b.call(context.Background())
			callservice.WantCode(t, err, codes.OK)
			callservice.WantCode(t, b.Invoke(t.Context(), "/test.Service/None", new(msg), new(msg)), codes.Unimplemented)
			callservice.WantCode(t, b.Invoke(t.Context(), streamMethod, new(msg), new(msg)), codes.OK)
			s, err := b.NewStream(t.Context(), streamDesc, "/test.Service/None")
			if err != nil {
				t.Fatal(err)
			}
			callservice.WantCode(t, s.RecvMsg(new(msg)), codes.Unimplemented)
			const odd = "\n" // which no handler sees
			callservice.WantCode(t, b.Invoke(t.Context(), unaryMethod+odd, new(msg), new(msg)), codes.Internal)
			s, err = b.NewStream(t.Context(), streamDesc, streamMethod+odd)
			if err != nil {
				t.Fatal(err)
			}
			callservice.WantCode(t, s.RecvMsg(new(msg)), codes.Internal)
			synctest.Wait()
		}
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		for c := range b.server.conns {
			if free(&c.admission) != 2 || len(c.admission.running) > 0 {
				t.Errorf("%d places are free, want 2; %v runs", free(&c.admission), c.admission.running)
			}
		}
	})
}

// A refusable stream keeps the reason of its abort.
type refusable struct {
	abortable
	mu     sync.Mutex
	reason error
}

func (s *refusable) Abort(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = reason
}

// A connection that takes no new calls is not idle before a call that waited for a place was
// refused: a session that is closed before that aborts the call, and its caller cannot know
// that no handler has seen it.
func TestACallThatWaitedIsRefusedBeforeItsConnectionIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		server := New(limited(1), Config{})
		server.Register(&desc, handlers{Stream: func(grpc.ServerStream) error {
			<-release
			return nil
		}}, nil)
		c := server.AcceptClient(callservice.Distant{}, nil).(*serverConn)
		waits := new(refusable)
		for _, s := range []link.Stream{new(abortable), waits} {
			if err := c.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: streamMethod}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		mu := &server.scheduler.mu
		mu.Lock() // so that the call that waits learns nothing before the handler has returned
		a := &c.admission
		last := a.running[0]
		a.refuseLocked(refused("the server is stopping"))
		a.endLocked(last)
		if a.isIdle {
			t.Error("the connection is idle although a call is still to be refused")
		}
		a.running, a.taken = append(a.running, last), 1 // its worker gives the place back
		mu.Unlock()
		synctest.Wait()
		waits.mu.Lock()
		if !errors.Is(waits.reason, link.ErrUnprocessed) {
			t.Errorf("the call that waited ends with %v", waits.reason)
		}
		waits.mu.Unlock()
		close(release)
		<-c.idle
		c.Closed(context.Canceled)
		synctest.Wait()
		server.scheduler.close()
	})
}
