package client

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Retries. A unary call is first tried with Session.Invoke, if the session supports that. Its
// further attempts are streams of one message each way, so that unary calls and streams are
// retried by the same code. There are two kinds of retries:
//
// A transparent retry: no handler has seen the call, and the user does not learn of the retry. As
// in grpc-go, a call of which nothing was sent is retried for as long as there are other sessions.
// So a server that drains its connections one after the other loses no call: they refuse it before
// it is sent. The code that connects limits how fast sessions follow each other. A call that
// the peer has refused is retried once, after the first attempt only. Otherwise a peer that refuses
// each call, and ends each connection, could make the client connect without a limit or a pause.
//
// A retry by policy: the attempt failed without a header, and the service config
// has a retryPolicy that allows another. See retry.go.
//
// Invariants:
//
//   - A call is committed once it has received a header or a message, has failed without a retry,
//     has sent more than the replay limit, or is finished, or once the user has asked for its
//     context or trailer. A committed call stays committed, and its attempt is not replaced.
//   - The goroutine that replaces the attempt holds retryMu and sets retrying,
//     including during the backoff. While retrying is set, only this goroutine may set the field
//     current or finish the call. Other goroutines that want to finish the call set giveUpReason.
//   - The trailer is that of the current attempt until another attempt is opened.
//   - replayBuffer holds exactly what the user has sent. A send counts if its attempt is still
//     current when the send returns, and is not being replaced. Otherwise the send is repeated on
//     the next attempt.
//   - A call whose attempt failed is retried by the user's next operation on it. Until that
//     operation only the end of its context or the closing of its client ends the call, as in
//     grpc-go.
//   - Calls in process without a retryPolicy are committed from the beginning: only NewStream can
//     refuse them. They keep nothing for replay.

// An attempt is one try of a call. Each has a stream, except the first try of a unary call.
type attempt struct {
	kind    attemptKind
	ctx     context.Context  // tagged by stats handlers; nil before the attempt has begun
	md      metadata.MD      // the user's, with the additions of stats handlers
	stats   *call.Stats      // nil without a stats handler
	session link.Session     // nil before one is picked
	peer    *link.Peer       // the session's
	header  *link.CallHeader // nil before it is sent
	stream  link.Stream

	// The picker's settings for the attempt.
	host      string                  // replaces the target's authority; "" for none
	authority string                  // replaces both, if the server can prove it; "" for none
	done      func(balancer.DoneInfo) // nil for none, and after the end was reported

	// Guarded by the stream's mu.
	abortReason  error // why the stream was aborted; nil if it was not
	retryPending bool  // the stream was aborted, and the next operation retries the call
	ended        bool  // its end was reported to stats handlers
	answered     bool  // something was received
}

// isUnprocessed reports whether err says that no handler has seen the call.
func isUnprocessed(err error) bool { return errors.Is(err, link.ErrUnprocessed) }

// unsent reports whether err says that nothing of a call was sent, and that another session may
// accept it. It is false if the session still takes calls: retries would pick the same session
// for ever. In process the caller keeps a request until a handler takes it.
func unsent(session link.Session, err error) bool {
	u, ok := errors.AsType[link.Unprocessed](err)
	return ok && (u.Unsent || session.Peer().Local && link.IsClosed(session.Done()))
}

// beginAttempt sets the context, the metadata and the stats of a, and reports the start of a to
// the client's stats handler. The error is a status error. If the start was reported, the error
// was reported as well.
func (c *Client) beginAttempt(ctx context.Context, a *attempt, ci *callInfo) error {
	a.ctx, a.md = ctx, ci.md
	if a.kind != firstAttempt {
		if err := wait.Err(ctx); err != nil {
			return startStatus(err)
		}
	}
	h := c.stats
	if h == nil {
		return nil
	}
	s := call.NewStats(ctx, h, true, &stats.RPCTagInfo{FullMethodName: ci.method, FailFast: !ci.waitForReady, NameResolutionDelay: ci.delayed})
	s.Report(&stats.Begin{
		Client:         true,
		BeginTime:      s.Begin,
		FailFast:       !ci.waitForReady,
		IsClientStream: ci.desc.ClientStreams,
		IsServerStream: ci.desc.ServerStreams,

		IsTransparentRetryAttempt: a.kind == transparentRetry,
	})
	md, err := call.Outgoing(s.Ctx)
	if err != nil {
		s.End(err, nil)
		return err
	}
	a.ctx, a.md, a.stats = s.Ctx, md, s
	return nil
}

