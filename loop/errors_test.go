package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestErrorsSayWhatToDo checks that errors say what is wrong and, if the user can do
// something about it, what.
func TestErrorsSayWhatToDo(t *testing.T) {
	l := New()
	var own error
	call(l, func() { own = l.Close(context.Background()) })
	_, noTask := Await(context.Background(), func(func(int, error)) { t.Error("it starts") })
	notPinned := l.Run(context.Background())
	closed(t, l)

	pinned := New(Pinned())
	var running, elsewhere error
	driveIt(pinned, false)
	call(pinned, func() { running = pinned.Run(context.Background()) })
	closed(t, pinned)
	for elsewhere = running; errors.Is(elsewhere, running); time.Sleep(time.Millisecond) { // until that one has returned
		elsewhere = pinned.Run(context.Background())
	}

	host := New()
	hosted := NewHosted(func(func()) error { return errors.New("the window was closed") })
	closed(t, host)
	gone := hosted.Go(func(context.Context) { t.Error("it runs") })

	for _, c := range []struct {
		err  error
		want string
	}{
		{l.Post(func() {}), "loop: closed"},
		{own, "loop: a task cannot close its own loop, as Close waits for it; call Close outside of the loop"},
		{noTask, "loop: Await was called without a task's context; pass the one that the task was given, or one made from it"},
		{notPinned, "loop: Run is only for loops made with the option Pinned; other loops run their tasks themselves"},
		{running, "loop: Run is already running"},
		{elsewhere, "loop: another goroutine called Run before, and tasks that have begun can go on only there; call Run on that one"},
		{gone, "loop: closed: the host takes no more functions: the window was closed"},
		{panicOf(func() { Watchdog(-time.Second, nil) }), "loop: watchdog limit must be positive, got -1s"},
		{panicOf(func() { NewHosted(host.Post, Pinned()) }), "loop: NewHosted takes neither Coroutines nor Pinned, because its host runs the tasks; leave the option out"},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("the error is %v\nwant %s", c.err, c.want)
		}
	}
}

// panicOf returns what f panics with.
func panicOf(f func()) (err error) {
	defer func() { err = fmt.Errorf("%v", recover()) }()
	f()
	return nil
}
