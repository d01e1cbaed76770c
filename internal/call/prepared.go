package call

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A Prepared is a message that was encoded once, to be sent many times. It is what a
// nearcall.PreparedMsg holds.
type Prepared struct {
	own  *link.Prepared    // for streams of nearcall's
	grpc *grpc.PreparedMsg // for those of grpc-go
}

// A Stream is what streams of clients and of handlers have in common.
type Stream interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

// Encode encodes msg for s, a stream of nearcall's, of grpc-go, or around one of
// these.
func (p *Prepared) Encode(s Stream, msg any) error {
	e := encoderOf(s)
	if e == nil {
		g := new(grpc.PreparedMsg)
		if err := g.Encode(s, msg); err != nil {
			return err
		}
		p.own, p.grpc = nil, g
		return nil
	}
	codec, encoding := e.encodes()
	m := link.Live(msg, codec)
	own, err := link.Prepare(&m, encoding)
	if err != nil {
		return linkStatus(err)
	}
	anyPrepared.Store(true)
	p.own, p.grpc = own, nil
	return nil
}

// anyPrepared says that there may be prepared messages. To ask each message whether it
// is one costs a twentieth of a small call in process.
var anyPrepared atomic.Bool

// GRPC returns what a stream of grpc-go takes in p's place; nil where p was not
// encoded for one.
func (p *Prepared) GRPC() *grpc.PreparedMsg { return p.grpc }

func (p *Prepared) content() *link.Prepared { return p.own }

// An encoder is a stream, which knows how its messages are encoded.
type encoder interface {
	// encodes returns what messages are encoded and, unless the name is empty,
	// compressed with.
	encodes() (codec link.Codec, compressor string)
}

type encoderKey struct{}

// encoderOf returns nearcall's stream behind s, or nil if that is one of grpc-go's.
// Interceptors wrap streams and pass their contexts on, so the context tells which
// it is. A stream of grpc-go's may have a context derived from nearcall's: it has
// grpc-go's mark then, which nearcall's own streams never have.
func encoderOf(s Stream) encoder {
	switch s := s.(type) {
	case *serverStream:
		return &s.call
	case *clientStream:
		return s
	}
	ctx := s.Context()
	if ctx.Value(rpcInfoKey) != nil {
		return nil
	}
	e, _ := ctx.Value(encoderKey{}).(encoder)
	return e
}

func (c *serverCall) encodes() (link.Codec, string) {
	if c.conn.peer.Local {
		return c.codec(), ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more != nil && c.more.encoding != "" {
		return c.codec(), c.more.encoding
	}
	return c.codec(), c.open.Encoding
}

func (s *clientStream) encodes() (link.Codec, string) {
	if a, _ := s.currentAttempt(); a.peer.Local {
		return s.info.codec, ""
	}
	return s.info.codec, s.info.encoding
}

// A clientContext is what the context of a client's stream is derived from. It knows
// the stream, and hides one of grpc-go's whose handler made the call.
type clientContext struct {
	context.Context
	stream *clientStream
}

// Value implements [context.Context].
func (c clientContext) Value(key any) any {
	switch key {
	case encoderKey{}:
		return c.stream
	case rpcInfoKey:
		return nil
	}
	return c.Context.Value(key)
}

// messageOf returns m as it is sent: as it was prepared, or else to be encoded by c.
func messageOf(m any, c link.Codec) link.Message {
	if anyPrepared.Load() {
		if p, ok := m.(interface{ content() *link.Prepared }); ok && p.content() != nil {
			return p.content().Message()
		}
	}
	return link.Live(m, c)
}
