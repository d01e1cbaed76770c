package call

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Sessions supplies sessions for calls.
type Sessions interface {
	// Pick returns a session that accepted calls a moment ago. If there is
	// none, it waits until there is or ctx ends. Unless waitForReady is set, it
	// fails as soon as an attempt to connect has failed. Its errors are status
	// errors.
	Pick(ctx context.Context, waitForReady bool) (link.Session, error)
}

// ClientConfig configures a Client.
type ClientConfig struct {
	Sessions    Sessions
	Unary       []grpc.UnaryClientInterceptor
	Stream      []grpc.StreamClientInterceptor
	Stats       []stats.Handler
	CallOptions []grpc.CallOption // precede those of each call
	Creds       []credentials.PerRPCCredentials
	Service     *ServiceConfig // may be nil
	Shared      bool           // share messages with servers that share theirs
	Authority   string
	UserAgent   string

	// GRPC returns the connection to pass to interceptors. It is called only if
	// there are interceptors.
	GRPC func() *grpc.ClientConn
}

// A Client makes calls.
type Client struct {
	cfg    ClientConfig
	unary  grpc.UnaryClientInterceptor
	stream grpc.StreamClientInterceptor
	stats  stats.Handler
	codec  link.Codec // the default

	profile, shared *link.Profile // of calls without options; shared if messages are shared

	closing context.Context // ends with Close
	close   context.CancelFunc

	mu      sync.Mutex
	streams *clientStream // the open streams, linked by next and prev
	closed  error         // reason of Close; nil before
}

// Refuse makes no more calls, for reason, and ends those that wait for a retry. Other calls
// end with their sessions.
func (c *Client) Refuse(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.closed = reason
		c.close()
	}
}

// Close ends all streams for reason, even those whose end has arrived but was not
// received, and all calls that wait for a retry. Other unary calls end with their
// sessions.
func (c *Client) Close(reason error) {
	c.Refuse(reason)
	c.mu.Lock()
	var open []*clientStream
	for s := c.streams; s != nil; s = s.next {
		open = append(open, s)
	}
	c.mu.Unlock()
	for _, s := range open {
		s.abortCall(reason)
	}
}

// closedFor returns the reason of Close, or nil if the client was not closed.
func (c *Client) closedFor() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// add adds s to the open streams. It fails if the client was closed.
func (c *Client) add(s *clientStream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return c.closed
	}
	if s.next = c.streams; s.next != nil {
		s.next.prev = s
	}
	c.streams, s.listed = s, true
	return nil
}

// remove removes s from the open streams, if add has added it.
func (c *Client) remove(s *clientStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.listed {
		return
	}
	s.listed = false
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		c.streams = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.next, s.prev = nil, nil
}

// NewClient returns a client.
func NewClient(cfg ClientConfig) *Client {
	// The profiles are allocated on their own, so that a retained call, which refers
	// to one, does not retain the client.
	profile := &link.Profile{Authority: cfg.Authority, UserAgent: cfg.UserAgent, Accept: strings.Join(registered, ",")}
	profile.Check()
	shared := new(link.Profile)
	*shared = *profile
	shared.Shared = true
	closing, cancel := context.WithCancel(context.Background())
	return &Client{
		cfg:     cfg,
		unary:   chainUnaryClient(cfg.Unary),
		stream:  chainStreamClient(cfg.Stream),
		stats:   joinStats(cfg.Stats),
		codec:   defaultCodec(),
		profile: profile,
		shared:  shared,
		closing: closing,
		close:   cancel,
	}
}

// defaultCodec returns the codec that is registered for protobuf.
func defaultCodec() link.Codec {
	if c, ok := codec.Get(""); ok {
		return c
	}
	return codec.Proto()
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
	opts = combine(c.cfg.CallOptions, opts)
	if c.unary != nil {
		return c.unary(ctx, method, req, reply, c.cfg.GRPC(), c.invoke, opts...)
	}
	return c.invoke(ctx, method, req, reply, nil, opts...)
}

// NewStream starts a streaming call.
func (c *Client) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	opts = combine(c.cfg.CallOptions, opts)
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

// prepareCall applies the options and makes the checks that need no session. It returns
// the user's metadata.
func (c *Client) prepareCall(ctx context.Context, ci *callInfo, mc *methodConfig, opts []grpc.CallOption) (metadata.MD, error) {
	ci.opts, ci.reports = opts, true // apply sets reports, but errors before it must be reported, too
	if ctx == nil {
		return nil, errNilContext
	}
	md, err := outgoing(ctx)
	if err != nil {
		return nil, err
	}
	ci.reports = false
	if err := ci.apply(opts, mc, c.codec); err != nil {
		ci.reports = true
		return nil, err
	}
	if err := wait.Err(ctx); err != nil {
		return nil, startStatus(err)
	}
	return md, nil
}

