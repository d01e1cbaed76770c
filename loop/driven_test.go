package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
)

// TestWhoBringsACallRunsIt checks that Start with handoff runs the task on the calling
// goroutine.
func TestWhoBringsACallRunsIt(t *testing.T) {
	l := New(Coroutines())
	ran := false
	if err := (*handlers)(l).Start(true, job{run: func() { ran = true }}); err != nil || !ran {
		t.Errorf("%v, and it ran: %t", err, ran)
	}
	closed(t, l)
}

// TestNobodyDrivesWithoutBound checks that Start with handoff returns although some task is
// always ready.
func TestNobodyDrivesWithoutBound(t *testing.T) {
	l := New(Coroutines())
	over, turns := false, 0
	err := (*handlers)(l).Start(true, job{run: func() { restless(t, l, &over, &turns) }})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Post(func() { over = true }) // it must get a turn, too
	closed(t, l)
	if turns == 0 {
		t.Error("they did not run")
	}
}

// restless starts two tasks that yield to each other until over is set, so that one of
// them is always ready. They count their turns.
func restless(t *testing.T, l *Loop, over *bool, turns *int) {
	for range 2 {
		must(t, l, func(ctx context.Context) {
			for !*over {
				*turns++
				_ = Sleep(ctx, 0)
			}
		})
	}
}

// TestAHostIsAskedAgainForMore checks that each function on the host returns after
// maxHostTurns turns and another is submitted.
func TestAHostIsAskedAgainForMore(t *testing.T) {
	asked := make(chan func(), 1)
	l := NewHosted(func(f func()) error { asked <- f; return nil })
	over, turns := false, 0
	restless(t, l, &over, &turns)
	for visit := 1; visit <= 3; visit++ {
		(<-asked)()
		if turns != visit*maxHostTurns {
			t.Errorf("after %d visits there were %d turns", visit, turns)
		}
	}
	over = true
	go closed(t, l)
	for {
		select {
		case f := <-asked:
			f()
		case <-l.empty:
			return
		}
	}
}

// TestWhoStartsATaskOfItsOwnDoesNotRunIt checks that Go does not run the task itself.
func TestWhoStartsATaskOfItsOwnDoesNotRunIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Coroutines())
		began := time.Now()
		must(t, l, func(context.Context) { time.Sleep(time.Second) })
		if d := time.Since(began); d != 0 {
			t.Errorf("Go took %v", d)
		}
		closed(t, l)
	})
}

func TestRunGoesOnWhereItWasLeft(t *testing.T) {
	l := New(Pinned())
	n := 0
	must(t, l, func(ctx context.Context) {
		for range 3 {
			n++
			_ = Sleep(ctx, 0)
			_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
		}
	})
	for n < 3 {
		ctx, cancel := context.WithCancel(t.Context())
		before := n
		must(t, l, func(context.Context) { cancel() })
		if err := l.Run(ctx); err != context.Canceled {
			t.Fatalf("Run: %v", err)
		}
		if n > before+2 {
			t.Errorf("it went on for %d steps after its context had ended", n-before)
		}
	}
	go closed(t, l)
	if err := l.Run(t.Context()); err != nil {
		t.Errorf("Run of a loop that is closed: %v", err)
	}
	if err := l.Run(t.Context()); err != nil {
		t.Errorf("Run of a loop that was closed: %v", err)
	}
}

