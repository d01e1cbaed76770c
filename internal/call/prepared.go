package call

import (
	"context"
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
)

// A Prepared is a message that was encoded once, to be sent many times. It is the content
// of a nearcall.PreparedMsg.
type Prepared struct {
	own   *link.Prepared    // for nearcall's streams; may be nil
	codec link.Codec        // of own
	kind  reflect.Type      // of the message in own
	grpc  *grpc.PreparedMsg // for grpc-go's streams; may be nil
}

// A Stream has the methods that grpc.ClientStream and grpc.ServerStream share.
type Stream interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

// Encode encodes msg for s, which is a stream of nearcall or grpc-go, or wraps one.
func (p *Prepared) Encode(s Stream, msg any) error {
	if e := encoderOf(s); e != nil {
		codec, encoding := e.encodes()
		return p.encode(msg, codec, encoding)
	}
	g := new(grpc.PreparedMsg)
	if err := g.Encode(s, msg); err != nil {
		return err
	}
	if server := mixedServerOf(s); server != nil {
		if err := p.encode(msg, server.codecOf(incomingSubtype(s.Context())), ""); err != nil {
			return err
		}
		p.grpc = g
		return nil
	}
	*p = Prepared{grpc: g}
	return nil
}

// encode encodes msg for nearcall's streams.
func (p *Prepared) encode(msg any, codec link.Codec, encoding string) error {
	m := link.Live(msg, codec)
	own, err := link.Prepare(&m, encoding)
	if err != nil {
		return linkStatus(err)
	}
	*p = Prepared{own: own, codec: codec, kind: reflect.TypeOf(msg)}
	return nil
}

// PreparedForGRPC returns what to send on a grpc-go stream: the prepared message, a decoded copy
// of it if it was encoded for a nearcall stream, or nil if there is neither. It is not a method,
// because nearcall.PreparedMsg would have the method as well.
func PreparedForGRPC(p *Prepared) any {
	switch {
	case p.grpc != nil:
		return p.grpc
	case p.own == nil || p.kind == nil || p.kind.Kind() != reflect.Pointer:
		return nil
	}
	v := reflect.New(p.kind.Elem()).Interface()
	m := p.own.Message()
	if err := m.DecodeInto(&link.Sink{Dst: v, Codec: p.codec, Limit: noLimit}); err != nil {
		return nil
	}
	return v
}

func (p *Prepared) content() *link.Prepared { return p.own }

// An encoder is a nearcall stream, which tells how its messages are encoded.
type encoder interface {
	// encodes returns the codec and the compressor of messages. The compressor's
	// name is empty for none.
	encodes() (codec link.Codec, compressor string)
}

type encoderKey struct{}

// encoderOf returns the nearcall stream that s is or wraps, or nil if s is or wraps a
// stream of grpc-go. Interceptors that wrap a stream pass its context on, so the context
// identifies it. The context of a grpc-go stream may be derived from nearcall's, but then
// it also has a value for grpcinside.RPCInfoKey, which nearcall's streams never have.
func encoderOf(s Stream) encoder {
	switch s := s.(type) {
	case *serverStream:
		return &s.call
	case *clientStream:
		return s
	}
	ctx := s.Context()
	if ctx.Value(grpcinside.RPCInfoKey) != nil {
		return nil
	}
	e, _ := ctx.Value(encoderKey{}).(encoder)
	return e
}

// IsStream reports whether s is or wraps a nearcall stream, and not one of grpc-go.
func IsStream(s Stream) bool { return encoderOf(s) != nil }

func (c *serverCall) encodes() (link.Codec, string) {
	if c.conn.peer.Local {
		return c.codec(), ""
	}
	return c.codec(), c.compressor()
}

// compressor returns the name of the compressor of replies, "" or "identity" for none.
func (c *serverCall) compressor() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more != nil && c.more.encoding != "" {
		return c.more.encoding
	}
	return c.open.Encoding
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
	case grpcinside.RPCInfoKey:
		return nil
	}
	return c.Context.Value(key)
}

// WithMixed returns a context for a streaming handler that a *grpc.Server runs for a service of s.
// A message that is prepared for the handler's stream can be sent on nearcall's streams, too.
func (s *Server) WithMixed(ctx context.Context) context.Context {
	return context.WithValue(ctx, mixedKey{}, s)
}

type mixedKey struct{}

// mixedServerOf returns the server whose handler got the grpc-go stream s, or nil. The contexts of
// calls that a handler makes derive from the handler's, so it checks that s is a server's stream.
func mixedServerOf(s Stream) *Server {
	if _, ok := s.(interface{ SetTrailer(metadata.MD) }); !ok {
		return nil
	}
	server, _ := s.Context().Value(mixedKey{}).(*Server)
	return server
}

// incomingSubtype returns the content-subtype of the call of ctx.
func incomingSubtype(ctx context.Context) string {
	all := metadata.ValueFromIncomingContext(ctx, "content-type")
	if len(all) == 0 {
		return ""
	}
	return link.Subtype(all[0])
}

// messageOf returns the message to send for m: its prepared form if it has one, and
// otherwise a live message with codec c.
func messageOf(m any, c link.Codec) link.Message {
	if p, ok := m.(interface{ content() *link.Prepared }); ok && p.content() != nil {
		return p.content().Message()
	}
	return link.Live(m, c)
}
