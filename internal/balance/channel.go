// Package balance makes calls to targets that can have several endpoints, with grpc-go's resolvers
// and balancers.
//
// A *grpc.ClientConn resolves the target, balances, connects, backs off, checks health, and knows
// the state of everything. Only the calls take a shorter way: a call asks grpc-go's picker for a
// SubConn, and goes over nearcall's session of that SubConn. Four pieces make that possible,
// all with public interfaces of grpc-go:
//
//   - A policy that wraps the one of the service config. It shows the picker to the calls, and puts
//     itself into the addresses of SubConns. See policy.go.
//   - Credentials, whose handshake finds out what the server speaks, and opens a session if that is
//     nearcall's protocol. See handshake.go.
//   - A connection that grpc-go gets in place of such a connection. The SubConn is ready while its
//     session takes calls, and the few calls that grpc-go makes itself, such as health checks, go over
//     the session as well. See NewSessionConn of package grpcinside.
//   - A session for servers that speak only gRPC. grpc-go makes its calls, on the SubConn that was
//     picked. See pinned.go.
package balance

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
	"github.com/nearcall/nearcall/internal/wait"
)

// Config configures a Channel.
type Config struct {
	Target  string
	Options *options.Client
	Creds   credentials.TransportCredentials // nil for none, which grpc-go refuses

	// Dial connects to an address. Its server must prove the name authority. If Dial is nil, grpc-go
	// connects.
	Dial func(ctx context.Context, authority, address string) (net.Conn, error)

	// Handshake secures a connection that Dial or grpc-go has made, and finds out what the server
	// speaks. It returns a session, or else a connection for grpc-go.
	Handshake func(ctx context.Context, authority string, conn net.Conn) (link.Session, net.Conn, credentials.AuthInfo, error)

	// OnSession is called with each session before it is used.
	OnSession func(link.Session)

	// Active reports whether there were calls since it was last called.
	Active func() bool

	// Calls makes the calls that a program makes with the *grpc.ClientConn.
	Calls grpc.ClientConnInterface

	// Whole returns what makes the calls with conn that grpc-go makes as a whole.
	Whole func(conn grpc.ClientConnInterface) grpc.ClientConnInterface
}

// A Channel implements [client.Balancer].
type Channel struct {
	cfg       Config
	conn      *grpc.ClientConn
	whole     grpc.ClientConnInterface // makes calls with grpc-go as a whole
	authority string

	picker  atomic.Pointer[picker]  // grpc-go's picker; nil if a call must ask grpc-go
	applied atomic.Pointer[applied] // the resolver's latest result; nil if a call must ask grpc-go
	initial applied                 // until the resolver's first result

	isWhole atomic.Bool // grpc-go makes all calls as a whole

	resolved atomic.Bool // the resolver has returned a result

	mu         sync.Mutex
	generation uint64 // how often the picker was replaced
	pickers    uint64 // how many there were
	retired    []link.Session
	unpicked   link.Session // the result of wholeSession; nil before the first use
	closed     bool
	watcher    *time.Timer // looks for calls
}

// New returns a channel. As grpc.NewClient it does not connect.
func New(cfg Config) (*Channel, error) {
	c := &Channel{cfg: cfg}
	config := "{}"
	if json := cfg.Options.ConfigJSON; json != nil {
		config = *json
	}
	opts := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(c.interceptUnary), grpc.WithChainStreamInterceptor(c.interceptStream),
		grpc.WithResolvers(c.resolvers()...), grpc.WithDefaultServiceConfig(rewrite(config)),
		grpc.WithIdleTimeout(c.idleTimeout()),
	}
	if cfg.Creds != nil {
		opts = append(opts, grpc.WithTransportCredentials(&handshaker{cfg.Creds, c, false}))
	}
	for _, h := range cfg.Options.ClientStats {
		opts = append(opts, grpc.WithStatsHandler(wholeStats(h)))
	}
	if cfg.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(c.dial))
	}
	conn, err := grpc.NewClient(cfg.Target, append(opts, cfg.Options.ForChannel()...)...)
	if err != nil {
		return nil, err
	}
	c.conn, c.whole = conn, cfg.Whole(whole{conn: conn, creds: cfg.Options.PerRPC, stats: true})
	c.initial.service, _ = client.ConfigOf(cfg.Options, grpcinside.ServiceOf(config)) // grpc-go has parsed it
	return c, nil
}

// userDial returns the function of WithContextDialer, which resolvers and balancers get; it may be
// nil.
func (c *Channel) userDial() func(ctx context.Context, address string) (net.Conn, error) {
	return c.cfg.Options.ConnDialer
}