// TestRunTakesNoTurnAfterItsContextHasEnded checks that Run returns after the turn in which
// its context ends, although tasks are ready.
func TestRunTakesNoTurnAfterItsContextHasEnded(t *testing.T) {
	l := New(Pinned())
	ctx, cancel := context.WithCancel(t.Context())
	turns, ended := 0, false
	for range 2 { // they yield to each other
		must(t, l, func(ctx context.Context) {
			for !ended {
				turns++
				cancel()
				_ = Sleep(ctx, 0)
			}
		})
	}
	for n := 1; n <= 50; n++ {
		if err := l.Run(ctx); err != context.Canceled || turns != n {
			t.Errorf("Run has returned %d times after %d turns: %v", n, turns, err)
			break
		}
		ctx, cancel = context.WithCancel(t.Context())
	}
	cancel()
	ended = true
	go closed(t, l)
	if err := l.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRunIsOfPinnedLoopsAndTheirGoroutine(t *testing.T) {
	for _, k := range []kind{kindOf("baton"), kindOf("coroutines"), kindOf("hosted")} {
		l := k.make()
		if err := l.Run(t.Context()); err != errNotPinned {
			t.Errorf("%s: %v", k.name, err)
		}
		closed(t, l)
	}
	l := New(Pinned())
	var within error
	must(t, l, func(ctx context.Context) {
		within = l.Run(ctx)
		_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := l.Run(ctx); err != context.DeadlineExceeded || within != errRuns {
		t.Errorf("%v, and within a task %v", err, within)
	}
	other := make(chan error)
	go func() { other <- l.Run(t.Context()) }()
	if err := <-other; err != errRunner {
		t.Errorf("on another goroutine: %v", err)
	}
	go closed(t, l)
	if err := l.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPinnedTasksStayOnTheirThread checks that tasks run on the thread of Run's goroutine
// after each wait.
func TestPinnedTasksStayOnTheirThread(t *testing.T) {
	l := New(Pinned())
	for range 10 {
		must(t, l, func(ctx context.Context) {
			for range 3 {
				if !isBound() {
					t.Error("a task is not bound to the thread")
				}
				_, _ = Await(ctx, func(resume func(int, error)) { go resume(0, nil) })
			}
		})
	}
	ran := make(chan error)
	go func() {
		runtime.LockOSThread()
		ran <- l.Run(t.Context())
	}()
	closed(t, l)
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestTasksOfAHostThatIsGone checks that all tasks end after the host takes no more
// functions.
func TestTasksOfAHostThatIsGone(t *testing.T) {
	h := newHost(false)
	l := h.loop
	var ended []string
	lost := make(chan error, 3)
	wants := func(err error) bool { return errors.Is(err, ErrClosed) && errors.Is(err, errHostGone) }
	must(t, l, func(ctx context.Context) {
		_ = Sleep(ctx, time.Hour)
		if !wants(context.Cause(ctx)) {
			t.Errorf("the task ends for %v", context.Cause(ctx))
		}
		ended = append(ended, "sleeps")
	})
	suspended := make(chan struct{})
	if err := (*handlers)(l).Start(false, job{run: func() {
		ctx, cancel := context.WithCancelCause(wait.WithLoop(context.Background(), (*handlers)(l)))
		go func() { cancel(<-lost) }()
		close(suspended)
		_, _ = Await(ctx, func(func(int, error)) {})
		if !wants(context.Cause(ctx)) {
			t.Errorf("the handler ends for %v", context.Cause(ctx))
		}
		ended = append(ended, "awaits")
	}, lost: func(err error) { lost <- err }}); err != nil {
		t.Fatal(err)
	}
	<-suspended
	settled := make(chan struct{})
	_ = l.Post(func() { close(settled) })
	<-settled
	close(h.gone)
	<-h.over
	for _, who := range []string{"learns of it first", "comes later"} {
		if err := l.Post(func() { t.Error("what begins later runs elsewhere") }); !wants(err) || !strings.Contains(err.Error(), "host") {
			t.Errorf("who %s: %v", who, err)
		}
	}
	if err := l.Close(t.Context()); !wants(err) {
		t.Errorf("Close: %v", err)
	}
	if len(ended) != 2 {
		t.Errorf("what has ended when Close returns: %v", ended)
	}
}

// TestCloseEndsCallsOfHandlersThatTakeTooLong checks that Close cancels a handler that waits
// when its context is done.
func TestCloseEndsCallsOfHandlersThatTakeTooLong(t *testing.T) {
	eachKind(t, func(t *testing.T, newLoop func() *Loop) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop()
			ctx, cancel := context.WithCancelCause(context.Background())
			if err := (*handlers)(l).Start(false, job{
				run:  func() { _, _ = Await(wait.WithLoop(ctx, (*handlers)(l)), func(func(int, error)) {}) },
				lost: cancel,
			}); err != nil {
				t.Fatal(err)
			}
			short, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			if err := l.Close(short); err != context.DeadlineExceeded {
				t.Errorf("Close: %v", err)
			}
			<-l.empty
			if context.Cause(ctx) != ErrClosed {
				t.Errorf("the call ends for %v", context.Cause(ctx))
			}
			if err := l.Close(t.Context()); err != ErrClosed {
				t.Errorf("a second Close: %v", err)
			}
		})
	})
}

// TestTasksStartOthersWhileCloseWaits checks that running tasks can start others while
// Close waits for them.
func TestTasksStartOthersWhileCloseWaits(t *testing.T) {
	eachKind(t, func(t *testing.T, newLoop func() *Loop) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop()
			ran := false
			must(t, l, func(ctx context.Context) {
				_ = Sleep(ctx, time.Hour)
				must(t, l, func(context.Context) { ran = true })
			})
			closed := make(chan error)
			go func() { closed <- l.Close(context.Background()) }()
			synctest.Wait()
			if err := l.Go(func(context.Context) {}); err != ErrClosed {
				t.Errorf("another goroutine's Go: %v", err)
			}
			if err := <-closed; err != nil || !ran {
				t.Errorf("%v, and it ran: %t", err, ran)
			}
		})
	})
}

