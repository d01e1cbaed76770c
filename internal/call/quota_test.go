package call

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// waitFor starts a goroutine that acquires a place, and returns a channel for the result.
func waitFor(ctx context.Context, q *quota) <-chan error {
	got := make(chan error, 1)
	go func() { got <- q.acquire(ctx) }()
	synctest.Wait()
	return got
}

// taken reports whether a place was taken.
func taken(got <-chan error) bool {
	synctest.Wait()
	return len(got) == 1
}

func TestAQuotaBoundsWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &quota{free: 2}
		first, second, third := waitFor(t.Context(), q), waitFor(t.Context(), q), waitFor(t.Context(), q)
		if !taken(first) || !taken(second) || taken(third) {
			t.Fatalf("of two places: %v, %v, %v", taken(first), taken(second), taken(third))
		}
		q.release()
		if !taken(third) {
			t.Error("a place that was given back is not taken")
		}
		q.release()
		q.release()
		if q.free != 2 || q.queue.Len() != 0 {
			t.Errorf("in the end %d places are free and %d wait", q.free, q.queue.Len())
		}
	})
}

// TestManyWhoGiveUpAPlaceAtOnce, as they do at a common deadline, each take the same time
// however many wait: the quota is locked meanwhile.
func TestManyWhoGiveUpAPlaceAtOnce(t *testing.T) {
	const few, times = 3_000, 8
	giveUp := func(n int) time.Duration {
		q := &quota{}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if err := q.acquire(ctx); err == nil {
					t.Error("there is a place")
				}
			})
		}
		for queued := 0; queued < n; time.Sleep(time.Millisecond) {
			q.mu.Lock()
			queued = q.queue.Len()
			q.mu.Unlock()
		}
		begun := time.Now()
		cancel()
		all.Wait()
		if q.free != 0 || q.queue.Len() != 0 {
			t.Errorf("in the end %d places are free and %d wait", q.free, q.queue.Len())
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

func TestAQuotaServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &quota{}
		var waiting []<-chan error
		for range 10 {
			waiting = append(waiting, waitFor(t.Context(), q))
		}
		for i := range waiting {
			q.release()
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
		q := &quota{}
		first := waitFor(t.Context(), q)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		second := waitFor(short, q)
		third := waitFor(t.Context(), q)
		if err := <-second; err != context.DeadlineExceeded {
			t.Fatalf("the second gives up with %v", err)
		}
		if q.free != 0 || q.queue.Len() != 2 {
			t.Errorf("%d free, %d wait: who gave up was counted", q.free, q.queue.Len())
		}
		q.release()
		if !taken(first) || taken(third) {
			t.Error("who waits longest was not served")
		}
		q.release()
		if !taken(third) {
			t.Error("the third was not served")
		}
		q.release()
		if q.free != 1 {
			t.Errorf("%d places are free, want 1", q.free)
		}
	})
}

func TestAContextThatHasEndedMayTakeAFreePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		q := &quota{free: 1}
		if err := q.acquire(ctx); err != nil {
			t.Errorf("nobody waited: %v", err)
		}
		if err := q.acquire(ctx); err != context.Canceled || q.queue.Len() != 0 {
			t.Errorf("%v, %d wait", err, q.queue.Len())
		}
	})
}

// A caller that is granted a place just as its context ends passes it on.
func TestAQuotaLosesNoPlaceAndMakesNone(t *testing.T) {
	const places, workers, rounds = 3, 16, 3000
	q := &quota{free: places}
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
				if q.acquire(ctx) == nil {
					n := running.Add(1)
					if m := most.Load(); n > m {
						most.CompareAndSwap(m, n)
					}
					running.Add(-1)
					q.release()
				}
				cancel()
			}
		})
	}
	all.Wait()
	if n := most.Load(); n > places {
		t.Errorf("%d ran at a time, with %d places", n, places)
	}
	if q.free != places || q.queue.Len() != 0 {
		t.Errorf("in the end %d places are free and %d wait, want %d and none", q.free, q.queue.Len(), places)
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
				b := start(t, handlers{unary: func(_ context.Context, in *message) (*message, error) {
					<-release // ignores its context
					return in, nil
				}}, func(c *ServerConfig) { c.MaxStreams, c.Placement = 1, OnWorkers }, nil)
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
					wantCode(t, <-calls, codes.Unavailable)
				}
			})
		})
	}
}

func TestEveryCallGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, handlers{}, func(c *ServerConfig) { c.MaxStreams = 2 }, nil)
		for range 5 {
			_, err := b.call(t.Context())
			wantCode(t, err, codes.OK)
			_, err = b.call(context.Background())
			wantCode(t, err, codes.OK)
			wantCode(t, b.Invoke(t.Context(), "/test.Service/None", new(message), new(message)), codes.Unimplemented)
			wantCode(t, b.Invoke(t.Context(), streamMethod, new(message), new(message)), codes.OK)
			s, err := b.NewStream(t.Context(), streamDesc, "/test.Service/None")
			if err != nil {
				t.Fatal(err)
			}
			wantCode(t, s.RecvMsg(new(message)), codes.Unimplemented)
			synctest.Wait()
		}
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		for c := range b.server.conns {
			if c.quota.free != 2 || len(c.running) > 0 {
				t.Errorf("%d places are free, want 2; %v runs", c.quota.free, c.running)
			}
		}
	})
}
