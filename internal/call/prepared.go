package call

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A Prepared is a message that was encoded once, to be sent many times. It is the content
// of a nearcall.PreparedMsg.
type Prepared struct {
	own  *link.Prepared    // for nearcall's streams
	grpc *grpc.PreparedMsg // for grpc-go's streams
}

// A Stream has the methods that grpc.ClientStream and grpc.ServerStream share.
type Stream interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

// Encode encodes msg for s, which is a stream of nearcall or grpc-go, or wraps one.
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

// anyPrepared says that prepared messages may exist. Checking the type of each message
// costs 5% of a small in-process call.
var anyPrepared atomic.Bool

// GRPC returns the message to send on a grpc-go stream, or nil if p was not encoded for
// one.
func (p *Prepared) GRPC() *grpc.PreparedMsg { return p.grpc }

func (p *Prepared) content() *link.Prepared { return p.own }

// An encoder is a nearcall stream, which knows how its messages are encoded.
type encoder interface {
	// encodes returns the codec and the compressor of messages. The compressor's
	// name is empty for none.
	encodes() (codec link.Codec, compressor string)
}

type encoderKey struct{}

// encoderOf returns the nearcall stream that s is or wraps, or nil if s is or wraps a
// stream of grpc-go. Interceptors that wrap a stream pass its context on, so the context
// identifies it. The context of a grpc-go stream may be derived from nearcall's, but then
// it also has a value for rpcInfoKey, which nearcall's streams never have.
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

// A clientContext is the parent of a client stream's context. It identifies the stream for
// encoderOf, and hides the grpc-go stream of a handler that made the call.
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

// messageOf returns the message to send for m: its prepared form if it has one, and
// otherwise a live message with codec c.
func messageOf(m any, c link.Codec) link.Message {
	if anyPrepared.Load() {
		if p, ok := m.(interface{ content() *link.Prepared }); ok && p.content() != nil {
			return p.content().Message()
		}
	}
	return link.Live(m, c)
}
