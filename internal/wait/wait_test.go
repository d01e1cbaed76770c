package wait_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/goid"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wait"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A kind is a way to wait.
type kind struct {
	name string
	// run runs f on a goroutine or task that may wait with w, and returns when f
	// has.
	run func(f func(w wait.Waiter))
}

func kinds(t *testing.T) []kind {
	return []kind{
		{"goroutine", func(f func(w wait.Waiter)) { f(&checked{t: t}) }},
		{"task", func(f func(w wait.Waiter)) {
			loop := transporttest.NewTasks()
			loop.Go(func() {
				f(loop)
				loop.Close()
			})
			loop.Run()
		}},
	}
}

// eachKind runs f as a subtest for each kind.
func eachKind(t *testing.T, f func(t *testing.T, w wait.Waiter)) {
	for _, k := range kinds(t) {
		t.Run(k.name, func(t *testing.T) {
			k.run(func(w wait.Waiter) { f(t, w) })
		})
	}
}

// checked is a Pool that fails the test if a released Parker holds a token.
type checked struct {
	wait.Pool
	t *testing.T
}

var cancelled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (c *checked) Release(p wait.Parker) {
	if holdsToken(p) {
		c.t.Error("a Parker is released with a token")
	}
	c.Pool.Release(p)
}

// holdsToken reports whether p holds a token, and takes it.
func holdsToken(p wait.Parker) bool {
	for range 20 { // with a token and a done context, Park may do either
		if p.Park(cancelled) == nil {
			return true
		}
	}
	return false
}

func TestTokenMayComeFirst(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		p := w.Parker()
		p.Unpark()
		if err := p.Park(context.Background()); err != nil {
			t.Error(err)
		}
		if holdsToken(p) {
			t.Error("the token is still there")
		}
	})
}

func TestSecondTokenIsDropped(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		p := w.Parker()
		p.Unpark()
		p.Unpark()
		if err := p.Park(context.Background()); err != nil {
			t.Error(err)
		}
		if holdsToken(p) {
			t.Error("there were two tokens")
		}
	})
}

func TestParkEndsWithItsContext(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		p := w.Parker()
		if err := p.Park(cancelled); err != context.Canceled {
			t.Errorf("Park returns %v, want Canceled", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		if err := p.Park(ctx); err != context.Canceled {
			t.Errorf("Park returns %v, want Canceled", err)
		}
		p.Unpark()
		if err := p.Park(context.Background()); err != nil {
			t.Errorf("a token after that is lost: %v", err)
		}
	})
}

// TestTokenIsTakenOrStays races the context's end with the token.
func TestTokenIsTakenOrStays(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		p := w.Parker()
		for range 2000 {
			ctx, cancel := context.WithCancel(context.Background())
			var both sync.WaitGroup
			both.Go(cancel)
			both.Go(p.Unpark)
			err := p.Park(ctx)
			both.Wait()
			if err != nil && err != context.Canceled {
				t.Fatal(err)
			}
			if left := holdsToken(p); left != (err != nil) {
				t.Fatalf("Park returned %v, and a token is left: %t", err, left)
			}
		}
	})
}

func TestEachTokenWakesItsSleeperOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		there, back := wait.NewGoroutine(), w.Parker()
		const n = 2000
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range n {
				_ = there.Park(context.Background())
				back.Unpark()
			}
		}()
		for range n {
			there.Unpark()
			_ = back.Park(context.Background())
		}
		<-done
		if holdsToken(there) || holdsToken(back) {
			t.Error("a token is left")
		}
	})
}

// atUnlock is a lock that calls a function after each release.
type atUnlock struct {
	sync.Mutex
	then func()
}

func (l *atUnlock) Unlock() {
	l.Mutex.Unlock()
	if l.then != nil {
		l.then()
	}
}

func TestWakeThatComesBeforeTheSleepIsNotLost(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		var spot wait.Cond
		for wakes := 1; wakes <= 3; wakes++ {
			tokens := 0
			lock := &atUnlock{}
			lock.then = func() { // between the lock's release and Park
				for range wakes {
					lock.Mutex.Lock()
					p := spot.Wake()
					lock.Mutex.Unlock()
					if p != nil {
						tokens++
						wait.Unpark(p)
					}
				}
			}
			lock.Lock()
			spot.Wait(lock, w)
			lock.then = nil
			if tokens != 1 {
				t.Errorf("%d wake-ups gave %d tokens, want 1", wakes, tokens)
			}
			if spot.Wake() != nil {
				t.Error("somebody still sleeps")
			}
			lock.Unlock()
		}
	})
}

func TestWakeOfNobody(t *testing.T) {
	var spot wait.Cond
	if p := spot.Wake(); p != nil {
		t.Errorf("Wake returns %v, want nil", p)
	}
	wait.Unpark(nil)
}

