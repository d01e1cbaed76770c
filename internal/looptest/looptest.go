// Package looptest runs tests on each kind of loop.
package looptest

import (
	"context"
	"errors"

	"github.com/nearcall/nearcall/loop"
)

// A Kind is a way in which the tasks of a loop are run.
type Kind struct {
	Name string

	// New returns a loop, and what closes it, as Close does, together with what
	// runs it.
	New func() (l *loop.Loop, end func(context.Context) error)

	// Hands says that callers run handlers, which they wait for.
	Hands bool
}

// Kinds are all there are.
var Kinds = []Kind{Baton, Coroutines, Pinned, Hosted}

// The kinds by name.
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

// hosted has another loop be the host.
func hosted() (*loop.Loop, func(context.Context) error) {
	host, end := pinned()
	l := loop.NewHosted(host.Post)
	return l, func(ctx context.Context) error { return errors.Join(l.Close(ctx), end(ctx)) }
}
