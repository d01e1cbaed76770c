package test

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/wire"
)

// connections is a stats handler that counts connections.
type connections struct{ begun atomic.Int32 }

func (*connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (*connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.begun.Add(1)
	}
}

// large has 20480 bytes in its value, and a size of 20517: more than fits into the smallest block.
var large = metadata.Pairs("large", strings.Repeat("x", 20<<10))

const largeSize = 20<<10 + len("large") + 32

// tooLong returns the text about a block that its receiver does not take.
func tooLong(what string, size int) string {
	return fmt.Sprintf("the %s of %d bytes is larger than the %d that its receiver takes", what, size, wire.MinBlock)
}

// wantTooLong checks that a call failed because of a block with at least the given strings. Names that
// the test does not give add at most 1000 bytes.
func wantTooLong(t *testing.T, err error, what string, least int) {
	t.Helper()
	wantCode(t, err, codes.Internal)
	found := regexp.MustCompile(`the ` + what + ` of (\d+) bytes`).FindStringSubmatch(fmt.Sprint(err))
	if found == nil {
		t.Errorf("the caller is told %v", err)
		return
	}
	if n, _ := strconv.Atoi(found[1]); n < least || n > least+1000 || !strings.Contains(err.Error(), tooLong(what, n)) {
		t.Errorf("the caller is told %v, want %q or a little more", err, tooLong(what, least))
	}
}

// TestAHeadThatTheServerDoesNotTakeIsNotSent: the caller learns both sizes, no handler sees the call,
// and the connection goes on.
func TestAHeadThatTheServerDoesNotTakeIsNotSent(t *testing.T) {
	hold(t)
	for _, network := range available(t, networks("tcp", "unix")...) {
		t.Run(network, func(t *testing.T) {
			var handled atomic.Int32
			var conns connections
			lis := listenFor(t, network, echo{
				unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					handled.Add(1)
					return &testpb.SimpleResponse{}, nil
				},
				bidi: func(s bidi) error {
					handled.Add(1)
					_, _ = s.Recv() // until the caller ends sending
					return nil
				},
			}, nearcall.MaxHeaderListSize(wire.MinBlock), nearcall.StatsHandler(&conns))
			client := dial(t, lis.Target(), over(network)...)
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			open, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx := metadata.NewOutgoingContext(t.Context(), large)
			for _, waits := range []bool{false, true} {
				wantTooLong(t, <-invoke(ctx, client, grpc.WaitForReady(waits)), "request header", largeSize)
				s, err := client.FullDuplexCall(ctx, grpc.WaitForReady(waits))
				if err == nil {
					_, err = s.Recv()
				}
				wantTooLong(t, err, "request header", largeSize)
			}
			_ = open.CloseSend()
			if _, err := open.Recv(); err != io.EOF {
				t.Errorf("the other call ends with %v", err)
			}
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			if n := handled.Load(); n != 3 {
				t.Errorf("handlers have seen %d calls, want 3", n)
			}
			if n := conns.begun.Load(); n != 1 {
				t.Errorf("the client has connected %d times", n)
			}
		})
	}
}

// TestAHeaderThatItsCallerDoesNotTakeFailsTheCall: the caller learns both sizes, however the handler
// sends the header or the end, and the connection goes on.
func TestAHeaderThatItsCallerDoesNotTakeFailsTheCall(t *testing.T) {
	hold(t)
	reply := new(testpb.StreamingOutputCallResponse)
	detailed, err := status.New(codes.NotFound, "no").WithDetails(&testpb.SimpleRequest{Payload: payload(20 << 10)})
	if err != nil {
		t.Fatal(err)
	}
	header, end := tooLong("header", largeSize), tooLong("end", largeSize+32)
	long := status.Error(codes.NotFound, large["large"][0])
	for name, c := range map[string]struct {
		stream func(bidi) error
		unary  func(context.Context) error
		text   string // the beginning, if the size is that of a message of protobuf
	}{
		"header alone":          {stream: func(s bidi) error { return s.SendHeader(large) }, text: header},
		"header with a message": {stream: func(s bidi) error { _ = s.SetHeader(large); return s.Send(reply) }, text: header},
		"header with the end":   {stream: func(s bidi) error { return s.SetHeader(large) }, text: header},
		"trailer":               {stream: func(s bidi) error { s.SetTrailer(large); return s.Send(reply) }, text: end},
		"trailer with an error": {stream: func(s bidi) error { s.SetTrailer(large); return status.Error(codes.NotFound, "") }, text: end},
		"message of a status":   {stream: func(bidi) error { return long }, text: tooLong("end", 20<<10+32)},
		"details of a status":   {stream: func(bidi) error { return detailed.Err() }, text: "the end of 2"},
		"unary, header":         {unary: func(ctx context.Context) error { return grpc.SetHeader(ctx, large) }, text: header},
		"unary, sent header":    {unary: func(ctx context.Context) error { return grpc.SendHeader(ctx, large) }, text: header},
		"unary, trailer":        {unary: func(ctx context.Context) error { return grpc.SetTrailer(ctx, large) }, text: end},
		"unary, message":        {unary: func(context.Context) error { return long }, text: tooLong("end", 20<<10+32)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, network := range available(t, networks("tcp", "unix")...) {
				var conns connections
				lis := listenFor(t, network, echo{bidi: c.stream, unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					if in.ResponseSize == 0 {
						return &testpb.SimpleResponse{}, nil
					}
					return &testpb.SimpleResponse{}, c.unary(ctx)
				}}, nearcall.StatsHandler(&conns))
				client := dial(t, lis.Target(), over(network, nearcall.WithMaxHeaderListSize(wire.MinBlock))...)
				var err error
				if c.unary != nil {
					_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 1})
				} else {
					var s grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
					s, err = client.FullDuplexCall(t.Context())
					for err == nil {
						_, err = s.Recv()
					}
				}
				if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), fmt.Sprint(" the ", wire.MinBlock, " that")) {
					t.Errorf("%s: the caller is told %v, want Internal and %q", network, err, c.text)
				}
				wantCode(t, <-invoke(t.Context(), client), codes.OK)
				if n := conns.begun.Load(); n != 1 {
					t.Errorf("%s: the client has connected %d times", network, n)
				}
			}
		})
	}
}