// rewrite returns a service config, in JSON, whose policy the channel wraps.
func rewrite(json string) string {
	return grpcinside.Rewrite(json, func(service string) bool {
		_, err := client.ParseServiceConfig(service, math.MaxInt)
		return err == nil
	})
}

// goWhole makes grpc-go make all calls as a whole from now on. A SubConn has connected that is none of the
// channel's: another policy has made it, or its address has lost its mark.
func (c *Channel) goWhole() {
	if !c.isWhole.Swap(true) {
		logger.Warningf("grpc-go makes all calls to %q: a resolver, a policy or this version of grpc-go passes on no attributes of addresses, or builds a policy that nearcall cannot wrap", c.cfg.Target)
		c.replaced()
	}
}

var logger = grpclog.Component("nearcall")

// Conn returns the connection that resolves and balances. The calls that a program makes with it are
// the channel's.
func (c *Channel) Conn() *grpc.ClientConn { return c.conn }

// Authority returns the default :authority of calls.
func (c *Channel) Authority() string { return c.authority }

// Close closes the channel and its sessions. It returns grpc-go's error.
func (c *Channel) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.conn.Close()
	c.end()
	return err
}

// end ends everything of the channel except its *grpc.ClientConn, which a program may have closed
// itself.
func (c *Channel) end() {
	c.mu.Lock()
	c.closed = true
	open := c.retired
	c.retired = nil
	if c.watcher != nil {
		c.watcher.Stop()
	}
	c.mu.Unlock()
	for _, s := range open {
		_ = s.Close(errClosing)
	}
}

// errClosing is the error of calls after Close, as in grpc-go.
//
//lint:ignore SA1019 deprecated, but programs compare with it
var errClosing = grpc.ErrClientConnClosing

// leave is called when a SubConn no longer uses a session. Running calls can finish if the
// channel is not closed.
func (c *Channel) leave(s link.Session) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		ended := func(r link.Session) bool { return link.IsClosed(r.Ended()) }
		c.retired = append(slices.DeleteFunc(c.retired, ended), s)
	}
	c.mu.Unlock()
	if closed {
		_ = s.Close(errClosing)
	} else {
		s.Retire()
	}
}

// ownKey is the context's key for calls of grpc-go that this package makes: a *capture, a *pin, or
// nothing in particular.
type ownKey struct{}

// newStream makes a call with grpc-go up to its pick. It returns an error.
func (c *Channel) newStream(ctx context.Context, own any, method string, opts ...grpc.CallOption) error {
	return wait.Outside(wait.WaiterOf(ctx), func() error {
		_, err := c.conn.NewStream(context.WithValue(ctx, ownKey{}, own), &anyStream, method, append(opts, grpc.PerRPCCredentials(unsent{}))...)
		return err
	})
}

var anyStream = grpc.StreamDesc{StreamName: "any", ClientStreams: true, ServerStreams: true}

// A capture is the value of a call of grpc-go's that ends with the pick.
type capture struct {
	configOnly   bool // the call ends before the pick
	waitForReady bool
	generation   uint64 // the channel's, before the call
	pickers      uint64 // the channel's, before the call
	pick         client.Pick
	dropped      bool
}

// errCaptured ends the call of a capture. Nobody sees it.
var errCaptured = status.Error(codes.Canceled, "nearcall: grpc-go has picked a connection for a call")

// unsent are credentials that end a call after the pick, if nothing else has.
// It implements [credentials.PerRPCCredentials].
type unsent struct{}

func (unsent) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, errCaptured
}

func (unsent) RequireTransportSecurity() bool { return false }

// Pick implements [client.Balancer]. It asks the picker that grpc-go has used last. If that picker is
// unknown or returns no session, Pick lets grpc-go make the call up to its pick. So waiting and
// errors are grpc-go's.
func (c *Channel) Pick(ctx context.Context, method string, waitForReady bool) (client.Pick, error) {
	if p := c.picker.Load(); p != nil {
		pick, err := p.pick(balancer.PickInfo{FullMethodName: method, Ctx: ctx})
		if err == nil {
			return pick, nil
		}
		if st, ok := status.FromError(err); ok { // to ask again would drop other calls, and count this one twice
			if client.IsControlPlaneOnly(st.Code()) {
				err = status.Errorf(codes.Internal, "received picker error with illegal status: %v", err)
			}
			return client.Pick{}, call.Final{Err: err}
		}
	}
	c.mu.Lock()
	to := &capture{waitForReady: waitForReady, generation: c.generation, pickers: c.pickers}
	c.mu.Unlock()
	err := c.newStream(ctx, to, method, grpc.WaitForReady(waitForReady))
	switch {
	case to.pick.Session != nil:
		return to.pick, nil
	case to.dropped:
		return client.Pick{}, call.Final{Err: err}
	case errors.Is(err, errCaptured):
		return client.Pick{Session: c.wholeSession()}, nil // a policy that is not wrapped has picked, or a config selector has replaced ctx
	}
	return client.Pick{}, err
}