// TestCondLosesNoWakeUp lets several goroutines change a number that one waits for, and
// counts sleeps and tokens.
func TestCondLosesNoWakeUp(t *testing.T) {
	const changers, changes = 4, 3000
	waitFor := func(t *testing.T, w wait.Waiter) {
		var (
			mu     sync.Mutex
			spot   wait.Cond
			number int
			sleeps int
			tokens atomic.Int64
			all    sync.WaitGroup
		)
		for range changers {
			all.Go(func() {
				for range changes {
					mu.Lock()
					number++
					p := spot.Wake()
					mu.Unlock()
					if p != nil {
						tokens.Add(1)
					}
					wait.Unpark(p)
				}
			})
		}
		mu.Lock()
		for seen := 0; seen < changers*changes; seen = number {
			for number == seen {
				sleeps++
				spot.Wait(&mu, w)
			}
		}
		if p := spot.Wake(); p != nil {
			t.Error("somebody sleeps at the end")
		}
		mu.Unlock()
		all.Wait()
		if int64(sleeps) != tokens.Load() {
			t.Errorf("%d sleeps, %d tokens", sleeps, tokens.Load())
		}
	}
	eachKind(t, waitFor)
	t.Run("no waiter", func(t *testing.T) { waitFor(t, nil) })
}

// TestCondsPassABall makes two waiters wake each other, so that a lost wake-up blocks both.
func TestCondsPassABall(t *testing.T) {
	const rounds = 5000
	play := func(t *testing.T, w wait.Waiter) {
		var mu sync.Mutex
		var spots [2]wait.Cond
		turn := 0
		player := func(me int, w wait.Waiter) {
			for range rounds {
				mu.Lock()
				for turn != me {
					spots[me].Wait(&mu, w)
				}
				turn = 1 - me
				p := spots[1-me].Wake()
				mu.Unlock()
				wait.Unpark(p)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			player(0, nil)
		}()
		player(1, w)
		<-done
	}
	eachKind(t, play)
	t.Run("no waiter", func(t *testing.T) { play(t, nil) })
}

// TestTasksPassABall is the same between two tasks of one loop: no goroutine
// ever blocks.
func TestTasksPassABall(t *testing.T) {
	loop := transporttest.NewTasks()
	var mu sync.Mutex
	var spots [2]wait.Cond
	turn, left := 0, 2
	for me := range 2 {
		loop.Go(func() {
			for range 1000 {
				mu.Lock()
				for turn != me {
					spots[me].Wait(&mu, loop)
				}
				turn = 1 - me
				p := spots[1-me].Wake()
				mu.Unlock()
				wait.Unpark(p)
			}
			if left--; left == 0 {
				loop.Close()
			}
		})
	}
	loop.Run()
	if left != 0 {
		t.Errorf("%d tasks were left", left)
	}
}

func TestPoolInABubble(t *testing.T) {
	for range 2 { // the second bubble must not get Parkers of the first
		synctest.Test(t, func(t *testing.T) {
			pool := &checked{t: t}
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					for range 100 {
						p := pool.Parker()
						if holdsToken(p) {
							t.Error("the pool gives a Parker with a token")
						}
						go p.Unpark()
						if err := p.Park(context.Background()); err != nil {
							t.Error(err)
						}
						pool.Release(p)
					}
				})
			}
			all.Wait()
			p := pool.Parker()
			var err atomic.Value
			ctx, cancel := context.WithCancel(t.Context())
			go func() { err.Store(p.Park(ctx)) }()
			synctest.Wait() // the wait is durable blocking for synctest
			if err.Load() != nil {
				t.Error("Park does not wait")
			}
			cancel()
			synctest.Wait()
			if got, _ := err.Load().(error); !errors.Is(got, context.Canceled) {
				t.Errorf("Park returns %v", got)
			}
		})
	}
}

// yielder counts the calls of Yield.
type yielder struct {
	wait.Pool
	times int
}

func (y *yielder) Yield() { y.times++ }

func TestYieldAsksTheWaiter(t *testing.T) {
	y := &yielder{}
	wait.Yield(y)
	wait.Yield(nil)
	wait.Yield(&wait.Pool{})
	if y.times != 1 {
		t.Errorf("asked %d times", y.times)
	}
}

func TestMutexExcludes(t *testing.T) {
	var m wait.Mutex
	var all sync.WaitGroup
	number := 0 // unsynchronised, for the race detector
	for i := range 8 {
		all.Go(func() {
			for range 500 {
				if i%2 == 0 || !m.TryLock() {
					m.Lock(nil)
				}
				number++
				m.Unlock()
			}
		})
	}
	all.Wait()
	if number != 8*500 {
		t.Errorf("counted to %d", number)
	}
	if !m.TryLock() || m.TryLock() {
		t.Error("TryLock does not take the lock, or takes it twice")
	}
}

func TestMutexIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m wait.Mutex
		m.Lock(nil)
		var order []int
		for i := range 5 {
			go func() {
				m.Lock(nil)
				order = append(order, i)
				if m.TryLock() {
					t.Error("the lock was free in between")
				}
				m.Unlock()
			}()
			synctest.Wait()
		}
		m.Unlock()
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
			t.Errorf("served %v", order)
		}
	})
}

