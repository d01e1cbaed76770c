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

// Options say how hostile the transport is. The zero value splits and interleaves, and
// loses nothing.
type Options struct {
	// Seed is what random choices derive from. Each session of a listener makes its own.
	Seed uint64

	// Delay is the longest pause before a read, before a write, and between the pieces of a
	// write. Most pauses are empty, or only yield to other goroutines.
	Delay time.Duration

	// HangUp is the probability that the pipe breaks at a frame.
	HangUp float64

	// HangUpAfter, if positive, breaks the pipe of each session at this frame, counting the
	// frames of both sides.
	HangUpAfter int

	// Window is the flow-control window of a stream in each direction, in bytes. Zero means
	// 64 KiB.
	Window int

	// MaxFragment is the most of a message that one frame carries, in bytes. Zero means 1000. If a
	// hundredth of what is left of a message is more, that is the most.
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

// holdsBack returns how many received bytes the receiver collects before it gives their credit
// back, and granted how many bytes the sender may be ahead: while it is ahead by less than the
// window, it does not wait.
func (o *Options) holdsBack() int { return (o.Window + 1) / 2 }
func (o *Options) granted() int   { return o.Window + o.holdsBack() }

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
	sessions atomic.Uint64 // number of sessions opened
	done     chan struct{}
	once     sync.Once

	mu      sync.Mutex
	accept  func(link.Session) link.Acceptor
	serving chan struct{} // closed once accept is set
}

// Listen returns a listener. Names need not be unique.
func Listen(name string, o Options) *Listener {
	return &Listener{name: name, opts: o.withDefaults(), done: make(chan struct{}), serving: make(chan struct{})}
}

// Sessions implements [link.Listener]. It fails if it was called before.
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

// Accept implements [net.Listener]. It always fails.
func (l *Listener) Accept() (net.Conn, error) {
	return nil, fmt.Errorf("hostile:%s has no byte connections to accept; pass the listener to Server.Serve as it is", l.name)
}

// Close implements [net.Listener]. Open sessions stay open.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return Addr(l.name) }

// Target returns a target that names the listener. Clients can use it only with
// [Listener.Dialer].
func (l *Listener) Target() string { return "hostile:" + l.name }

// Dialer returns a dialer that opens sessions with the server of l.
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
		return nil, err // not a nil *session in an interface
	}
	return client, nil
}

// connect connects the two sides of a session. accept gets the server's side.
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
