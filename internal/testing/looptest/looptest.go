// Package looptest creates loops of each kind for tests.
package looptest

import (
	"context"
	"errors"

	"github.com/nearcall/nearcall/loop"
)

// A Kind is a way to run the tasks of a loop.
type Kind struct {
	Name string

	// New starts a loop. end closes it as Close does, and waits for what runs it.
	New func() (l *loop.Loop, end func(context.Context) error)

	// Hands says that a goroutine that waits for a call runs the call's handler.
	Hands bool
}

// Kinds lists all kinds.
var Kinds = []Kind{Baton, Coroutines, Pinned, Hosted}

// The kinds.
var (
	Baton      = Kind{Name: "baton", New: made()}
	Coroutines = Kind{Name: "coroutines", New: made(loop.Coroutines()), Hands: true}
	Pinned     = Kind{Name: "pinned", New: pinned}
	Hosted     = Kind{Name: "hosted", New: hosted}
)

func made(opts ...loop.Option) func() (*loop.Loop, func(context.Context) error) {
	return func() (*loop.Loop, func(context.Context) error) {
		l := loop.New(opts...)
		return l, l.Close
	}
}

// pinned starts a goroutine that runs a pinned loop.
func pinned() (*loop.Loop, func(context.Context) error) {
	l := loop.New(loop.Pinned())
	ran := make(chan error, 1)
	go func() { ran <- l.Run(context.Background()) }()
	return l, func(ctx context.Context) error {
		if err := l.Close(ctx); err != nil {
			return err
		}
		return <-ran
	}
}

// hosted starts a loop that is hosted by a pinned loop.
func hosted() (*loop.Loop, func(context.Context) error) {
	host, end := pinned()
	l := loop.NewHosted(host.Post)
	return l, func(ctx context.Context) error { return errors.Join(l.Close(ctx), end(ctx)) }
}
