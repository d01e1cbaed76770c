package call

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

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
		auth, err := c.authMetadata(a, ci, o.Authority)
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
			return contextStatus(context.DeadlineExceeded)
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

// The goroutine that receives learns the header of a client's stream. A goroutine that needs the
// header receives itself, or waits for the goroutine that does.

// Header implements grpc.ClientStream. It waits for the header. If the call ends without
// one, it returns nil, nil, and RecvMsg returns the status.
func (s *clientStream) Header() (metadata.MD, error) {
	s.receiveUntil(func() bool { return s.headerKnown }, s.receiveHeader)
	s.mu.Lock()
	defer s.mu.Unlock()
	return fullHeader(s.header, s.info.subtype), nil
}

// receiveUntil waits until the function known returns true. If another goroutine receives, it
// waits for that one. Otherwise it calls the function receive, which can make the header or
// another attempt known. known is called with mu held, receive with recvMu held.
func (s *clientStream) receiveUntil(known func() bool, receive func()) {
	is := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return known()
	}
	for !is() {
		if s.tryReceive(receive) {
			continue
		}
		s.mu.Lock()
		if known() {
			s.mu.Unlock()
			return
		}
		w := s.waiter
		if w == nil {
			w = new(wait.Pool)
		}
		p := w.Parker()
		s.headerWaiters = append(s.headerWaiters, p)
		s.mu.Unlock()
		_ = p.Park(context.Background()) // without a context: finish calls setHeader, which unparks
		w.Release(p)
	}
}

// tryReceive calls receive with recvMu held. It returns false if another goroutine holds recvMu.
func (s *clientStream) tryReceive(receive func()) bool {
	if !s.recvMu.TryLock() {
		return false
	}
	defer s.recvMu.Unlock() // also if a stats handler panics
	receive()
	return true
}

// receiveHeader receives until the header is known. recvMu is held.
func (s *clientStream) receiveHeader() {
	if s.end != nil || s.recvErr != nil {
		s.setHeader(nil)
		return
	}
	s.checkContext()
	if _, err := s.receiveFrame(link.Sink{}); err != nil {
		s.recvErr = err
		if s.end != nil {
			s.recvErr = nil // RecvMsg returns the status that arrived, as in grpc-go
		}
		s.finish(err)
	} else if s.end != nil {
		// Without a header no message arrives either. If the status is OK, RecvMsg reports that
		// the reply is missing.
		s.finish(errorOf(s.end.Status))
	}
}

func (s *clientStream) onHeader(md metadata.MD) {
	s.refusal = s.info.checkReply(md)
	s.recvAttempt.stats.inHeader(md, s.info.subtype)
	s.setHeader(md)
}

// setHeader makes the header known and wakes the goroutines that wait for it. A nil md means that
// none was sent. A header that is received after the call has finished still replaces nil.
func (s *clientStream) setHeader(md metadata.MD) {
	s.mu.Lock()
	if md != nil || !s.headerKnown {
		s.header, s.headerKnown = md, true
	}
	waiting := s.headerWaiters
	s.headerWaiters = nil
	if s.finished && md != nil { // the call was finished before its header was received
		s.info.fillOptions(s.current.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	for _, p := range waiting {
		p.Unpark()
	}
}

// gRPC shows its caller more keys in a header and a trailer than the callee sends.

// fullHeader returns a copy of md, the header that the callee has sent, without reserved keys and
// with gRPC's content-type. It returns nil for nil.
func fullHeader(md metadata.MD, subtype string) metadata.MD {
	if md == nil {
		return nil
	}
	full := md.Copy()
	maps.DeleteFunc(full, isReserved)
	full["content-type"] = []string{link.ContentType(subtype)}
	return full
}

// fullTrailer returns the trailer of end as gRPC shows it to the caller. It drops reserved keys. It
// adds the encoded status if the status has details and the handler has not set that key itself. It
// adds the content-type if the callee has answered without a header. It returns the trailer itself
// if nothing changes.
func fullTrailer(end *link.End, header metadata.MD, subtype string) metadata.MD {
	trailer, p := end.Trailer, end.Status.Proto()
	_, own := trailer[detailsKey]
	details, first := len(p.GetDetails()) > 0 && !own, header == nil && !end.Local
	if !details && !first && !hasReserved(trailer) {
		return trailer
	}
	full := trailer.Copy()
	if full == nil {
		full = metadata.MD{}
	}
	maps.DeleteFunc(full, isReserved)
	if first {
		full["content-type"] = []string{link.ContentType(subtype)}
	}
	if details {
		if b, err := proto.Marshal(p); err == nil {
			full[detailsKey] = []string{string(b)}
		}
	}
	return full
}

// hasCreds reports whether credentials add to the metadata of a call.
func (c *Client) hasCreds(ci *callInfo) bool { return len(c.opts.PerRPC) > 0 || ci.creds != nil }

// authMetadata returns the metadata that the credentials of the connection and of the
// call add to a request to authority.
func (c *Client) authMetadata(a *attempt, ci *callInfo, authority string) (metadata.MD, error) {
	p := a.peer
	ctx := credentials.NewContextWithRequestInfo(a.ctx, credentials.RequestInfo{Method: ci.method, AuthInfo: p.AuthInfo})
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
		if err := validatePair(k, v); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if !reserved(k) {
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
