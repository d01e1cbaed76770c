// Package proxy joins two paths: it takes the calls that arrive at a listener and makes them,
// unchanged, to a target. Messages stay encoded. Metadata, deadlines, cancellations, statuses,
// trailers, authorities and user agents pass unchanged. Calls from the target to its client pass,
// too. The proxy decompresses messages that are compressed with gzip and compresses them
// again; other compressors work only if the program registers them.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // for calls that are compressed
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/relay"
	"github.com/nearcall/nearcall/internal/targets"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// dialTimeout limits an attempt to connect to the target.
const dialTimeout = 20 * time.Second

// A Proxy takes the calls that arrive at its listeners and makes them to a target. Each connection
// of a nearcall client has its own connection to the target, so that the target can call that
// client. Ordinary gRPC clients share one connection to it.
type Proxy struct {
	dial   func(accept func(link.Session) link.Acceptor) (link.Dialer, error)
	server *nearcall.Server
	ctx    context.Context // ends with Stop, and ends dials
	stop   context.CancelFunc
	shared spare // for ordinary gRPC clients

	mu       sync.Mutex
	sessions map[link.Session]struct{} // of clients and of the target
	stopped  bool
	all      sync.WaitGroup
}

var errStopped = errors.New("the proxy was stopped")

// New returns a proxy to target, which it dials with opts. It returns an error if target or an
// option is invalid. The options more are for the server behind the proxy's listeners.
func New(target string, opts []nearcall.DialOption, more ...nearcall.ServerOption) (*Proxy, error) {
	p := &Proxy{sessions: make(map[link.Session]struct{})}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.dial = func(accept func(link.Session) link.Acceptor) (link.Dialer, error) {
		return targets.Dialer(target, options.NewClient(opts), targets.Caller{Accept: accept})
	}
	p.shared.connect = func(ctx context.Context) (link.Session, error) { return p.connect(ctx, nil) }
	if _, err := p.dial(nil); err != nil {
		return nil, err
	}
	p.server = nearcall.NewServer(append(more,
		options.SetServer(func(o *options.Server) { o.AcceptSession = p.accept }), nearcall.UnknownServiceHandler(grpcgo.Handler(p.acceptShared)),
		nearcall.ForceServerCodecV2(grpcgo.Codec()), nearcall.MaxRecvMsgSize(math.MaxInt32),
		nearcall.OtherClients(nearcall.GRPCClients), // web clients need a server that knows its methods
	)...)
	return p, nil
}

// Serve accepts clients from lis until lis fails or the proxy is stopped. It closes lis, and
// returns nil after Stop.
func (p *Proxy) Serve(lis net.Listener) error { return p.server.Serve(lis) }

// Stop closes all listeners and connections, which ends their calls.
func (p *Proxy) Stop() {
	p.stop()
	p.mu.Lock()
	p.stopped = true
	var open []link.Session
	for s := range p.sessions {
		open = append(open, s)
	}
	p.mu.Unlock()
	for _, s := range open {
		_ = s.Close(errStopped)
	}
	p.server.Stop()
	p.all.Wait()
}

// add adds a session, which is removed when it has ended. It returns false, and closes the
// session, if the proxy was stopped.
func (p *Proxy) add(s link.Session) bool {
	p.mu.Lock()
	stopped := p.stopped
	if !stopped {
		p.sessions[s] = struct{}{}
		p.all.Go(func() {
			<-s.Ended()
			p.mu.Lock()
			delete(p.sessions, s)
			p.mu.Unlock()
		})
	}
	p.mu.Unlock()
	if stopped {
		_ = s.Close(errStopped)
	}
	return !stopped
}