// newCall returns a call to peer. In process it allocates the callee's state together
// with the call.
func newCall(peer *link.Peer) *link.UnaryCall {
	if !peer.Local {
		return remoteCalls.Get().(*link.UnaryCall)
	}
	both := new(struct {
		link.UnaryCall
		callee serverCall
	})
	both.SetCallee(&both.callee)
	return &both.UnaryCall
}

// remoteCalls has calls to peers in other processes. A handler in this process can keep its
// call for as long as it likes.
var remoteCalls = sync.Pool{New: func() any { return new(link.UnaryCall) }}

// freeCall frees a call to peer that has ended. Its results are used no more.
func freeCall(u *link.UnaryCall, peer *link.Peer) {
	if !peer.Local {
		*u = link.UnaryCall{}
		remoteCalls.Put(u)
	}
}

var unaryDesc = &grpc.StreamDesc{}

func (c *Client) invoke(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	var ci callInfo
	mc := c.cfg.Service.of(method)
	if mc.timeout != nil && ctx != nil {
		bounded, cancel := mc.withTimeout(ctx)
		if cancel != nil {
			defer cancel()
		}
		ctx = bounded
	}
	md, err := c.prepareCall(ctx, &ci, mc, opts)
	if err != nil {
		ci.onFinished(err)
		return err
	}
	base, own, kind := ctx, md, firstAttempt
	var last outcome // of the last attempt that reached a session
	var given *link.Message
	defer func() {
		if given != nil {
			given.Free()
		}
	}()
	for {
		ctx, a, md, err := c.beginAttempt(base, method, &ci, unaryDesc, own, kind)
		if err != nil {
			return ci.reportAndReturn(last, err)
		}
		session, err := c.cfg.Sessions.Pick(ctx, ci.waitForReady)
		if err == nil && !session.Peer().OneShot {
			return c.invokeStream(base, &ci, attempt{kind: kind, ctx: ctx, stats: a, session: session}, method, own, md, nil, nil, req, reply)
		}
		var u *link.UnaryCall
		if err == nil {
			u = newCall(session.Peer())
			err = c.fillHeader(ctx, &u.CallHeader, &ci, method, md, session.Peer())
		}
		if err != nil {
			a.reportEnd(err, nil)
			if err = c.waitForRetry(base, ci.retry, err, nil); err != nil {
				return ci.reportAndReturn(last, err)
			}
			kind = policyRetry
			continue
		}
		err = c.invokeOn(ctx, session, u, &ci, a, req, reply, &given)
		switch {
		case err == link.ErrNoCall:
			return c.invokeStream(base, &ci, attempt{kind: kind, ctx: ctx, stats: a, session: session}, method, own, md, &u.CallHeader, given, req, reply)
		case refusedBy(session, err), isUnprocessed(err) && kind == firstAttempt && !session.Peer().Local:
			// Retry: another session, or this one if it has room again, may accept it.
			a.reportEnd(linkStatus(err), nil)
			kind = transparentRetry
			continue
		}
		last = outcome{session.Peer(), u}
		failed := c.finishUnary(&ci, a, u, reply, err)
		if failed != nil && ci.retry != nil && canReplayUnary(&ci, u, req, given, err) {
			if failed = c.waitForRetry(base, ci.retry, failed, u.Trailer); failed == nil {
				kind = policyRetry
				continue
			}
		}
		err = ci.reportAndReturn(last, failed)
		freeCall(u, last.peer)
		return err
	}
}

// An outcome is the result of an attempt at a unary call.
type outcome struct {
	peer *link.Peer
	call *link.UnaryCall // nil if the attempt did not reach a session
}

// reportAndReturn reports the end of a unary call to the options that ask for it, and
// returns err. last is the last attempt that reached a session.
func (ci *callInfo) reportAndReturn(last outcome, err error) error {
	if ci.reports {
		ci.report(last, err)
	}
	return err
}

func (ci *callInfo) report(last outcome, err error) {
	if last.call != nil {
		ci.fillOptions(last.peer, last.call.Header, last.call.Trailer)
	}
	ci.onFinished(err)
}

