package call

import (
	"context"
	"math"
	"reflect"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// NoLimit is the limit of a message's size if there is none, in bytes. It is grpc-go's.
const NoLimit = math.MaxInt32

// A Prepared is a message that was encoded once, to be sent many times. It is the content
// of a nearcall.PreparedMsg.
type Prepared struct {
	own   *message.Prepared // for nearcall's streams; may be nil
	codec message.Codec     // of own
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
		codec, encoding := e.Encodes()
		return p.encode(msg, codec, encoding)
	}
	g := new(grpc.PreparedMsg)
	if err := g.Encode(s, msg); err != nil {
		return err
	}
	if codecs := mixedCodecsOf(s); codecs != nil {
		if err := p.encode(msg, codecs(incomingSubtype(s.Context())), ""); err != nil {
			return err
		}
		p.grpc = g
		return nil
	}
	*p = Prepared{grpc: g}
	return nil
}

// encode encodes msg for nearcall's streams.
func (p *Prepared) encode(msg any, codec message.Codec, encoding string) error {
	m := message.Live(msg, codec)
	own, err := message.Prepare(&m, encoding)
	if err != nil {
		return LinkStatus(err)
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
	if err := m.DecodeInto(&message.Sink{Dst: v, Codec: p.codec, Limit: NoLimit}); err != nil {
		return nil
	}
	return v
}

func (p *Prepared) content() *message.Prepared { return p.own }

// An Encoder is a nearcall stream, which tells how its messages are encoded.
type Encoder interface {
	// Encodes returns the codec and the compressor of messages. The compressor's
	// name is empty for none.
	Encodes() (codec message.Codec, compressor string)
}

// An EncoderKey is the key of a stream's context for the stream, an [Encoder].
type EncoderKey struct{}

// encoderOf returns the nearcall stream that s is or wraps, or nil if s is or wraps a
// stream of grpc-go. Interceptors that wrap a stream pass its context on, so the context
// identifies it. The context of a grpc-go stream may be derived from nearcall's, but then
// it also has a value for grpcinside.RPCInfoKey, which nearcall's streams never have.
func encoderOf(s Stream) Encoder {
	if e, ok := s.(Encoder); ok {
		return e // its method Context may commit a call
	}
	ctx := s.Context()
	if ctx.Value(grpcinside.RPCInfoKey) != nil {
		return nil
	}
	e, _ := ctx.Value(EncoderKey{}).(Encoder)
	return e
}

// IsStream reports whether s is or wraps a nearcall stream, and not one of grpc-go.
func IsStream(s Stream) bool { return encoderOf(s) != nil }

// WithMixed returns a context for a streaming handler that a *grpc.Server runs for a service of a
// server with these codecs, by content-subtype. A message that is prepared for the handler's stream
// can be sent on nearcall's streams, too.
func WithMixed(ctx context.Context, codecs func(subtype string) message.Codec) context.Context {
	return context.WithValue(ctx, mixedKey{}, codecs)
}

type mixedKey struct{}

// mixedCodecsOf returns the codecs of the server whose handler got the grpc-go stream s, or nil. The
// contexts of calls that a handler makes derive from the handler's, so it checks that s is a server's
// stream.
func mixedCodecsOf(s Stream) func(subtype string) message.Codec {
	if _, ok := s.(interface{ SetTrailer(metadata.MD) }); !ok {
		return nil
	}
	codecs, _ := s.Context().Value(mixedKey{}).(func(string) message.Codec)
	return codecs
}

// incomingSubtype returns the content-subtype of the call of ctx.
func incomingSubtype(ctx context.Context) string {
	all := metadata.ValueFromIncomingContext(ctx, "content-type")
	if len(all) == 0 {
		return ""
	}
	return link.Subtype(all[0])
}

// MessageOf returns the message to send for m: its prepared form if it has one, and
// otherwise a live message with codec c.
func MessageOf(m any, c message.Codec) message.Message {
	if p, ok := m.(interface{ content() *message.Prepared }); ok && p.content() != nil {
		return p.content().Message()
	}
	return message.Live(m, c)
}

// As in grpc-go, a user's codec encodes each message only once for all attempts of a call, even if
// a limit or a stats handler needs the message's size.

// MustEncode reports whether Invoke must encode its request m. It must in three cases: in process,
// so that a user's codec runs on the caller's side; with a stats handler, which must not see a
// message that cannot be encoded; and with a user's codec, which encodes a request once for all
// attempts.
func MustEncode(m *message.Message, c message.Codec, peer *link.Peer, reports bool) bool {
	if (peer.Local || reports) && !m.Copies() {
		return true
	}
	return !peer.Local && c != codec.Proto()
}

// EncodeOnce returns m encoded, for all attempts of a call to that peer. The bytes can be memory
// of m's value. For a peer in this process they are a copy if the value can change, because that
// peer can use them after the call.
func EncodeOnce(m *message.Message, peer *link.Peer) (*message.Message, error) {
	if !peer.Local {
		sized, err := m.Sized()
		if err != nil {
			return nil, err
		}
		defer sized.Free()
		m = &sized
	}
	frozen, err := m.Freeze()
	if err != nil {
		return nil, err
	}
	return &frozen, nil
}

// MakeSizeKnown encodes m, which is about to be sent, if only a user's codec knows its size. The
// error is a *message.SendError.
func MakeSizeKnown(m *message.Message) error {
	if m.Copies() {
		return nil
	}
	return Encode(m)
}

// Encode makes m an encoded message. Its bytes do not change. The error is a *message.SendError.
func Encode(m *message.Message) error {
	if m.Bound() > 0 {
		return nil // it is encoded
	}
	b, err := m.Append(nil)
	if err == nil {
		*m = message.EncodedBytes(b)
	}
	return err
}

// CheckSize returns an error if m is larger than limit bytes. As in grpc-go the compressed size
// counts. Without a limit, which is the default, checkSize does not compute m's size. It
// compresses m once, and makes m the compressed message. For a peer in this process it compresses
// m only to count, and only if m is larger than limit without compression.
func CheckSize(m *message.Message, limit int, compressor string, peer *link.Peer) error {
	if limit >= NoLimit {
		return nil
	}
	if err := MakeSizeKnown(m); err != nil {
		return LinkStatus(err)
	}
	n, err := m.Size()
	if err != nil {
		return LinkStatus(err)
	}
	compressor = message.Compressor(compressor)
	if n > 0 && compressor != "" && (n > limit || !peer.Local) {
		packed, ok := m.Compressed(compressor)
		if !ok {
			p, err := message.Prepare(m, compressor)
			if err != nil {
				return LinkStatus(err)
			}
			prepared := p.Message()
			packed, _ = prepared.Compressed(compressor)
			if !peer.Local {
				*m = prepared
			}
		}
		n = len(packed)
	}
	if n > limit {
		return status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", n, limit)
	}
	return nil
}

// ClientSession returns the session of a connection of package nearcall, which sets it, or nil if
// there is none now.
var ClientSession func(grpc.ClientConnInterface) link.Session

// Draft returns a buffer of at least n bytes, in which the caller builds a message to the peer of
// s. If s has memory that the peer reads (see [link.Peer]), a large buffer is from there. All
// others come from grpc-go's default pool, also if s is nil. The garbage collector returns a
// buffer that was dropped without being freed.
func Draft(s link.Session, n int) mem.Buffer {
	if s != nil && s.Peer().Draft != nil {
		if b, end := s.Peer().Draft(n); b != nil {
			end = sync.OnceFunc(end)
			at := &b
			runtime.AddCleanup(at, func(end func()) { end() }, end)
			return mem.NewBuffer(at, freeing(end))
		}
	}
	return mem.NewBuffer(mem.DefaultBufferPool().Get(n), mem.DefaultBufferPool())
}

// A freeing is the pool of a single buffer.
type freeing func()

// Get implements [mem.BufferPool]. It is not used.
func (freeing) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put implements [mem.BufferPool].
func (f freeing) Put(*[]byte) { f() }

// ReplyEncoding returns the compressor of a call's replies: header's, or by default the
// requests'.
func ReplyEncoding(header metadata.MD, requests string) string {
	if own := header[link.EncodingKey]; len(own) > 0 {
		return own[0]
	}
	return message.Compressor(requests)
}

// A Yielder makes a loop's task yield to other tasks now and then while it sends or receives.
// With a fast peer a task never waits. It must not starve the other tasks.
type Yielder struct{ messages uint8 }

// yieldEvery is the number of messages after which a task yields.
const yieldEvery = 32

// beforeMessage is called before each message is sent or received. w is the task's loop,
// nil for goroutines.
func (t *Yielder) BeforeMessage(w wait.Waiter) {
	if w == nil {
		return
	}
	if t.messages++; t.messages%yieldEvery == 0 {
		wait.Yield(w)
	}
}

// DefaultCodec returns the codec that is registered for protobuf.
func DefaultCodec() message.Codec {
	if c, ok := codec.Get(""); ok {
		return c
	}
	return codec.Proto()
}