// reportHeader reports to stats handlers that the header was sent. If one panics, nobody else knows
// of the stream, so reportHeader ends it.
func (a *attempt) reportHeader() {
	if a.stats == nil {
		return
	}
	reported := false
	defer func() {
		if !reported {
			a.stream.Abort(context.Canceled)
		}
	}()
	a.stats.OutHeader(a.header, a.peer)
	reported = true
}

// pickSession picks a session for the attempt.
func (a *attempt) pickSession(c *Client, ci *callInfo) (err error) {
	if c.cfg.Balancer == nil {
		a.session, err = c.cfg.Sessions.Pick(a.ctx, ci.waitForReady)
		return err
	}
	p, err := c.cfg.Balancer.Pick(a.ctx, ci.method, ci.waitForReady)
	if err != nil {
		return err
	}
	a.session, a.done, a.host = p.Session, p.Done, p.Authority
	if p.Waited && a.stats != nil {
		a.stats.Report(&stats.DelayedPickComplete{})
	}
	if len(p.Metadata) > 0 {
		a.md, err = withPicked(a.md, p.Metadata)
		if own := p.Metadata[":authority"]; len(own) > 0 && ci.authority == "" {
			a.authority = own[0]
		}
	}
	return err
}

// withPicked returns md with the metadata of a picker, by the rules for a user's.
func withPicked(md, picked metadata.MD) (metadata.MD, error) {
	if err := call.Validate(picked); err != nil {
		return nil, err
	}
	return call.Join(md.Copy(), picked), nil
}

// reportEnd reports the end of the attempt to the picker and to stats handlers. answered says that
// something has arrived from the server.
func (a *attempt) reportEnd(err error, trailer metadata.MD, answered bool) {
	if done := a.done; done != nil {
		a.done = nil
		done(balancer.DoneInfo{Err: err, Trailer: trailer, BytesSent: a.header != nil, BytesReceived: answered, ServerLoad: loadOf(trailer)})
	}
	a.stats.End(err, trailer)
}

