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
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Sessions supplies the session that a call is made through.
type Sessions interface {
	// Pick returns a session that took calls a moment ago. Where there is
	// none it waits for ctx; unless waitForReady is set, it fails as soon as
	// an attempt to connect has failed. Its errors are status errors.
	Pick(ctx context.Context, waitForReady bool) (link.Session, error)
}

// ClientConfig is what a client is told once, before its first call.
type ClientConfig struct {
	Sessions    Sessions
	Unary       []grpc.UnaryClientInterceptor
	Stream      []grpc.StreamClientInterceptor
	Stats       []stats.Handler
	CallOptions []grpc.CallOption // precede those of each call
	Creds       []credentials.PerRPCCredentials
	Service     *ServiceConfig // may be nil
	Shared      bool           // messages are shared with servers that share theirs
	Authority   string
	UserAgent   string

	// GRPC returns the connection that interceptors are shown. It is called
	// only where there are interceptors.
	GRPC func() *grpc.ClientConn
}

// A Client makes calls.
type Client struct {
	cfg    ClientConfig
	unary  grpc.UnaryClientInterceptor
	stream grpc.StreamClientInterceptor
	stats  stats.Handler
	codec  link.Codec // of calls that name none

	profile, shared *link.Profile // of calls that say nothing else

	closing context.Context // ends with Close
	close   context.CancelFunc

	mu      sync.Mutex
	streams *clientStream // those that are open, linked by next and prev
	closed  error         // why none may be opened any more
}

// Close ends all streams with reason, also those whose end has arrived and was
// not received, and all calls that wait to be retried. Other unary calls end with
// their sessions.
func (c *Client) Close(reason error) {
	c.mu.Lock()
	if c.closed == nil {
		c.closed = reason
		c.close()
	}
	var open []*clientStream
	for s := c.streams; s != nil; s = s.next {
		open = append(open, s)
	}
	c.mu.Unlock()
	for _, s := range open {
		s.abortCall(reason)
	}
}

// closedFor returns why the client was closed; nil if it was not.
func (c *Client) closedFor() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// add notes that s is open; remove, that it is not.
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
	// They have memory of their own: who keeps a call keeps no client.
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

// defaultCodec is what encoding's registry has under protobuf's name.
func defaultCodec() link.Codec {
	if c, ok := codec.Get(""); ok {
		return c
	}
	return codec.Proto()
}

// BeginSession tells the client's stats handler of a session, and of its end.
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

// NewStream starts a call whose messages are sent and received one by one.
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

