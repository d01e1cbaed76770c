package server

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// onWorkers makes a server run all handlers on workers.
func onWorkers(c *options.Server) { c.PlaceHandlers = options.OnWorkers }

// idleWorkers returns the number of the server's idle workers.
func (b *bed) idleWorkers() int {
	w := &b.server.scheduler
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.workers.idle)
}

func TestAWorkerIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := make(map[string]int)
		b := start(t, handlers{Unary: func(_ context.Context, in *msg) (*msg, error) {
			seen[goroutine()]++
			return in, nil
		}}, onWorkers, nil)
		for range 10 {
			_, err := b.call(t.Context())
			callservice.WantCode(t, err, codes.OK)
			synctest.Wait()
		}
		if len(seen) != 1 || b.idleWorkers() != 1 {
			t.Errorf("ten calls in turn ran on %d goroutines, of which %d are kept", len(seen), b.idleWorkers())
		}
	})
}

// goroutine identifies the calling goroutine.
func goroutine() string {
	buf := make([]byte, 64)
	return string(buf[:runtime.Stack(buf, false)])[:20]
}

// crowd makes n calls run at the same time.
func (b *bed) crowd(t *testing.T, n int, running *sync.WaitGroup, release chan struct{}) {
	running.Add(n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			_, err := b.call(t.Context())
			callservice.WantCode(t, err, codes.OK)
		})
	}
	running.Wait()
	close(release)
	all.Wait()
	synctest.Wait()
}

func TestABurstOfCallsLeavesABoundedNumberOfWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		release := make(chan struct{})
		b := start(t, handlers{Unary: func(_ context.Context, in *msg) (*msg, error) {
			running.Done()
			<-release
			return in, nil
		}}, onWorkers, nil)
		b.crowd(t, maxIdleWorkers+50, &running, release)
		if n := b.idleWorkers(); n != maxIdleWorkers {
			t.Errorf("%d workers are kept, want %d", n, maxIdleWorkers)
		}
	})
}

// Calls that come while no worker gets to run are run by few workers.
func TestAWorkerRunsTheCallsThatHaveCome(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const calls = 50
		conn := newServerCall(newOpen()).conn
		w := &conn.server.scheduler
		defer w.close()
		var ran atomic.Int32
		for range calls {
			c := newServerCall(newOpen())
			c.conn = conn
			c.unary = endless()
			c.method = &method{unary: &grpc.MethodDesc{Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
				ran.Add(1)
				return nil, context.Canceled
			}}}
			if err := w.start(c, false); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if ran.Load() != calls || w.workers.queue != (callQueue{}) {
			t.Errorf("%d of %d calls were run", ran.Load(), calls)
		}
		if n := len(w.workers.idle); n > calls/2 {
			t.Errorf("%d workers ran %d calls, one after the other on one processor", n, calls)
		}
	})
}

func TestNoCallWaitsForAHandlerThatExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, handlers{Unary: func(context.Context, *msg) (*msg, error) {
			runtime.Goexit()
			return nil, nil
		}}, onWorkers, nil)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, err := b.call(t.Context())
				callservice.WantCode(t, err, codes.Internal)
			})
		}
		all.Wait()
	})
}

func TestStopEndsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		release, late := make(chan struct{}), make(chan struct{})
		b := start(t, handlers{
			Unary: func(_ context.Context, in *msg) (*msg, error) {
				running.Done()
				<-release
				return in, nil
			},
			Stream: func(grpc.ServerStream) error {
				<-late // ignores its context
				return nil
			},
		}, onWorkers, nil)
		b.crowd(t, 5, &running, release)
		if _, err := b.NewStream(t.Context(), streamDesc, streamMethod); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.server.Stop()
		if n := b.idleWorkers(); n != 0 {
			t.Errorf("%d workers are still kept", n)
		}
		close(late)
		synctest.Wait()
		if n := b.idleWorkers(); n != 0 {
			t.Errorf("%d workers wait for calls that nobody will make", n)
		}
	})
}

func TestGoexitEndsCallAndWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exit := true
		b := start(t, handlers{
			Unary: func(_ context.Context, in *msg) (*msg, error) {
				if exit {
					runtime.Goexit()
				}
				return in, nil
			},
			Stream: func(grpc.ServerStream) error {
				runtime.Goexit()
				return nil
			},
		}, func(c *options.Server) { c.SetMaxStreams(1); c.PlaceHandlers = options.OnWorkers }, nil)
		for range 3 {
			_, err := b.call(t.Context())
			callservice.WantCode(t, err, codes.Internal)
			s, err := b.NewStream(t.Context(), streamDesc, streamMethod)
			if err != nil {
				t.Fatal(err)
			}
			callservice.WantCode(t, s.RecvMsg(new(msg)), codes.Internal)
			synctest.Wait()
		}
		if n := b.idleWorkers(); n != 0 {
			t.Errorf("%d workers are kept, though all of them exited", n)
		}
		exit = false
		_, err := b.call(t.Context())
		callservice.WantCode(t, err, codes.OK)
		b.server.GracefulStop() // waits for calls that it counts as running
	})
}

func TestAWorkerThatIsStartedAsTheServerStopsEnds(t *testing.T) {
	for range 300 {
		conn := newServerCall(newOpen()).conn
		w := &conn.server.scheduler
		var all sync.WaitGroup
		var served sync.WaitGroup
		for range 4 {
			served.Add(1)
			c := newServerCall(newOpen())
			c.conn = conn
			c.unary = endless()
			c.method = &method{unary: &grpc.MethodDesc{Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
				served.Done()
				return nil, context.Canceled
			}}}
			all.Go(func() {
				if err := w.start(c, false); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(w.close)
		all.Wait()
		served.Wait() // a call that was handed over runs; leak.Main sees the rest
	}
}

// TestUnusedWorkersEnd, and those that calls need stay. An idle server has none, and no timer.
func TestUnusedWorkersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		var release chan struct{}
		b := start(t, handlers{Unary: func(_ context.Context, in *msg) (*msg, error) {
			running.Done()
			<-release
			return in, nil
		}}, onWorkers, nil)
		calls := func(n int) {
			release = make(chan struct{})
			b.crowd(t, n, &running, release)
		}
		idle := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if n := b.idleWorkers(); n != want {
				t.Errorf("%s %d workers are idle, want %d", when, n, want)
			}
		}
		for range 2 {
			calls(300)
			idle("after 300 calls", maxIdleWorkers)
			for range 20 {
				time.Sleep(idleTime / 4)
				calls(3)
			}
			idle("while 3 are used", 3)
			time.Sleep(2 * idleTime)
			idle("when none is used", 0)
			w := &b.server.scheduler
			w.mu.Lock()
			if w.workers.timed {
				t.Error("the timer is still set")
			}
			w.mu.Unlock()
		}
		calls(10) // the workers end with the server
	})
}