// withTimer returns the context of a, which ends at deadline. A call in process needs a timer if its
// context has a deadline but no Done channel, because there only the caller's context ends the call.
func (a *attempt) withTimer(deadline time.Time) (context.Context, context.CancelFunc) {
	if !a.peer.Local || deadline.IsZero() || a.ctx.Done() != nil {
		return a.ctx, func() {}
	}
	return context.WithDeadline(a.ctx, deadline)
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

// fillHeader sets o for the attempt a, whose session was picked.
func (c *Client) fillHeader(o *link.CallHeader, a *attempt, ci *callInfo) error {
	authority := cmp.Or(ci.authority, a.authority)
	if authority != "" {
		if err := vouch(a.peer, authority); err != nil {
			return err
		}
	}
	o.Profile = c.profileOf(ci, cmp.Or(authority, a.host), a.peer)
	o.Method = ci.method
	o.Metadata = a.md
	o.MaxReply = ci.maxRecv
	if c.hasCreds(ci) {
		auth, err := c.authMetadata(a.ctx, a.peer, ci, o.Authority)
		if err != nil {
			return err
		}
		for k, v := range a.md {
			auth[k] = append(auth[k], v...)
		}
		o.Metadata = auth
	}
	if ci.retry != nil {
		o.Metadata = ci.retry.addPreviousAttempts(o.Metadata)
	}
	// The deadline may have passed before the context's timer fires.
	if deadline, ok := a.ctx.Deadline(); ok {
		if time.Until(deadline) <= 0 {
			return call.ContextStatus(context.DeadlineExceeded)
		}
		o.Deadline = deadline
	}
	return nil
}

// profileOf returns the profile of a call. It also sets ci.codec according to whether
// messages are shared with p.
func (c *Client) profileOf(ci *callInfo, authority string, p *link.Peer) *link.Profile {
	profile := c.profile
	if c.opts.ClientImmutable {
		ci.codec = codec.Unshared(ci.codec)
		if p.Shares && ci.codec == codec.Proto() || p.SharesBytes && ci.codec != codec.Proto() {
			ci.codec = codec.Sharing(ci.codec)
			profile = c.shared
		}
	}
	if authority == "" && ci.subtype == "" && ci.encoding == "" && ci.accept == nil {
		return profile
	}
	own := *profile
	if authority != "" {
		own.Authority = authority
	}
	own.ContentSubtype, own.Encoding, own.Accept = ci.subtype, ci.encoding, ci.accepts(own.Accept)
	return own.Check()
}

// hasCreds reports whether credentials add to the metadata of a call.
func (c *Client) hasCreds(ci *callInfo) bool { return len(c.opts.PerRPC) > 0 || ci.creds != nil }

// authMetadata returns the metadata that the credentials of the connection and of the
// call add to a request to authority.
func (c *Client) authMetadata(ctx context.Context, p *link.Peer, ci *callInfo, authority string) (metadata.MD, error) {
	ctx = credentials.NewContextWithRequestInfo(ctx, credentials.RequestInfo{Method: ci.method, AuthInfo: p.AuthInfo})
	audience := audience(authority, ci.method)
	md := make(metadata.MD)
	for _, creds := range c.opts.PerRPC {
		auth, err := authOf(ctx, creds, audience, p, codes.Unauthenticated)
		if err != nil {
			return nil, err
		}
		for k, v := range auth {
			md[k] = []string{v} // the last credentials that set a key win
		}
	}
	if ci.creds != nil {
		auth, err := authOf(ctx, ci.creds, audience, p, codes.Internal)
		if err != nil {
			return nil, err
		}
		for k, v := range auth {
			md[k] = append(md[k], v)
		}
	}
	return md, nil
}

// vouch returns an error if a call to p must not override the connection's authority with the
// given one. With TLS, the server's certificate must be valid for it: otherwise the caller would
// trust a server that cannot prove the name.
func vouch(p *link.Peer, authority string) error {
	v, ok := p.AuthInfo.(credentials.AuthorityValidator)
	if !ok {
		kind := "none"
		if p.AuthInfo != nil {
			kind = p.AuthInfo.AuthType()
		}
		return status.Errorf(codes.Unavailable, "credentials type %q does not implement the AuthorityValidator interface, but authority override specified with CallAuthority call option", kind)
	}
	if err := v.ValidateAuthority(authority); err != nil {
		return status.Errorf(codes.Unavailable, "failed to validate authority %q : %v", authority, err)
	}
	return nil
}

// audience returns the URI of a method's service, for which credentials are requested.
func audience(authority, method string) string {
	host := strings.TrimSuffix(authority, ":443")
	if slash := strings.LastIndexByte(method, '/'); slash >= 0 {
		method = method[:slash]
	}
	return "https://" + host + method
}

// authOf returns the metadata that creds add to a request. code is used for an error of
// creds that is not a status error.
func authOf(ctx context.Context, creds credentials.PerRPCCredentials, audience string, p *link.Peer, code codes.Code) (map[string]string, error) {
	if creds.RequireTransportSecurity() && (p.AuthInfo == nil || credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity) != nil) {
		return nil, status.Error(codes.Unauthenticated, "transport: cannot send secure credentials on an insecure connection")
	}
	data, err := creds.GetRequestMetadata(ctx, audience)
	if err != nil {
		if st, ok := status.FromError(err); ok {
			if IsControlPlaneOnly(st.Code()) {
				return nil, status.Errorf(codes.Internal, "transport: received per-RPC creds error with illegal status: %v", err)
			}
			return nil, err
		}
		return nil, status.Errorf(code, "transport: per-RPC creds failed due to error: %v", err)
	}
	auth := make(map[string]string, len(data))
	for k, v := range data {
		k = strings.ToLower(k)
		if err := call.ValidatePair(k, v); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if !call.Reserved(k) {
			auth[k] = v
		}
	}
	return auth, nil
}

// IsControlPlaneOnly reports whether code is one that credentials, pickers and config selectors
// must not return (gRFC A54).
func IsControlPlaneOnly(code codes.Code) bool {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists,
		codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.DataLoss:
		return true
	}
	return false
}
