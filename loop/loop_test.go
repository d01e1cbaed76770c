package loop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// closed closes a loop whose tasks end soon.
func closed(t testing.TB, l *Loop) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// must starts a task.
func must(t testing.TB, l *Loop, fn func(ctx context.Context)) {
	t.Helper()
	if err := l.Go(fn); err != nil {
		t.Fatal(err)
	}
}

// repeated returns how often to repeat a test of a race: n, or less in short mode.
func repeated(n int) int {
	if testing.Short() {
		n /= 10
	}
	return n
}

// TestTasksNeedNoLock lets thousands of tasks change plain variables, for the race detector.
func TestTasksNeedNoLock(t *testing.T) { eachKind(t, testTasksNeedNoLock) }

func testTasksNeedNoLock(t *testing.T, newLoop func() *Loop) {
	l := newLoop()
	const starters = 8
	tasks := repeated(500)
	var n, inside int
	var all sync.WaitGroup
	for range starters {
		all.Go(func() {
			for i := range tasks {
				must(t, l, func(ctx context.Context) {
					for step := range 3 {
						if inside++; inside != 1 {
							t.Errorf("%d tasks run at a time", inside)
						}
						n++
						inside--
						switch (i + step) % 3 {
						case 0:
							_ = Sleep(ctx, time.Microsecond)
						case 1:
							_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
						}
					}
				})
			}
		})
	}
	all.Wait()
	closed(t, l)
	if n != starters*tasks*3 {
		t.Errorf("%d steps were made, want %d", n, starters*tasks*3)
	}
}

// TestTurnsComeInTheOrderOfBeingReady checks that tasks run in the order in which they
// became ready, both to begin and to continue.
func TestTurnsComeInTheOrderOfBeingReady(t *testing.T) {
	eachKind(t, testTurnsComeInTheOrderOfBeingReady)
}

func testTurnsComeInTheOrderOfBeingReady(t *testing.T, newLoop func() *Loop) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		var order, want []int
		gate := make(chan struct{})
		_ = l.Post(func() { <-gate }) // holds the loop, so that all queue
		resumes := make([]func(int, error), 50)
		for i := range resumes {
			must(t, l, func(ctx context.Context) {
				order = append(order, i)
				_, _ = Await(ctx, func(resume func(int, error)) { resumes[i] = resume })
				order = append(order, 1000+i)
			})
			want = append(want, i)
		}
		close(gate)
		synctest.Wait()
		_ = l.Post(func() {
			for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(resumes)) {
				resumes[i](0, nil)
				want = append(want, 1000+i)
			}
		})
		closed(t, l)
		if !slices.Equal(order, want) {
			t.Errorf("the order is\n%v, want\n%v", order, want)
		}
	})
}

// TestNobodyIsKeptFromATurn checks that tasks which are ready again at once do not starve
// others.
func TestNobodyIsKeptFromATurn(t *testing.T) { eachKind(t, testNobodyIsKeptFromATurn) }

func testNobodyIsKeptFromATurn(t *testing.T, newLoop func() *Loop) {
	l := newLoop()
	over, others := false, 0
	must(t, l, func(ctx context.Context) {
		for !over {
			_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
		}
	})
	must(t, l, func(ctx context.Context) {
		for !over {
			_ = Sleep(ctx, 0)
		}
	})
	for i := range 100 {
		must(t, l, func(context.Context) {
			others++
			over = i == 99
		})
	}
	closed(t, l)
	if others != 100 {
		t.Errorf("%d others had a turn", others)
	}
}

func TestAwait(t *testing.T) { eachKind(t, testAwait) }

