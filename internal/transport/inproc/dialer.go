package inproc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearcall/nearcall/internal/link"
)

// A Dialer opens sessions with the listener that has Name when Dial is called.
type Dialer struct {
	Name string
	Options
}

var errClosed = errors.New("the listener was closed before a server served it")

// Dial implements [link.Dialer]. If there is a listener but no server serves it yet, Dial
// waits, as a connection to a listening socket would.
func (d Dialer) Dial(ctx context.Context) (link.Session, error) {
	names.Lock()
	l := names.listeners[d.Name]
	names.Unlock()
	if l == nil {
		return nil, fmt.Errorf("inproc:%s: nobody in this process listens on this name; pass nearcall.Listen(%q) to Server.Serve first, or call with WaitForReady", d.Name, "inproc:"+d.Name)
	}
	select {
	case <-l.serving:
	case <-l.done:
		return nil, fmt.Errorf("inproc:%s: %w", d.Name, errClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("inproc:%s: no server serves the listener yet: %w", d.Name, ctx.Err())
	}
	select {
	case <-l.done:
		return nil, fmt.Errorf("inproc:%s: %w", d.Name, errClosed)
	default:
	}
	s, err := Connect(d.Name, d.Options, l.accept)
	if err != nil {
		return nil, fmt.Errorf("inproc:%s: %w", d.Name, err)
	}
	return s, nil
}

// Await returns a channel that is closed when a listener takes the name, so that the caller can
// dial again before its backoff ends. stop ends the wait. Each wait has its own channel, because
// synctest bubbles cannot share one.
func (d Dialer) Await() (taken <-chan struct{}, stop func()) {
	names.Lock()
	defer names.Unlock()
	c := make(chan struct{})
	names.awaited[d.Name] = append(names.awaited[d.Name], c)
	return c, func() {
		names.Lock()
		defer names.Unlock()
		left := slices.DeleteFunc(names.awaited[d.Name], func(o chan struct{}) bool { return o == c })
		if names.awaited[d.Name] = left; len(left) == 0 {
			delete(names.awaited, d.Name)
		}
	}
}
