package test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
)

// A view is a message of the codec viewing. It refers to the bytes that were received.
type view struct {
	bytes []byte
	refs  mem.BufferSlice
}

// viewing is a codec that gives a message's own bytes and keeps what it has received.
type viewing struct{}

func init() { encoding.RegisterCodecV2(viewing{}) }

func (viewing) Name() string { return "nearcall-viewing" }

func (viewing) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*view).bytes)}, nil
}

func (viewing) Unmarshal(data mem.BufferSlice, v any) error {
	m := v.(*view)
	data.Ref()
	m.refs = append(m.refs, data...)
	for _, b := range data {
		m.bytes = append(m.bytes[:len(m.bytes):len(m.bytes)], b.ReadOnlyData()...)
	}
	if len(data) == 1 {
		m.bytes = data[0].ReadOnlyData()
	}
	return nil
}

// viewService has a unary method, which replies with its request, and a stream that does the same.
var viewService = grpc.ServiceDesc{
	ServiceName: "nearcall.test.Views", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(view)
		return in, dec(in)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Echoes", ClientStreams: true, ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		for {
			in := new(view)
			if s.RecvMsg(in) != nil {
				return nil
			}
			if err := s.SendMsg(in); err != nil {
				return err
			}
			in.refs.Free()
		}
	}}},
}

// viewClient returns a client of a server with viewService, over network or in process.
func viewClient(t *testing.T, network string, opts ...nearcall.DialOption) *nearcall.ClientConn {
	srv := nearcall.NewServer()
	srv.RegisterService(&viewService, nil)
	if network == "inproc" {
		t.Cleanup(srv.Stop)
		conn := srv.Client(opts...)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	lis := listen(t, targetFor(t, network))
	start(t, srv, lis)
	conn, err := nearcall.NewClient(lis.Target(), over(network, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A codec may give a message's own bytes, and keep those that it has received. They do not change
// for as long as it has references to them, and a message that was sent may be changed at once.
func TestCodecsMayKeepWhatTheyReceive(t *testing.T) {
	sizes := []int{0, 1, 1000, 5000, 300_000, 3 << 20, 100}
	for _, network := range append(networks("unix", "tcp"), "inproc") {
		t.Run(network, func(t *testing.T) {
			conn := viewClient(t, network, nearcall.WithDefaultCallOptions(grpc.CallContentSubtype(viewing{}.Name())))
			stream, err := conn.NewStream(t.Context(), &viewService.Streams[0], "/nearcall.test.Views/Echoes")
			if err != nil {
				t.Fatal(err)
			}
			var got []*view
			var want [][]byte
			for i := range 3 * len(sizes) {
				sent := &view{bytes: bytes.Repeat([]byte{byte(i + 1)}, sizes[i%len(sizes)])}
				unary, streamed := new(view), new(view)
				if err := conn.Invoke(t.Context(), "/nearcall.test.Views/Echo", sent, unary); err != nil {
					t.Fatal(err)
				}
				if err := stream.SendMsg(sent); err != nil {
					t.Fatal(err)
				}
				want = append(want, slices.Clone(sent.bytes), slices.Clone(sent.bytes))
				clear(sent.bytes)
				if err := stream.RecvMsg(streamed); err != nil {
					t.Fatal(err)
				}
				got = append(got, unary, streamed)
			}
			for i := range got {
				if !bytes.Equal(got[i].bytes, want[i]) {
					t.Errorf("message %d of %d bytes has changed", i, len(want[i]))
				}
				got[i].refs.Free()
			}
			err = conn.Invoke(t.Context(), "/nearcall.test.Views/Echo", &view{bytes: make([]byte, 5<<20)}, new(view))
			wantCode(t, err, codes.ResourceExhausted)
		})
	}
}

// failing is a codec that cannot encode.
type failing struct{ viewing }

func (failing) Marshal(any) (mem.BufferSlice, error) {
	return nil, errors.New("nothing can be encoded")
}

// payloads counts the messages that a stats handler is told were sent.
type payloads struct{ sent atomic.Int32 }

func (*payloads) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*payloads) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*payloads) HandleConn(context.Context, stats.ConnStats)                       {}
func (p *payloads) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		p.sent.Add(1)
	}
}

func TestAStatsHandlerDoesNotSeeWhatACodecCannotEncode(t *testing.T) {
	for _, network := range append(networks("unix", "tcp"), "inproc") {
		t.Run(network, func(t *testing.T) {
			var p payloads
			conn := viewClient(t, network, nearcall.WithStatsHandler(&p), nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(failing{})))
			err := conn.Invoke(t.Context(), "/nearcall.test.Views/Echo", new(view), new(view))
			wantCode(t, err, codes.Internal)
			if n := p.sent.Load(); n != 0 {
				t.Errorf("it sees %d messages", n)
			}
		})
	}
}