func testAwait(t *testing.T, newLoop func() *Loop) {
	wrong := errors.New("wrong")
	type result struct {
		value string
		err   error
	}
	for name, test := range map[string]struct {
		start func(cancel func(), resume func(string, error))
		want  result
	}{
		"resumed later":         {func(_ func(), resume func(string, error)) { time.AfterFunc(time.Second, func() { resume("v", nil) }) }, result{"v", nil}},
		"resumed at once":       {func(_ func(), resume func(string, error)) { resume("v", nil) }, result{"v", nil}},
		"resumed with an error": {func(_ func(), resume func(string, error)) { go resume("v", wrong) }, result{"v", wrong}},
		"resumed twice":         {func(_ func(), resume func(string, error)) { resume("v", nil); resume("w", wrong) }, result{"v", nil}},
		"cancelled":             {func(cancel func(), _ func(string, error)) { time.AfterFunc(time.Second, cancel) }, result{"", context.Canceled}},
		"cancelled at once":     {func(cancel func(), _ func(string, error)) { cancel() }, result{"", context.Canceled}},
		"cancelled, and resumed later": {func(cancel func(), resume func(string, error)) {
			cancel()
			time.AfterFunc(time.Second, func() { resume("v", nil) })
		}, result{"", context.Canceled}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLoop()
				var got result
				must(t, l, func(ctx context.Context) {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					got.value, got.err = Await(ctx, func(resume func(string, error)) { test.start(cancel, resume) })
					if v, err := Await(context.WithoutCancel(ctx), func(resume func(int, error)) { go resume(7, nil) }); v != 7 || err != nil {
						t.Errorf("a second time: %v, %v", v, err)
					}
				})
				time.Sleep(time.Minute)
				closed(t, l)
				if got != test.want {
					t.Errorf("%v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestAwaitNeedsItsTask(t *testing.T) { eachKind(t, testAwaitNeedsItsTask) }

func testAwaitNeedsItsTask(t *testing.T, newLoop func() *Loop) {
	l, other := newLoop(), newLoop()
	never := func(func(int, error)) { t.Error("start is called") }
	if _, err := Await(t.Context(), never); err != ErrNoTask {
		t.Errorf("without a task: %v", err)
	}
	var kept context.Context
	must(t, l, func(ctx context.Context) {
		kept = ctx
		done := make(chan error)
		go func() {
			_, err := Await(ctx, never)
			done <- err
		}()
		if err := <-done; err != ErrNoTask {
			t.Errorf("another goroutine with a task's context: %v", err)
		}
		must(t, other, func(context.Context) {
			_, err := Await(ctx, never)
			done <- err
		})
		if err := <-done; err != ErrNoTask {
			t.Errorf("another task with a task's context: %v", err)
		}
	})
	closed(t, l)
	closed(t, other)
	if _, err := Await(kept, never); err != ErrNoTask {
		t.Errorf("after its task: %v", err)
	}
}

func TestSleep(t *testing.T) { eachKind(t, testSleep) }

func testSleep(t *testing.T, newLoop func() *Loop) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		began := time.Now()
		var order []string
		for i, d := range []time.Duration{3, 1, 2} {
			must(t, l, func(ctx context.Context) {
				if err := Sleep(ctx, d*time.Second); err != nil || time.Since(began) != d*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				order = append(order, fmt.Sprint(i))
			})
		}
		must(t, l, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer cancel()
			if err := Sleep(ctx, time.Hour); err != context.DeadlineExceeded {
				t.Errorf("past its deadline: %v", err)
			}
			order = append(order, "late")
			if err := Sleep(ctx, 0); err != context.DeadlineExceeded {
				t.Errorf("again: %v", err)
			}
		})
		closed(t, l)
		if got := strings.Join(order, " "); got != "1 late 2 0" {
			t.Errorf("they wake in the order %s", got)
		}
		began = time.Now()
		if err := Sleep(t.Context(), time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("off the loop: %v after %v", err, time.Since(began))
		}
	})
}

// TestSleepAndItsContextEndTogether checks that a timer which fires just as the context
// ends leaves no token for a later wait.
func TestSleepAndItsContextEndTogether(t *testing.T) { eachKind(t, testSleepAndItsContextEndTogether) }

func testSleepAndItsContextEndTogether(t *testing.T, newLoop func() *Loop) {
	l := newLoop()
	must(t, l, func(ctx context.Context) {
		for range repeated(500) {
			short, cancel := context.WithTimeout(ctx, 50*time.Microsecond)
			_ = Sleep(short, 50*time.Microsecond)
			cancel()
			began := time.Now()
			if _, err := Await(ctx, func(resume func(int, error)) { time.AfterFunc(100*time.Microsecond, func() { resume(0, nil) }) }); err != nil {
				t.Error(err)
			}
			if d := time.Since(began); d < 100*time.Microsecond {
				t.Fatalf("it was woken after %v, by a token that was left", d)
			}
		}
	})
	closed(t, l)
}

func TestGoexitEndsItsTaskAlone(t *testing.T) {
	for _, k := range kinds {
		if !k.bound { // on a bound goroutine it leaks a goroutine
			t.Run(k.name, func(t *testing.T) { testGoexitEndsItsTaskAlone(t, k.make) })
		}
	}
}

func testGoexitEndsItsTaskAlone(t *testing.T, newLoop func() *Loop) {
	l := newLoop()
	ran := false
	must(t, l, func(context.Context) { runtime.Goexit() })
	must(t, l, func(ctx context.Context) {
		defer func() { ran = Sleep(ctx, time.Microsecond) == nil }()
		runtime.Goexit()
	})
	must(t, l, func(context.Context) {})
	closed(t, l)
	if !ran {
		t.Error("a task does not wait in what it deferred")
	}
}

func TestCloseWaitsForTasks(t *testing.T) { eachKind(t, testCloseWaitsForTasks) }

func testCloseWaitsForTasks(t *testing.T, newLoop func() *Loop) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		over := false
		must(t, l, func(ctx context.Context) {
			over = Sleep(ctx, time.Hour) == nil
		})
		ended := make(chan error, 1)
		go func() { ended <- l.Close(context.Background()) }()
		synctest.Wait()
		if err := l.Go(func(context.Context) { t.Error("it runs") }); err != ErrClosed {
			t.Errorf("Go after Close: %v", err)
		}
		if err := l.Post(func() { t.Error("it runs") }); err != ErrClosed {
			t.Errorf("Post after Close: %v", err)
		}
		if err := <-ended; err != nil || !over {
			t.Errorf("%v, and the task was over: %t", err, over)
		}
		if err := l.Close(context.Background()); err != ErrClosed {
			t.Errorf("a second time: %v", err)
		}
	})
}

