// Package client implements the caller's side of gRPC's calls, independently of the transport:
// call options, service config, credentials, interceptors, attempts and retries.
package client

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// Sessions supplies sessions for calls.
type Sessions interface {
	// Pick returns a session that accepts calls. The session may stop doing so at any time. If
	// there is none, it waits until there is one or ctx ends. Unless waitForReady is set, it
	// fails as soon as an attempt to connect has failed. Its errors are status errors.
	Pick(ctx context.Context, waitForReady bool) (link.Session, error)
}

// Config is what a Client needs besides its options.
type Config struct {
	Sessions  Sessions
	Balancer  Balancer       // if not nil, replaces Sessions and Service
	Service   *ServiceConfig // may be nil
	Authority string
	UserAgent string

	// GRPC returns the connection to pass to interceptors. It is called only if
	// there are interceptors.
	GRPC func() *grpc.ClientConn
}

// A Client makes calls.
type Client struct {
	opts   *options.Client
	cfg    Config
	unary  grpc.UnaryClientInterceptor
	stream grpc.StreamClientInterceptor
	stats  stats.Handler
	codec  link.Codec // the default

	profile, shared *link.Profile // of calls without options; shared is for peers that share messages

	closing context.Context // ends with Refuse or Close, whose reason is its cause
	close   context.CancelCauseFunc

	mu      sync.Mutex
	streams map[*clientStream]struct{} // the open ones
}

// Refuse makes the client refuse new calls with reason, and ends the calls that wait for a retry.
// Other calls end with their sessions.
func (c *Client) Refuse(reason error) { c.close(reason) }

// Close ends all streams for reason, and all calls that wait for a retry. It also ends streams
// whose end has arrived, if the user has not received the end. Other unary calls end with their
// sessions.
func (c *Client) Close(reason error) {
	c.Refuse(reason)
	c.mu.Lock()
	open := slices.Collect(maps.Keys(c.streams))
	c.mu.Unlock()
	for _, s := range open {
		s.abortCall(reason)
	}
}

// add adds s to the open streams. It fails if the client was closed.
func (c *Client) add(s *clientStream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return context.Cause(c.closing)
	}
	c.streams[s] = struct{}{}
	return nil
}

// remove removes s from the open streams, if add has added it.
func (c *Client) remove(s *clientStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
}

// New returns a client.
func New(o *options.Client, cfg Config) *Client {
	// The profiles are allocated separately: a call that a user keeps refers to a profile, and
	// must not keep the client alive.
	profile := &link.Profile{Authority: cfg.Authority, UserAgent: cfg.UserAgent, Accept: strings.Join(grpcinside.CompressorNames(), ",")}
	profile.Check()
	shared := new(link.Profile)
	*shared = *profile
	shared.Shared = true
	closing, cancel := context.WithCancelCause(context.Background())
	return &Client{
		opts:    o,
		cfg:     cfg,
		unary:   call.Chain(o.ClientUnaryChain, call.JoinUnaryClient),
		stream:  call.Chain(o.ClientStreamChain, call.JoinStreamClient),
		stats:   call.JoinStats(o.ClientStats),
		codec:   call.DefaultCodec(),
		profile: profile,
		shared:  shared,
		closing: closing,
		close:   cancel,
		streams: make(map[*clientStream]struct{}),
	}
}

// BeginSession reports a session, and later its end, to the client's stats handler.
func (c *Client) BeginSession(s link.Session) {
	h := c.stats
	if h == nil {
		return
	}
	p := s.Peer()
	ctx := h.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: p.Addr, LocalAddr: p.LocalAddr})
	h.HandleConn(ctx, &stats.ConnBegin{Client: true})
	go func() {
		<-s.Ended()
		h.HandleConn(ctx, &stats.ConnEnd{Client: true})
	}()
}

// Invoke makes a unary call.
func (c *Client) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	opts = combine(c.opts.DefaultOptions, opts)
	if c.unary != nil {
		return c.unary(ctx, method, req, reply, c.cfg.GRPC(), c.invoke, opts...)
	}
	return c.invoke(ctx, method, req, reply, nil, opts...)
}

// NewStream starts a streaming call.
func (c *Client) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	opts = combine(c.opts.DefaultOptions, opts)
	if c.stream != nil {
		return c.stream(ctx, desc, c.cfg.GRPC(), method, c.newStream, opts...)
	}
	return c.newStream(ctx, desc, nil, method, opts...)
}

