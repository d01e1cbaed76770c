// Package inproc carries calls between a client and a server of one process. In a unary
// call, caller and callee share one object; a stream is a pair of bounded queues. Messages
// are passed as Go values. They are marshalled only if a user's codec requires it.
package inproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/nearcall/nearcall/internal/link"
)

// A Listener owns a name until it is closed.
type Listener struct {
	name string
	done chan struct{}

	mu      sync.Mutex
	serving chan struct{} // closed once accept is set
	accept  func(link.Session) link.Acceptor
}

// Listen returns a listener on name, or an error if another listener has it.
func Listen(name string) (*Listener, error) {
	names.Lock()
	defer names.Unlock()
	if names.listeners[name] != nil {
		return nil, fmt.Errorf("inproc:%s: the name is taken by another listener of this process; close that one or choose another name", name)
	}
	l := &Listener{name: name, done: make(chan struct{}), serving: make(chan struct{})}
	names.listeners[name] = l
	for _, c := range names.awaited[name] {
		close(c)
	}
	delete(names.awaited, name)
	return l, nil
}

// Sessions implements [link.Listener]. It fails if it was called before.
func (l *Listener) Sessions(accept func(link.Session) link.Acceptor) error {
	l.mu.Lock()
	if l.accept != nil {
		l.mu.Unlock()
		return fmt.Errorf("inproc:%s: %w", l.name, link.ErrServed)
	}
	l.accept = accept
	close(l.serving)
	l.mu.Unlock()
	<-l.done
	return nil
}

// Accept implements [net.Listener]. It always fails: this listener accepts sessions, not
// connections.
func (l *Listener) Accept() (net.Conn, error) {
	return nil, fmt.Errorf("inproc:%s has no byte connections to accept; pass the listener to Server.Serve as it is", l.name)
}

// Close implements [net.Listener] and frees the name. Open sessions stay open.
func (l *Listener) Close() error {
	names.Lock()
	defer names.Unlock()
	if !link.IsClosed(l.done) {
		delete(names.listeners, l.name)
		close(l.done)
	}
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return Addr(l.name) }

// Target returns the target that clients dial.
func (l *Listener) Target() string { return "inproc:" + l.name }

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
	case <-ctx.Done():
		return nil, fmt.Errorf("inproc:%s: no server serves the listener yet: %w", d.Name, ctx.Err())
	}
	if link.IsClosed(l.done) {
		return nil, fmt.Errorf("inproc:%s: %w", d.Name, errClosed)
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

// Addr is the address of an in-process peer: its name.
type Addr string

// Network implements [net.Addr].
func (Addr) Network() string { return "inproc" }

// String implements [net.Addr].
func (a Addr) String() string { return string(a) }

// names are the listeners of this process. There is one table, because the target
// inproc:NAME means the same in the whole process.
var names = struct {
	sync.Mutex
	listeners map[string]*Listener
	awaited   map[string][]chan struct{} // closed when a listener takes the name
}{listeners: make(map[string]*Listener), awaited: make(map[string][]chan struct{})}
