package server

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// testContext returns a context like that of a handler on a worker.
func testContext() *serverCall { return newServerCall(newOpen()) }

// isDone callservice.Reports whether Done is closed.
func isDone(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

func TestAContextEndsOnceForOneReason(t *testing.T) {
	for name, early := range map[string]bool{"Done before the end": true, "Done after the end": false} {
		t.Run(name, func(t *testing.T) {
			c := testContext()
			if early && isDone(c) || c.Err() != nil {
				t.Fatal("a new context has ended")
			}
			c.cancel(context.DeadlineExceeded)
			c.cancel(context.Canceled)
			if !isDone(c) || c.Err() != context.DeadlineExceeded || context.Cause(c) != context.DeadlineExceeded {
				t.Errorf("done %v, %v, because of %v", isDone(c), c.Err(), context.Cause(c))
			}
			if first := c.Done(); first != c.Done() {
				t.Error("Done returns one channel and then another")
			}
		})
	}
}

func TestAContextReportsItsDeadline(t *testing.T) {
	if d, ok := testContext().Deadline(); ok {
		t.Errorf("without one: %v", d)
	}
	o := newOpen()
	o.Deadline = time.Now().Add(time.Hour)
	if d, ok := newServerCall(o).Deadline(); !ok || !d.Equal(o.Deadline) {
		t.Errorf("got %v, %v", d, ok)
	}
}

func TestADeadlineFromAWireEndsTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpen()
		o.Deadline = time.Now().Add(time.Second)
		c := newServerCall(o)
		c.startTimer()
		begin := time.Now()
		<-c.Done()
		if d := time.Since(begin); d != time.Second || c.Err() != context.DeadlineExceeded {
			t.Errorf("after %v: %v", d, c.Err())
		}

		o = newOpen()
		o.Deadline = time.Now().Add(-time.Second)
		c = newServerCall(o)
		c.startTimer()
		<-c.Done()
		if c.Err() != context.DeadlineExceeded {
			t.Errorf("a deadline that has passed: %v", c.Err())
		}
	})
}

func TestACallThatEndsBeforeItsDeadlineStopsItsTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpen()
		o.Deadline = time.Now().Add(time.Hour)
		c := newServerCall(o)
		c.startTimer()
		timer := c.more.timer
		c.cancel(context.Canceled)
		if timer.Stop() {
			t.Error("the timer was still running")
		}
		c = newServerCall(o)
		c.cancel(context.Canceled)
		if c.startTimer(); c.more != nil {
			t.Error("a context that has ended started a timer")
		}
	})
}

func TestDerivedContextsEndWithTheirParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		boom := errors.New("boom")
		for name, derive := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"WithCancel": context.WithCancel,
			"WithTimeout": func(p context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(p, time.Hour)
			},
			"WithCancelCause": func(p context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(p)
				return ctx, func() { cancel(boom) }
			},
			"WithValue, WithCancel": func(p context.Context) (context.Context, context.CancelFunc) {
				return context.WithCancel(context.WithValue(p, key{}, 1))
			},
			"twice": func(p context.Context) (context.Context, context.CancelFunc) {
				p, outer := context.WithCancel(p)
				ctx, inner := context.WithTimeout(p, time.Hour)
				return ctx, func() { inner(); outer() }
			},
		} {
			c := testContext()
			ctx, cancel := derive(c)
			if ctx.Err() != nil {
				t.Errorf("%s: has ended already", name)
			}
			c.cancel(context.DeadlineExceeded)
			<-ctx.Done()
			if ctx.Err() != context.DeadlineExceeded || context.Cause(ctx) != context.DeadlineExceeded {
				t.Errorf("%s: %v, because of %v", name, ctx.Err(), context.Cause(ctx))
			}
			cancel()

			ctx, cancel = derive(c) // which has ended
			if <-ctx.Done(); ctx.Err() != context.DeadlineExceeded {
				t.Errorf("%s of a context that has ended: %v", name, ctx.Err())
			}
			cancel()
		}
	})
}

func TestTheEndOfADerivedContextIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testContext()
		boom := errors.New("boom")
		ctx, cancel := context.WithCancelCause(c)
		cancel(boom)
		short, stop := context.WithTimeout(c, time.Second)
		defer stop()
		<-short.Done()
		synctest.Wait() // package context closes Done before it lets go of the parent
		if ctx.Err() != context.Canceled || context.Cause(ctx) != boom || short.Err() != context.DeadlineExceeded {
			t.Errorf("%v because of %v, and %v", ctx.Err(), context.Cause(ctx), short.Err())
		}
		if c.Err() != nil || isDone(c) {
			t.Errorf("the parent ended: %v", c.Err())
		}
		if n := len(c.more.afters); n != 0 {
			t.Errorf("%d functions wait for the end of a context on behalf of contexts that have ended", n)
		}
		c.cancel(context.Canceled)
	})
}

func TestDerivedContextsNeedNoGoroutines(t *testing.T) {
	c := testContext()
	var cancels []context.CancelFunc
	for range 100 {
		ctx, cancel := context.WithCancel(c)
		cancels = append(cancels, cancel)
		context.AfterFunc(ctx, func() {})
		_, cancel = context.WithTimeout(c, time.Hour)
		cancels = append(cancels, cancel)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if n := bytes.Count(stacks, []byte("created by context.(*cancelCtx).propagateCancel")); n > 0 {
		t.Errorf("%d goroutines for 200 contexts", n)
	}
	for _, cancel := range cancels {
		cancel()
	}
	c.cancel(context.Canceled)
}

func TestAfterFuncRunsOnceAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testContext()
		var ran [3]atomic.Int32
		for i := range ran {
			context.AfterFunc(c, func() { ran[i].Add(1) })
		}
		synctest.Wait()
		for i := range ran {
			if n := ran[i].Load(); n != 0 {
				t.Errorf("function %d ran before the end", i)
			}
		}
		c.cancel(context.Canceled)
		c.cancel(context.Canceled)
		synctest.Wait()
		for i := range ran {
			if n := ran[i].Load(); n != 1 {
				t.Errorf("function %d ran %d times", i, n)
			}
		}
		late := false
		stop := context.AfterFunc(c, func() { late = true })
		synctest.Wait()
		if !late || stop() {
			t.Errorf("after the end: ran %v", late)
		}
	})
}

func TestAStoppedAfterFuncDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testContext()
		var ran [5]bool
		var stops [5]func() bool
		for i := range ran {
			stops[i] = c.AfterFunc(func() { ran[i] = true })
		}
		for _, i := range []int{0, 3} {
			if !stops[i]() {
				t.Errorf("stop of %d says that it was too late", i)
			}
			if stops[i]() {
				t.Errorf("the second stop of %d says that it stopped something", i)
			}
		}
		c.cancel(context.Canceled)
		synctest.Wait()
		for i, stop := range stops {
			if stop() {
				t.Errorf("stop of %d after the end says that it stopped something", i)
			}
		}
		if ran != [5]bool{false, true, true, false, true} {
			t.Errorf("these ran: %v", ran)
		}
	})
}

func TestStoppingRacesWithTheEnd(t *testing.T) {
	for range 2000 {
		c := testContext()
		var ran atomic.Int32
		var stopped bool
		stop := c.AfterFunc(func() { ran.Add(1) })
		var both sync.WaitGroup
		both.Go(func() { stopped = stop() })
		both.Go(func() { c.cancel(context.Canceled) })
		both.Wait()
		for !stopped && ran.Load() == 0 {
			runtime.Gosched() // the function may run on its own goroutine
		}
		if n := ran.Load(); stopped && n != 0 || n > 1 {
			t.Fatalf("stopped: %v, and it ran %d times", stopped, n)
		}
	}
}

// Package context calls AfterFunc with a lock held that the function takes. So the function
// must run on its own goroutine if the context has ended before. context.AfterFunc promises
// the same.
func TestAfterFuncOfEndedContextRunsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testContext()
		c.cancel(context.Canceled)
		release, ran := make(chan struct{}), false
		returned := false
		go func() {
			c.AfterFunc(func() {
				<-release
				ran = true
			})
			returned = true
		}()
		synctest.Wait()
		if !returned {
			t.Error("AfterFunc waits for the function: deriving a context just as the call ends deadlocks")
		}
		close(release)
		synctest.Wait()
		if !ran {
			t.Error("the function did not run")
		}
	})
}

// slowDone is a context that ends just after package context has checked for its end.
type slowDone struct{ *serverCall }

func (s slowDone) Done() <-chan struct{} {
	done := s.serverCall.Done()
	if !isDone(s.serverCall) {
		s.cancel(context.Canceled)
		return make(chan struct{})
	}
	return done
}