// wholeSession returns a session for a call that nobody has picked for. grpc-go makes its calls as a
// whole.
func (c *Channel) wholeSession() link.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unpicked == nil {
		c.unpicked = grpcgo.NewSession(whole{conn: c.conn}, c.cfg.Target, c.authority, link.Peer{Caps: link.Caps{OneShot: true}}, func() {})
		c.retired = append(c.retired, c.unpicked)
	}
	return c.unpicked
}

// replaced makes the next call ask grpc-go for its picker. It is called after grpc-go has a new one.
func (c *Channel) replaced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.picker.Store(nil)
}

// use makes calls ask p. It does nothing if grpc-go may have got another picker since the given
// generation.
func (c *Channel) use(p *picker, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation == generation {
		c.picker.Store(p)
	}
}

// applied holds the settings of all calls.
type applied struct {
	service  *client.ServiceConfig
	selector *selector // of xDS; nil for none
}

// retire is called when these settings no longer apply. After that no call uses the
// selector, and its resolver may stop it.
func (a *applied) retire() {
	if a != nil && a.selector != nil {
		a.selector.replace()
	}
}

func (c *Channel) Select(ctx context.Context, method string) (client.Selection, error) {
	a, delayed := c.applied.Load(), false
	if c.isWhole.Load() {
		return client.Selection{Context: ctx, Through: c.whole}, nil
	}
	if a == nil {
		c.touch()
		delayed = !c.resolved.Load()
		err := c.newStream(ctx, &capture{configOnly: true}, method)
		if wait.Err(ctx) != nil || errors.Is(err, errClosing) {
			return client.Selection{}, err
		}
		if c.isWhole.Load() {
			return client.Selection{Context: ctx, Through: c.whole}, nil
		}
		if a = c.applied.Load(); a == nil {
			a = &c.initial
		}
	}
	s := client.Selection{Context: ctx, Service: a.service, Delayed: delayed}
	if a.selector == nil {
		return s, nil
	}
	return c.choose(ctx, a.selector, s, method)
}

// interceptUnary passes the calls that a program makes with the channel's *grpc.ClientConn to the
// channel.
func (c *Channel) interceptUnary(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if ctx.Value(ownKey{}) != nil {
		return invoke(ctx, method, req, reply, c.conn, opts...)
	}
	return c.cfg.Calls.Invoke(ctx, method, req, reply, opts...)
}

func (c *Channel) interceptStream(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if ctx.Value(ownKey{}) != nil {
		return stream(ctx, desc, c.conn, method, opts...)
	}
	return c.cfg.Calls.NewStream(ctx, desc, method, opts...)
}

// grpc-go counts its own calls to find out whether a ClientConn is idle. So a timer checks now
// and then whether the channel had calls, and if so makes a call with grpc-go.

// watchIdleness is called when the channel leaves idle mode.
func (c *Channel) watchIdleness() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Options.IdleAfter <= 0 || c.watcher != nil || c.closed {
		return
	}
	c.watcher = time.AfterFunc(c.lookAfter(), c.lookForCalls)
}

func (c *Channel) lookAfter() time.Duration { return durations.Recheck(c.cfg.Options.IdleAfter / 4) }

// idleTimeout returns the timeout for grpc-go. It is somewhat longer than the channel's, so that the
// timer looks before it passes, also on a busy machine.
func (c *Channel) idleTimeout() time.Duration {
	if c.cfg.Options.IdleAfter <= 0 {
		return 0
	}
	return durations.Sum(c.cfg.Options.IdleAfter, 100*time.Millisecond)
}

// touch makes a call with grpc-go that ends at once. It makes grpc-go leave idle mode, or stay out of
// it.
func (c *Channel) touch() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.newStream(ctx, &capture{configOnly: true}, "/nearcall.Idle/Touch")
}

func (c *Channel) lookForCalls() {
	if c.cfg.Active() {
		c.touch()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.conn.GetState() != connectivity.Shutdown {
		c.watcher.Reset(c.lookAfter())
	}
}
