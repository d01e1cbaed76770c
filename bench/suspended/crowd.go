package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/loop"
)

// A crowd starts tasks or goroutines that wait until release is called.
type crowd struct {
	name string

	// atLoop starts the crowd in the loop's process, atClient in the client's. One of them is
	// nil.
	atLoop   func(l *loop.Loop, n int) (release func() error, err error)
	atClient func(to testpb.TestServiceClient, n int) (release func() error, err error)

	// elsewhere says that the crowd's client has a separate connection to the same server,
	// instead of that of the measured calls.
	elsewhere bool

	// stranger says that the crowd's goroutines are not tasks of the loop.
	stranger bool
}

var crowds = []crowd{
	{name: "streams in Recv", atClient: streams},
	{name: "the same, of another connection", atClient: streams, elsewhere: true},
	{name: "tasks in Sleep", atLoop: sleepers},
	{name: "tasks in Await", atLoop: awaiters},
	{name: "goroutines on no loop", atLoop: strangers, stranger: true},
}

// crowdNamed returns the crowd with this name.
func crowdNamed(name string) (crowd, error) {
	i := slices.IndexFunc(crowds, func(c crowd) bool { return c.name == name })
	if i < 0 {
		return crowd{}, fmt.Errorf("there is no crowd %q", name)
	}
	return crowds[i], nil
}

// streams opens n streams whose handlers wait for a second message. Each has answered the
// first message, so it waits before the loop gives any other task a turn.
func streams(to testpb.TestServiceClient, n int) (release func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var ends []func() error
	for range n {
		s, err := to.FullDuplexCall(ctx)
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallRequest{})
		}
		if err == nil {
			_, err = s.Recv()
		}
		if err != nil {
			cancel()
			return nil, fmt.Errorf("a stream that is to wait: %w", err)
		}
		ends = append(ends, func() error {
			if err := s.CloseSend(); err != nil {
				return err
			}
			if out, err := s.Recv(); err != io.EOF {
				return fmt.Errorf("a stream that waited ended with %v, %v, want io.EOF", out, err)
			}
			return nil
		})
	}
	return func() error {
		defer cancel()
		var err error
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}, nil
}

func sleepers(l *loop.Loop, n int) (func() error, error) {
	return suspend(l, n, func(ctx context.Context, wakeBy func(func())) {
		ctx, cancel := context.WithCancel(ctx)
		wakeBy(cancel)
		_ = loop.Sleep(ctx, time.Hour)
	})
}

func awaiters(l *loop.Loop, n int) (func() error, error) {
	return suspend(l, n, func(ctx context.Context, wakeBy func(func())) {
		_, _ = loop.Await(ctx, func(resume func(struct{}, error)) {
			wakeBy(func() { resume(struct{}{}, nil) })
		})
	})
}

// suspend starts n tasks of l that call wait, and returns when all of them wait. wait
// passes a function that ends it to wakeBy.
func suspend(l *loop.Loop, n int, wait func(ctx context.Context, wakeBy func(func()))) (release func() error, err error) {
	var wakes []func() // only tasks of l access it
	for range n {
		if err := l.Go(func(ctx context.Context) {
			wait(ctx, func(wake func()) { wakes = append(wakes, wake) })
		}); err != nil {
			return nil, err
		}
	}
	waiting := 0
	if err := do(l, func() { waiting = len(wakes) }); err != nil { // it gets its turn after theirs
		return nil, err
	}
	if waiting != n {
		return nil, fmt.Errorf("%d tasks wait, and not %d", waiting, n)
	}
	return func() error {
		return do(l, func() {
			for _, wake := range wakes {
				wake()
			}
		})
	}, nil
}

// do runs fn as a task of l and waits for it.
func do(l *loop.Loop, fn func()) error {
	done := make(chan struct{})
	if err := l.Post(func() {
		fn()
		close(done)
	}); err != nil {
		return err
	}
	<-done
	return nil
}

// strangers starts n goroutines that sleep in the loop's process but are not tasks of it.
func strangers(_ *loop.Loop, n int) (release func() error, err error) {
	done := make(chan struct{})
	var begun, all sync.WaitGroup
	for range n {
		begun.Add(1)
		all.Go(func() {
			begun.Done()
			<-done
		})
	}
	begun.Wait()
	return func() error {
		close(done)
		all.Wait()
		return nil
	}, nil
}
