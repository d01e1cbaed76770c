package call

import (
	"cmp"
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/metadata"
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