func TestDerivingAContextJustAsItsParentEnds(t *testing.T) {
	derived := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithCancel(slowDone{testContext()})
		defer cancel()
		<-ctx.Done()
		derived <- ctx.Err()
	}()
	// Not in a synctest bubble, which does not detect deadlocks on mutexes.
	select {
	case err := <-derived:
		if err != context.Canceled {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("context.WithCancel never returns")
	}
}

// inlined returns a context like that of a handler on the goroutine of a caller whose
// context is caller.
func inlined(caller context.Context) *serverCall {
	c := testContext()
	c.inline = true
	c.open.Caller = caller
	c.open.Deadline, _ = caller.Deadline()
	return c
}

func TestAnInlineHandlersContextEndsWithItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, look := range map[string]func(*serverCall){
			"asked for Err": func(*serverCall) {},
			"waits for Done": func(c *serverCall) {
				<-c.Done()
			},
			"has an AfterFunc": func(c *serverCall) {
				ran := make(chan struct{})
				c.AfterFunc(func() { close(ran) })
				<-ran
			},
			"has a derived context": func(c *serverCall) {
				ctx, cancel := context.WithTimeout(c, 24*time.Hour)
				defer cancel()
				<-ctx.Done()
			},
		} {
			caller, cancel := context.WithTimeout(t.Context(), time.Hour)
			c := inlined(caller)
			if c.Err() != nil {
				t.Errorf("%s: ended before its caller", name)
			}
			if name == "asked for Err" {
				time.Sleep(2 * time.Hour)
			}
			look(c)
			if c.Err() != context.DeadlineExceeded || !isDone(c) {
				t.Errorf("%s: %v, done %v", name, c.Err(), isDone(c))
			}
			cancel()

			caller, cancel = context.WithCancel(t.Context())
			c = inlined(caller)
			cancel()
			look(c)
			if c.Err() != context.Canceled || !isDone(c) {
				t.Errorf("%s: a cancelled caller: %v, done %v", name, c.Err(), isDone(c))
			}
		}
	})
}

func TestAnInlineHandlersContextHasNothingElseOfItsCallers(t *testing.T) {
	type key struct{}
	caller, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Hour)
	defer cancel()
	if v := inlined(caller).Value(key{}); v != nil {
		t.Errorf("a value of the caller's: %v", v)
	}
}

// afterFuncs is a caller's context that counts the registered AfterFuncs.
type afterFuncs struct {
	context.Context
	waiting *int
}

// Value hides the inner context, which package context would otherwise use directly.
func (a afterFuncs) Value(any) any { return nil }

func (a afterFuncs) AfterFunc(f func()) func() bool {
	*a.waiting++
	stop := context.AfterFunc(a.Context, f)
	return func() bool {
		*a.waiting--
		return stop()
	}
}

func TestAnInlineHandlersContextLetsGoOfItsCallers(t *testing.T) {
	waiting := 0
	base, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := inlined(afterFuncs{base, &waiting})
	if c.Err() != nil || waiting != 0 {
		t.Errorf("Err, and %d wait for the caller's end", waiting)
	}
	c.Done()
	c.Done()
	c.AfterFunc(func() {})
	if waiting != 1 {
		t.Errorf("%d wait for the caller's end, want one for all", waiting)
	}
	c.cancel(context.Canceled) // as when the handler has returned
	if waiting != 0 {
		t.Errorf("after the call %d still wait for the caller's end", waiting)
	}
}

func TestContextsOfNestedInlineCallsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, cancel := context.WithCancel(t.Context())
		outer := inlined(caller)
		inner := inlined(outer)
		innermost, stop := context.WithCancel(inlined(inner))
		defer stop()
		cancel()
		<-innermost.Done()
		if inner.Err() != context.Canceled || outer.Err() != context.Canceled {
			t.Errorf("inner %v, outer %v", inner.Err(), outer.Err())
		}
	})
}

func TestAContextBearsManyGoroutines(t *testing.T) {
	for range 200 {
		caller, cancel := context.WithCancel(context.Background())
		c := inlined(caller)
		var all sync.WaitGroup
		all.Go(cancel)
		for range 2 {
			all.Go(func() { <-c.Done() })
			all.Go(func() {
				for c.Err() == nil {
					runtime.Gosched()
				}
			})
			all.Go(func() {
				stop := c.AfterFunc(func() {})
				stop()
			})
			all.Go(func() { c.incomingMetadata() })
		}
		all.Wait()
	}
}