// invokeOn makes the call with session.Invoke and returns its error. given is the request encoded,
// or nil if it was not. Earlier attempts may have set it.
func (c *Client) invokeOn(ctx context.Context, session link.Session, u *link.UnaryCall, ci *callInfo, a *callStats, req, reply any, given **link.Message) error {
	u.Codec, u.Request, u.Reply, u.Limit = ci.codec, req, reply, ci.maxRecv
	a.outHeader(&u.CallHeader, session.Peer())
	msg := messageOf(req, ci.codec)
	// In process, users' codecs run on their own side. And stats handlers must not see what cannot be
	// encoded.
	if *given == nil && ((session.Peer().Local || a != nil) && !msg.Copies() || ci.codec != codec.Proto() && !session.Peer().Local) {
		var err error
		if *given, err = encodeOnce(&msg, session.Peer()); err != nil {
			return err
		}
	}
	if *given != nil {
		msg, u.Request = **given, *given
	}
	if err := checkSize(&msg, ci.maxSend, ci.encoding, session.Peer()); err != nil {
		return unsendable{err}
	}
	if _, packed := msg.Compressed(ci.encoding); packed {
		once := msg
		u.Request = &once
	}
	a.sent(req, &msg)
	if session.Peer().Local && !u.Deadline.IsZero() {
		bounded, cancel := withTimer(ctx, u.Deadline)
		if cancel != nil {
			defer cancel()
		}
		ctx = bounded
	}
	err := session.Invoke(ctx, u)
	if err == nil && u.Late {
		u.End, err = link.End{}, context.DeadlineExceeded
	}
	return err
}

// withTimer returns a context that ends at deadline, for a call in process: there only
// the caller's context ends the call. If ctx has a deadline but no Done channel, withTimer
// adds a timer. Otherwise it returns ctx and a nil cancel.
func withTimer(ctx context.Context, deadline time.Time) (bounded context.Context, cancel context.CancelFunc) {
	if ctx.Done() != nil {
		return ctx, nil
	}
	return context.WithDeadline(ctx, deadline)
}

// finishUnary returns the error of an attempt and reports its results to stats handlers.
// err is the error of Session.Invoke.
func (c *Client) finishUnary(ci *callInfo, a *callStats, u *link.UnaryCall, reply any, err error) error {
	answered := err == nil
	if answered {
		u.Status = statusWith(u.Status, u.Trailer)
	}
	err = c.unaryError(u, err)
	if len(ci.accept) > 0 {
		if refused := ci.checkReply(u.Header); refused != nil {
			err = refused
		}
	}
	if answered && (a != nil || ci.reports) {
		u.Trailer = fullTrailer(u.Trailer, u.Status, u.Header, ci.subtype)
	}
	if a != nil {
		if u.Header != nil {
			a.inHeader(u.Header, ci.subtype)
		}
		if u.Replied && u.ReplyError == nil {
			a.received(reply, ci.codec, u.ReplySize)
		}
		if answered {
			a.inTrailer(u.Trailer)
		}
		a.reportEnd(err, u.Trailer)
	}
	return err
}

func (c *Client) unaryError(u *link.UnaryCall, err error) error {
	switch {
	case err == link.ErrReplies:
		return errTwoReplies
	case err != nil:
		return linkStatus(err)
	case u.ReplyError != nil:
		return linkStatus(u.ReplyError)
	case u.Status != nil:
		return u.Status.Err()
	case !u.Replied:
		return errNoReply
	}
	return nil
}

var (
	errNoReply    = status.Error(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC")
	errTwoReplies = status.Error(codes.Internal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message")
)

// invokeStream makes a unary call as a stream of one message each way. o is the header
// that a failed invokeOn has prepared and reported to stats handlers; nil without one.
// own is the caller's metadata, and md that of the first attempt. given is the request if it is
// encoded already.
func (c *Client) invokeStream(base context.Context, ci *callInfo, first attempt, method string, own, md metadata.MD, o *link.CallHeader, given *link.Message, req, reply any) error {
	info := new(callInfo) // a copy, so that ci does not escape in calls without a stream
	*info = *ci
	s := &clientStream{client: c, desc: unaryDesc, info: info, method: method, md: own, base: base, firstAttempt: first}
	if given != nil {
		s.given = given.Data().Materialize() // given is freed when this call returns
	}
	if first.stats != nil {
		first.stats.skipSent = o != nil
	}
	if err := s.openFirstAttempt(md, o); err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil {
		return err
	}
	return s.RecvMsg(reply)
}
