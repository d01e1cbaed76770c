package hostile

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// Options say how bad it gets. The zero value is a transport that cuts and
// mixes, and loses nothing.
type Options struct {
	// Seed is where random choices come from. The sessions of a listener
	// differ.
	Seed uint64

	// Delay is the longest pause before something is written or after
	// something was read. Most pauses are none, or let other goroutines run.
	Delay time.Duration

	// HangUp is the probability that the pipe breaks at a frame.
	HangUp float64

	// HangUpAfter, when positive, breaks the pipe at this frame of each
	// session, both sides' counted together.
	HangUpAfter int

	// Window is how many bytes a stream may send, each way, before the
	// receiver has taken them. Zero means 64 KiB.
	Window int

	// MaxFragment is the largest part of a message in one frame, in bytes.
	// Zero means 1000.
	MaxFragment int
}

func (o Options) withDefaults() Options {
	if o.Window <= 0 {
		o.Window = 64 << 10
	}
	if o.MaxFragment <= 0 {
		o.MaxFragment = 1000
	}
	return o
}

// Addr is the address of both sides: the listener's name.
type Addr string

// Network implements [net.Addr].
func (Addr) Network() string { return "hostile" }

// String implements [net.Addr].
func (a Addr) String() string { return string(a) }

// A Listener implements [link.Listener]. Only its own dialers reach it.
type Listener struct {
	name     string
	opts     Options
	sessions atomic.Uint64 // how many were opened
	done     chan struct{}
	once     sync.Once

	mu      sync.Mutex
	accept  func(link.Session) link.Acceptor
	serving chan struct{} // closed once accept is set
}

// Listen returns a listener. Nothing else needs to know its name.
func Listen(name string, o Options) *Listener {
	return &Listener{name: name, opts: o.withDefaults(), done: make(chan struct{}), serving: make(chan struct{})}
}

// Sessions implements [link.Listener]. It may be called once.
func (l *Listener) Sessions(accept func(link.Session) link.Acceptor) error {
	l.mu.Lock()
	if l.accept != nil {
		l.mu.Unlock()
		return fmt.Errorf("hostile:%s: %w", l.name, link.ErrServed)
	}
	l.accept = accept
	close(l.serving)
	l.mu.Unlock()
	<-l.done
	return nil
}

// Accept implements [net.Listener] and returns an error.
func (l *Listener) Accept() (net.Conn, error) {
	return nil, fmt.Errorf("hostile:%s has no byte connections to accept; pass the listener to Server.Serve as it is", l.name)
}

// Close implements [net.Listener]. Sessions that were made go on.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return Addr(l.name) }

// Target returns a target that names the listener. It means something only
// together with [Listener.Dialer].
func (l *Listener) Target() string { return "hostile:" + l.name }

// Dialer returns what opens sessions with whoever serves l.
func (l *Listener) Dialer() link.Dialer { return dialer{l} }

type dialer struct{ l *Listener }

// Dial implements [link.Dialer]. It waits until l is served.
func (d dialer) Dial(ctx context.Context) (link.Session, error) {
	l := d.l
	select {
	case <-l.serving:
	case <-l.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("hostile:%s: no server serves the listener yet: %w", l.name, ctx.Err())
	}
	select {
	case <-l.done:
		return nil, fmt.Errorf("hostile:%s: the listener is closed", l.name)
	default:
	}
	client, err := connect(l.name, l.opts, l.sessions.Add(1), l.accept)
	if err != nil {
		return nil, err // and not a nil *session in an interface
	}
	return client, nil
}

// connect makes both sides of a session, of which accept gets the server's.
func connect(name string, o Options, n uint64, accept func(link.Session) link.Acceptor) (*session, error) {
	a, b := net.Pipe()
	both := &shared{hurry: make(chan struct{})}
	client := newSession(name, newPipe(a, o, 2*n, both))
	server := newSession(name, newPipe(b, o, 2*n+1, both))
	acceptor := accept(server)
	if acceptor == nil {
		_ = a.Close()
		_ = b.Close()
		return nil, fmt.Errorf("hostile:%s: the server is stopped", name)
	}
	server.start(acceptor)
	client.start(nil)
	return client, nil
}