// TestTasksOfABoundHostThatIsGone checks that calls and the loop end even if the host's
// goroutine was bound to its thread, so that the tasks it began can never continue.
func TestTasksOfABoundHostThatIsGone(t *testing.T) {
	if os.Getenv(hazard) == "" { // in a child process: it leaks a goroutine
		cmd := exec.Command(os.Args[0], "-test.run=^TestTasksOfABoundHostThatIsGone$")
		cmd.Env = append(os.Environ(), hazard+"=a host that is gone")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "it ends well") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	h := newHost(true)
	l := h.loop
	lost := make(chan error, 1)
	begun := make(chan struct{})
	resumed := make(chan func(int, error), 1)
	if err := (*handlers)(l).Start(false, job{run: func() {
		close(begun)
		_, _ = Await(wait.WithLoop(context.Background(), (*handlers)(l)), func(resume func(int, error)) { resumed <- resume })
		t.Error("it goes on")
	}, lost: func(err error) { lost <- err }}); err != nil {
		t.Fatal(err)
	}
	<-begun
	resume := <-resumed
	settled := make(chan struct{})
	_ = l.Post(func() { close(settled) })
	<-settled
	close(h.gone)
	<-h.over
	before := runtime.NumGoroutine()
	resume(0, nil)
	if err := <-lost; !errors.Is(err, errHostGone) {
		t.Errorf("it is lost for %v", err)
	}
	<-l.empty
	l.workers.Wait()
	n := runtime.NumGoroutine()
	for end := time.Now().Add(5 * time.Second); n > before && time.Now().Before(end); n = runtime.NumGoroutine() {
		runtime.Gosched() // a goroutine that Wait has waited for might not have exited yet
	}
	if n > before {
		t.Errorf("%d goroutines were there, and %d are", before, n)
	}
	if !t.Failed() {
		fmt.Println("it ends well")
		os.Exit(0)
	}
}

// TestALockThatATaskOfABoundHostThatIsGoneWaitsFor checks that a task that can never continue does not
// keep a lock that was passed to it.
func TestALockThatATaskOfABoundHostThatIsGoneWaitsFor(t *testing.T) {
	if os.Getenv(hazard) == "" { // in a child process: it leaks a goroutine
		cmd := exec.Command(os.Args[0], "-test.run=^TestALockThatATaskOfABoundHostThatIsGoneWaitsFor$")
		cmd.Env = append(os.Environ(), hazard+"=a host that is gone")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "it ends well") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	h := newHost(true)
	l := h.loop
	var m wait.Mutex
	m.Lock(nil)
	begun := make(chan struct{})
	if err := (*handlers)(l).Start(false, job{run: func() {
		close(begun)
		m.Lock((*handlers)(l))
		t.Error("it goes on")
	}, lost: func(error) {}}); err != nil {
		t.Fatal(err)
	}
	<-begun
	settled := make(chan struct{})
	_ = l.Post(func() { close(settled) }) // runs when the task waits
	<-settled
	close(h.gone)
	<-h.over
	m.Unlock()
	m.Lock(nil)
	if !t.Failed() {
		fmt.Println("it ends well")
		os.Exit(0)
	}
}

func TestHostedLoopsAreDrivenByTheirHost(t *testing.T) {
	for name, o := range map[string]Option{"Coroutines": Coroutines(), "Pinned": Pinned()} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewHosted takes %s", name)
				}
			}()
			NewHosted(func(func()) error { return nil }, o)
		}()
	}
}