func combine(a, b []grpc.CallOption) []grpc.CallOption {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	return append(append(make([]grpc.CallOption, 0, len(a)+len(b)), a...), b...)
}

var errNilContext = status.Error(codes.Internal, "nearcall: a call needs a context; pass context.Background() where there is no other")

// prepareCall applies the service config and the options, and makes the checks that need no
// session. It reports an error to the call's options. cancel must be called when the call has ended.
func (c *Client) prepareCall(ci *callInfo, opts []grpc.CallOption) (cancel context.CancelFunc, err error) {
	ci.opts, ci.reports = opts, true // apply sets reports; errors before apply must be reported, too
	cancel, ci.committed = func() {}, func() {}
	mc, err := c.selectConfig(ci)
	if err == nil && ci.ctx != nil && ci.through == nil {
		ci.ctx, cancel = mc.withTimeout(ci.ctx)
	}
	if err == nil {
		err = c.checkCall(ci, mc, opts)
	}
	if err != nil {
		ci.committed()
		ci.onFinished(err)
	}
	return cancel, err
}

func (c *Client) checkCall(ci *callInfo, mc *methodConfig, opts []grpc.CallOption) (err error) {
	if ci.ctx == nil {
		return errNilContext
	}
	if ci.md, err = outgoing(ci.ctx); err != nil {
		return err
	}
	ci.reports = false
	if err := ci.apply(opts, mc, c.codec); err != nil {
		ci.reports = true
		return err
	}
	if err := wait.Err(ci.ctx); err != nil {
		return startStatus(err)
	}
	return nil
}

// newCall returns a call to peer.
func newCall(peer *link.Peer) *link.UnaryCall {
	if peer.NewCall != nil {
		return peer.NewCall()
	}
	return calls.Get().(*link.UnaryCall)
}

// calls is a pool of calls to peers in other processes.
var calls = sync.Pool{New: func() any { return new(link.UnaryCall) }}

// freeCall frees a call to peer that has ended. Nobody may use its results any more.
func freeCall(u *link.UnaryCall, peer *link.Peer) {
	if peer.NewCall == nil {
		*u = link.UnaryCall{}
		calls.Put(u)
	}
}

var unaryDesc = &grpc.StreamDesc{}

func (c *Client) invoke(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	ci := callInfo{ctx: ctx, method: method, desc: unaryDesc}
	cancel, err := c.prepareCall(&ci, opts)
	defer cancel()
	if err != nil {
		return err
	}
	if ci.through != nil {
		return ci.through.Invoke(ctx, method, req, reply, opts...)
	}
	defer ci.committed()
	var a attempt
	if err := c.beginAttempt(ci.ctx, &a, &ci); err != nil {
		ci.onFinished(err)
		return err
	}
	var u *link.UnaryCall
	if err = a.pickSession(c, &ci); err == nil {
		if a.peer = a.session.Peer(); !a.peer.OneShot {
			return c.invokeStream(&ci, a, failure{}, req, reply)
		}
		u = newCall(a.peer)
		err = c.fillHeader(&u.CallHeader, &a, &ci)
	}
	if err != nil {
		return c.invokeStream(&ci, a, failure{reason: err}, req, reply)
	}
	defer func() {
		if ci.given != nil {
			ci.given.Free()
		}
	}()
	err = c.invokeOnce(&a, &ci, u, req, reply)
	if err == link.ErrNoCall {
		a.header = &u.CallHeader
		return c.invokeStream(&ci, a, failure{}, req, reply)
	}
	if err != nil || u.Status != nil {
		if why := ci.unaryFailure(u, req, err); why.failed() {
			if !isUnprocessed(err) {
				a.header = &u.CallHeader
			}
			return c.invokeStream(&ci, a, why, req, reply)
		}
	}
	err = c.finishUnary(&ci, &a, u, reply, err)
	if ci.reports {
		ci.fillOptions(a.peer, u.Header, u.Trailer)
		ci.onFinished(err)
	}
	freeCall(u, a.peer)
	return err
}