// connect opens a session with the target. The target's calls go to the acceptor that accept
// returns. It gives up when ctx is done, after dialTimeout, or when the proxy is stopped.
func (p *Proxy) connect(ctx context.Context, accept func(link.Session) link.Acceptor) (link.Session, error) {
	d, err := p.dial(accept)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	s, err := d.Dial(ctx)
	if p.ctx.Err() != nil && err != nil {
		return nil, errStopped
	}
	if err != nil {
		return nil, fmt.Errorf("the proxy cannot connect to its target: %w", err)
	}
	if !p.add(s) {
		return nil, errStopped
	}
	return s, nil
}

// accept joins the session of a nearcall client with one to the target.
func (p *Proxy) accept(client link.Session) link.Acceptor {
	if !p.add(client) {
		return nil
	}
	back := p.relay(client, nil)
	target, err := p.connect(p.ctx, func(link.Session) link.Acceptor { return back })
	if err != nil {
		return &failing{session: client, err: err}
	}
	spare := &spare{connect: func(ctx context.Context) (link.Session, error) {
		return p.connect(ctx, func(link.Session) link.Acceptor { return back })
	}}
	p.all.Go(func() { p.join(client, target) })
	p.all.Go(func() {
		<-client.Ended()
		spare.retire()
	})
	return p.relay(target, spare.get)
}

// A spare session makes those calls of a client that were on their way when the target drained
// the previous session. It also makes the calls of ordinary gRPC clients.
type spare struct {
	connect func(context.Context) (link.Session, error)

	mu      sync.Mutex
	session link.Session // nil before the first call
	over    bool         // retire was called
}

// get returns a session that takes calls.
func (s *spare) get(ctx context.Context) (link.Session, error) {
	s.mu.Lock()
	open := s.openLocked()
	s.mu.Unlock()
	if open != nil {
		return open, nil
	}
	made, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if open := s.openLocked(); open != nil { // another call has connected meanwhile
		made.Retire()
		return open, nil
	}
	s.session = made
	if s.over {
		made.Retire()
	}
	return made, nil
}

// openLocked returns the session if it takes calls, or nil.
func (s *spare) openLocked() link.Session {
	if s.session == nil || link.IsClosed(s.session.Done()) {
		return nil
	}
	return s.session
}

// retire ends the session once its calls have ended. It is called when the client's session has
// ended.
func (s *spare) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.session != nil {
		s.session.Retire()
	}
}

// join passes on the drain and the end of each of the two sessions to the other one. It does not
// disconnect a client that takes no more calls, because such a client can still make calls. When
// one session has ended, its calls have ended as well. The other session then drains, so that it
// can still report how these calls ended.
func (p *Proxy) join(client, target link.Session) {
	noCalls, noBack := target.Done(), client.Done()
	for {
		select {
		case <-noCalls:
			noCalls = nil
			client.Drain()
		case <-noBack:
			noBack = nil
			target.Drain()
		case <-client.Ended():
			target.Retire()
			return
		case <-target.Ended():
			client.Drain()
			return
		}
	}
}

// acceptShared returns an acceptor for a call of an ordinary gRPC client.
func (p *Proxy) acceptShared(ctx context.Context) (link.Acceptor, error) {
	s, err := p.shared.get(ctx)
	switch {
	case err == nil:
		return p.relay(s, p.shared.get), nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, unavailable(err)
}

// relay returns an acceptor that passes calls on to a session, and to spare ones.
func (p *Proxy) relay(to link.Session, spare func(context.Context) (link.Session, error)) link.Acceptor {
	return &relay.Acceptor{To: to, Spare: spare, Go: p.all.Go}
}

func unavailable(err error) error { return status.Error(codes.Unavailable, err.Error()) }

// failing is the acceptor of a client whose target cannot be reached. It fails each call and
// drains the session, so the client connects again for its next call, and the proxy dials the
// target again.
type failing struct {
	relay.Acceptor
	session link.Session
	err     error
}

// HandleStream implements [link.Acceptor].
func (f *failing) HandleStream(s link.Stream, _ *link.CallHeader) error {
	go func() {
		_ = s.Send(&link.Frame{End: relay.EndOf(unavailable(f.err))})
		f.session.Drain()
	}()
	return nil
}