func TestCloseCancelsWhoTakesTooLong(t *testing.T) { eachKind(t, testCloseCancelsWhoTakesTooLong) }

func testCloseCancelsWhoTakesTooLong(t *testing.T, newLoop func() *Loop) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		var cause error
		must(t, l, func(ctx context.Context) {
			_ = Sleep(ctx, time.Hour)
			cause = context.Cause(ctx)
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := l.Close(ctx); err != context.DeadlineExceeded || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		synctest.Wait()
		if cause != ErrClosed {
			t.Errorf("the task ends for %v", cause)
		}
	})
}

func TestCloseOfALoopWithoutTasksNeedsNoTime(t *testing.T) {
	eachKind(t, testCloseOfALoopWithoutTasksNeedsNoTime)
}

func testCloseOfALoopWithoutTasksNeedsNoTime(t *testing.T, newLoop func() *Loop) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		if err := newLoop().Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestATaskCannotCloseItsLoop(t *testing.T) { eachKind(t, testATaskCannotCloseItsLoop) }

func testATaskCannotCloseItsLoop(t *testing.T, newLoop func() *Loop) {
	l, other := newLoop(), newLoop()
	must(t, l, func(ctx context.Context) {
		if err := l.Close(ctx); err != errOwnTask {
			t.Errorf("its own: %v", err)
		}
		if err := other.Close(ctx); err != nil {
			t.Errorf("another: %v", err)
		}
	})
	closed(t, l)
}

// TestGoroutinesAreUsedAgain checks that tasks which run one after the other share a few
// goroutines.
func TestGoroutinesAreUsedAgain(t *testing.T) { eachKind(t, testGoroutinesAreUsedAgain) }

func testGoroutinesAreUsedAgain(t *testing.T, newLoop func() *Loop) {
	l := newLoop()
	before := runtime.NumGoroutine()
	for range 1000 {
		done := make(chan struct{})
		must(t, l, func(context.Context) { close(done) })
		<-done
		extra := func() int { return runtime.NumGoroutine() - before }
		for end := time.Now().Add(10 * time.Second); extra() > 3; time.Sleep(time.Millisecond) { // some have not come to their end yet
			if time.Now().After(end) {
				t.Fatalf("%d goroutines are there for one task at a time", extra())
			}
		}
	}
	closed(t, l)
}

// TestRandomTasks runs tasks that start others, wait, are cancelled and exit at random, and
// closes the loop at a random time.
func TestRandomTasks(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { testRandomTasks(t, k) })
	}
}

func testRandomTasks(t *testing.T, k kind) {
	lasts := time.Second
	if testing.Short() {
		lasts /= 5
	}
	if s := os.Getenv("NEARCALL_SOAK"); s != "" {
		var err error
		if lasts, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		l := k.make()
		started, ended, inside := 0, 0, 0
		seed := rand.Uint64()
		var live func(depth int, seed uint64) func(ctx context.Context)
		live = func(depth int, seed uint64) func(ctx context.Context) {
			return func(ctx context.Context) {
				r := rand.New(rand.NewPCG(seed, 0))
				started++
				defer func() { ended++ }()
				for range r.IntN(6) {
					if inside++; inside != 1 {
						t.Errorf("%d run at a time", inside)
					}
					inside--
					ctx, cancel := context.WithCancel(ctx)
					switch r.IntN(7) {
					case 0:
						if depth < 4 {
							_ = l.Go(live(depth+1, r.Uint64()))
						}
					case 1:
						_ = Sleep(ctx, time.Duration(r.IntN(200))*time.Microsecond)
					case 2:
						_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
					case 3:
						go cancel()
						_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
					case 4:
						time.AfterFunc(time.Duration(r.IntN(100))*time.Microsecond, cancel)
						_ = Sleep(ctx, time.Duration(r.IntN(200))*time.Microsecond)
					case 5:
						_ = Sleep(ctx, 0)
					case 6:
						if r.IntN(4) == 0 && !k.bound {
							cancel()
							runtime.Goexit()
						}
					}
					cancel()
				}
			}
		}
		r := rand.New(rand.NewPCG(seed, 1))
		for range r.IntN(50) {
			if l.Go(live(0, r.Uint64())) != nil {
				t.Fatal("it is closed")
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(5))*time.Millisecond)
		err := l.Close(ctx)
		cancel()
		if err != nil {
			<-l.empty
			l.workers.Wait()
		}
		if started != ended || inside != 0 || l.holder != nil || l.ready.first != nil || len(l.live) != 0 {
			t.Fatalf("seed %d: %d tasks have begun, %d have ended: %+v", seed, started, ended, l)
		}
	}
}

func BenchmarkHandOver(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			l := k.make()
			ready := make(chan struct{})
			for range 2 {
				must(b, l, func(ctx context.Context) {
					<-ready
					for range b.N {
						_ = Sleep(ctx, 0)
					}
				})
			}
			b.ResetTimer()
			close(ready)
			closed(b, l)
		})
	}
}