// invokeOnce makes the call with Session.Invoke and returns its error. It sets ci.given if it
// encodes the request.
func (c *Client) invokeOnce(a *attempt, ci *callInfo, u *link.UnaryCall, req, reply any) (err error) {
	u.Codec, u.Request, u.Reply, u.Limit = ci.codec, req, reply, ci.maxRecv
	a.stats.OutHeader(&u.CallHeader, a.peer)
	msg := call.MessageOf(req, ci.codec)
	if a.mustEncode(&msg, ci.codec) {
		if ci.given, err = encodeOnce(&msg, a.peer); err != nil {
			return err
		}
		msg, u.Request = *ci.given, ci.given
	}
	if err := call.CheckSize(&msg, ci.maxSend, ci.encoding, a.peer); err != nil {
		return call.Final{Err: err}
	}
	if _, packed := msg.Compressed(ci.encoding); packed {
		once := msg
		u.Request = &once
	}
	a.stats.Sent(req, &msg)
	ctx, cancel := a.withTimer(u.Deadline)
	defer cancel()
	err = a.session.Invoke(ctx, u)
	if err == nil && u.Late {
		u.End, err = link.End{}, context.DeadlineExceeded
	}
	return err
}

// mustEncode reports whether Invoke must encode its request m. It must in three cases: in process,
// so that a user's codec runs on the caller's side; with a stats handler, which must not see a
// message that cannot be encoded; and with a user's codec, which encodes a request once for all
// attempts.
func (a *attempt) mustEncode(m *link.Message, c link.Codec) bool {
	if (a.peer.Local || a.stats != nil) && !m.Copies() {
		return true
	}
	return !a.peer.Local && c != codec.Proto()
}

// withTimer returns the context of a, which ends at deadline. A call in process needs a timer if its
// context has a deadline but no Done channel, because there only the caller's context ends the call.
func (a *attempt) withTimer(deadline time.Time) (context.Context, context.CancelFunc) {
	if !a.peer.Local || deadline.IsZero() || a.ctx.Done() != nil {
		return a.ctx, func() {}
	}
	return context.WithDeadline(a.ctx, deadline)
}

// finishUnary returns the error of an attempt and reports its results to stats handlers.
// err is the error of Session.Invoke.
func (c *Client) finishUnary(ci *callInfo, a *attempt, u *link.UnaryCall, reply any, err error) error {
	answered := err == nil
	if answered {
		u.Status = statusWith(u.Status, u.Trailer)
	}
	local := err != nil || u.ReplyError != nil || u.Status == nil
	err = c.unaryError(u, err)
	if len(ci.accept) > 0 {
		if refused := ci.checkReply(u.Header); refused != nil {
			err, local = refused, true
		}
	}
	if !local {
		ci.calleeEnded()
	}
	if answered && (a.stats != nil || a.done != nil || ci.reports) {
		u.Trailer = call.FullTrailer(&u.End, u.Header, ci.subtype)
	}
	if s := a.stats; s != nil {
		if u.Header != nil {
			s.InHeader(u.Header, ci.subtype)
		}
		if u.Replied && u.ReplyError == nil {
			s.Received(reply, ci.codec, u.ReplySize)
		}
		if answered {
			s.InTrailer(u.Trailer)
		}
	}
	a.header = &u.CallHeader
	a.reportEnd(err, u.Trailer, answered || u.Header != nil)
	return err
}

func (c *Client) unaryError(u *link.UnaryCall, err error) error {
	switch {
	case err == link.ErrReplies:
		return errTwoReplies
	case err != nil:
		return call.LinkStatus(err)
	case u.ReplyError != nil:
		return call.LinkStatus(u.ReplyError)
	case u.Status != nil:
		return errorOf(u.Status)
	case !u.Replied:
		return errNoReply
	}
	return nil
}

var (
	errNoReply    = status.Error(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC")
	errTwoReplies = status.Error(codes.Internal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message")
)

// invokeStream makes a unary call as a stream of one message each way. a is the call's first
// attempt, which has no stream yet or has failed with why.
func (c *Client) invokeStream(ci *callInfo, a attempt, why failure, req, reply any) error {
	info := new(callInfo) // a copy, so that ci does not escape in calls without a stream
	*info = *ci
	s := &clientStream{client: c, info: info, firstAttempt: a}
	if info.given != nil {
		s.given = info.given.Data().Materialize() // a copy: an attempt in this process frees its reference
		info.given = nil
	}
	if a.stats != nil {
		a.stats.SkipSent = a.header != nil
	}
	if err := s.openFirstAttempt(why); err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil {
		return err
	}
	return s.RecvMsg(reply)
}