func TestWaitContextEndsWithItsContext(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		var mu sync.Mutex
		var spot wait.Cond
		mu.Lock()
		if err := spot.WaitContext(cancelled, &mu, w); err != context.Canceled {
			t.Errorf("WaitContext returns %v", err)
		}
		if spot.Wake() != nil {
			t.Error("somebody still sleeps")
		}
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		if err := spot.WaitContext(ctx, &mu, w); err != context.Canceled {
			t.Errorf("WaitContext returns %v", err)
		}
		if spot.Wake() != nil {
			t.Error("somebody still sleeps")
		}
		mu.Unlock() // it was held
	})
}

func TestWaitContextOfOneWhoIsWoken(t *testing.T) {
	for name, ctx := range map[string]context.Context{"never done": context.Background(), "done at some time": t.Context()} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, w wait.Waiter) {
				var spot wait.Cond
				lock := &atUnlock{}
				lock.Lock()
				lock.then = func() {
					lock.Mutex.Lock()
					p := spot.Wake()
					lock.Mutex.Unlock()
					wait.Unpark(p)
				}
				if err := spot.WaitContext(ctx, lock, w); err != nil {
					t.Errorf("WaitContext returns %v", err)
				}
				lock.then = nil
				lock.Unlock()
			})
		})
	}
}

// TestWaitContextWaitsForATokenOnItsWay: Wake comes before the context's end, and Unpark
// after it.
func TestWaitContextWaitsForATokenOnItsWay(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		var spot wait.Cond
		var token wait.Parker
		lock, unlocks := &atUnlock{}, 0
		lock.Lock()
		lock.then = func() {
			switch unlocks++; unlocks {
			case 1: // before Park, which finds the context done
				lock.Mutex.Lock()
				token = spot.Wake()
				lock.Mutex.Unlock()
			case 2: // when that was found out
				go wait.Unpark(token)
			}
		}
		if err := spot.WaitContext(cancelled, lock, w); err != nil || token == nil {
			t.Errorf("WaitContext returns %v", err)
		}
		if unlocks != 2 {
			t.Errorf("it was unlocked %d times", unlocks)
		}
		lock.then = nil
		lock.Unlock()
	})
}

// TestWaitContextAgainstItsContext: each sleep ends with a token or the context's error. The
// waiter checks that no token is left in either case.
func TestWaitContextAgainstItsContext(t *testing.T) {
	const rounds = 3000
	for name, w := range map[string]wait.Waiter{"pool": &checked{t: t}, "no waiter": nil} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var spot wait.Cond
			var errs, wakes int
			for i := range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				woken := make(chan bool, 1)
				mu.Lock()
				go func() {
					if i%3 == 0 {
						runtime.Gosched()
					}
					mu.Lock()
					p := spot.Wake()
					mu.Unlock()
					if i%2 == 0 {
						runtime.Gosched()
					}
					wait.Unpark(p)
					woken <- p != nil
				}()
				go cancel()
				err := spot.WaitContext(ctx, &mu, w)
				if spot.Wake() != nil {
					t.Fatal("somebody still sleeps")
				}
				mu.Unlock()
				switch was := <-woken; {
				case was != (err == nil), err != nil && err != context.Canceled:
					t.Fatalf("WaitContext returns %v, and was woken: %v", err, was)
				case was:
					wakes++
				default:
					errs++
				}
			}
			if wakes+errs != rounds {
				t.Errorf("%d were woken, %d left", wakes, errs)
			}
		})
	}
}

// What a goroutine waits for runs on that goroutine, even if the Waiter is a loop.
func TestOutsideALoopNothingRunsElsewhere(t *testing.T) {
	for _, w := range []wait.Waiter{nil, transporttest.NewTasks()} {
		var ran uintptr
		_ = wait.Outside(w, func() error { ran = goid.ID(); return nil })
		if ran != goid.ID() {
			t.Errorf("with the Waiter %T the function ran on another goroutine", w)
		}
	}
}

// What runs outside of a task has returned when the task goes on.
func TestWhatRunsOutsideIsWaitedFor(t *testing.T) {
	own := errors.New("own")
	check := func(t *testing.T, w wait.Waiter) {
		ran := false
		if err := wait.Outside(w, func() error { ran = true; return own }); err != own || !ran {
			t.Errorf("Outside returns %v", err)
		}
	}
	eachKind(t, check)
	check(t, nil)
}

// A panic of what runs outside of a task continues in the task.
func TestAPanicOutsideIsTheTasks(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		defer func() {
			if value := recover(); value != "own" {
				t.Errorf("the task recovers %v", value)
			}
		}()
		_ = wait.Outside(w, func() error { panic("own") })
	})
}

// A task does not wait for ever for what ends its goroutine.
func TestAGoexitOutsideIsAnError(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		if err := wait.Outside(w, func() error { runtime.Goexit(); return nil }); err == nil {
			t.Error("Outside returns no error")
		}
	})
}