// prepareCall checks what can be checked before a session is needed.
func (c *Client) prepareCall(ctx context.Context, ci *callInfo, mc *methodConfig, opts []grpc.CallOption) (metadata.MD, error) {
	ci.opts, ci.reports = opts, true // until apply has looked, assume that somebody wants to know
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

// newCall returns a call that goes to peer and, in process, the callee's side of it
// in the same piece of memory.
func newCall(peer *link.Peer) *link.UnaryCall {
	if !peer.Local {
		return new(link.UnaryCall)
	}
	both := new(struct {
		link.UnaryCall
		callee serverCall
	})
	both.SetCallee(&both.callee)
	return &both.UnaryCall
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
	var last outcome // of an attempt that a session took
	for {
		ctx, a, md, err := c.beginAttempt(base, method, &ci, unaryDesc, own, kind)
		if err != nil {
			return ci.reportAndReturn(last, err)
		}
		session, err := c.cfg.Sessions.Pick(ctx, ci.waitForReady)
		if err == nil && !session.Peer().OneShot {
			return c.invokeStream(base, &ci, attempt{kind: kind, ctx: ctx, stats: a, session: session}, method, own, md, nil, req, reply)
		}
		var u *link.UnaryCall
		if err == nil {
			u = newCall(session.Peer())
			err = c.fillHeader(ctx, &u.CallHeader, &ci, method, md, session.Peer())
		}
		if err != nil {
			a.end(err, nil)
			if err = c.waitForRetry(base, ci.retry, err, nil); err != nil {
				return ci.reportAndReturn(last, err)
			}
			kind = policyRetry
			continue
		}
		err = c.invokeOn(ctx, session, u, &ci, a, req, reply)
		switch {
		case err == link.ErrNoCall:
			return c.invokeStream(base, &ci, attempt{kind: kind, ctx: ctx, stats: a, session: session}, method, own, md, &u.CallHeader, req, reply)
		case refusedBy(session, err), isUnprocessed(err) && kind == firstAttempt && !session.Peer().Local:
			// There may be another session, or room again in this one.
			a.end(linkStatus(err), nil)
			kind = transparentRetry
			continue
		}
		last = outcome{session.Peer(), u}
		failed := c.finishUnary(&ci, a, u, reply, err)
		if failed != nil && ci.retry != nil && canReplayUnary(&ci, u, req, err) {
			if failed = c.waitForRetry(base, ci.retry, failed, u.Trailer); failed == nil {
				kind = policyRetry
				continue
			}
		}
		return ci.reportAndReturn(last, failed)
	}
}

// An outcome is what came of an attempt at a unary call.
type outcome struct {
	peer *link.Peer
	call *link.UnaryCall // nil where no session took the attempt
}

// reportAndReturn reports how a unary call ended, with err, to those who asked. last is the
// last attempt that a session took. It returns err.
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

// invokeOn makes the call through session in one go, and returns what
// Session.Call does.
func (c *Client) invokeOn(ctx context.Context, session link.Session, u *link.UnaryCall, ci *callInfo, a *callStats, req, reply any) error {
	u.Codec, u.Request, u.Reply, u.Limit = ci.codec, req, reply, ci.maxRecv
	a.outHeader(&u.CallHeader, session.Peer())
	msg := messageOf(req, ci.codec)
	if err := checkSize(&msg, ci.maxSend); err != nil {
		return unsendable{err}
	}
	if !msg.Copies() {
		encoded, err := msg.Encode()
		if err != nil {
			return err
		}
		u.Request = &encoded
	}
	a.sent(req, ci.codec)
	if session.Peer().Local && !u.Deadline.IsZero() {
		bounded, cancel := withTimer(ctx, u.Deadline)
		if cancel != nil {
			defer cancel()
		}
		ctx = bounded
	}
	return session.Invoke(ctx, u)
}

// withTimer returns ctx for a call in process, where the caller's context alone keeps
// the deadline: one that has a deadline and never ends, as no timer is behind it, is
// given one. cancel is nil where none is needed.
func withTimer(ctx context.Context, deadline time.Time) (bounded context.Context, cancel context.CancelFunc) {
	if ctx.Done() != nil {
		return ctx, nil
	}
	return context.WithDeadline(ctx, deadline)
}

// finishUnary turns what came of an attempt into its error, and tells stats handlers.
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
			a.received(reply, ci.codec)
		}
		if answered {
			a.inTrailer(u.Trailer)
		}
		a.end(err, u.Trailer)
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

// fullHeader returns a copy of md with what gRPC's header has beside the
// user's metadata; nil for nil.
func fullHeader(md metadata.MD, subtype string) metadata.MD {
	if md == nil {
		return nil
	}
	full := md.Copy()
	full["content-type"] = []string{contentType(subtype)}
	delete(full, link.EncodingKey)
	return full
}

// fullTrailer returns trailer with what gRPC's has beside the user's metadata: a
// status with details in full, unless the handler has set that itself, and, where
// no header came before, the content-type. It returns trailer itself where that is
// nothing.
func fullTrailer(trailer metadata.MD, st *status.Status, header metadata.MD, subtype string) metadata.MD {
	p := st.Proto()
	_, own := trailer[detailsKey]
	details := len(p.GetDetails()) > 0 && !own
	if !details && header != nil {
		return trailer
	}
	full := trailer.Copy()
	if full == nil {
		full = metadata.MD{}
	}
	if header == nil {
		full["content-type"] = []string{contentType(subtype)}
	}
	if details {
		if b, err := proto.Marshal(p); err == nil {
			full[detailsKey] = []string{string(b)}
		}
	}
	return full
}

// invokeStream makes a unary call as a stream of one message each way. o is
// what an attempt to make it in one go has prepared and told stats handlers
// of; nil where there was none. own is the caller's metadata, and md what the
// first attempt makes of it.
func (c *Client) invokeStream(base context.Context, ci *callInfo, first attempt, method string, own, md metadata.MD, o *link.CallHeader, req, reply any) error {
	info := new(callInfo) // a copy, so that ci need not outlive a call that is no stream
	*info = *ci
	s := &clientStream{client: c, desc: unaryDesc, info: info, method: method, md: own, base: base, firstAttempt: first}
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
