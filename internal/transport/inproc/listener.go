package inproc

import (
	"fmt"
	"net"
	"sync"

	"github.com/nearcall/nearcall/internal/link"
)

// A Listener owns a name until it is closed.
type Listener struct {
	name string
	done chan struct{}
	once sync.Once

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
	l.once.Do(func() {
		names.Lock()
		delete(names.listeners, l.name)
		names.Unlock()
		close(l.done)
	})
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return Addr(l.name) }

// Target returns the target that clients dial.
func (l *Listener) Target() string { return "inproc:" + l.name }
