package grpcgo

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestMain(m *testing.M) { leak.Main(m) }

// connect returns a session with a *grpc.Server whose calls arrive at accepted.
func connect(t *testing.T) (s link.Session, accepted transporttest.Accepter) {
	t.Helper()
	accepted = make(transporttest.Accepter, 1)
	lis := bufconn.Listen(1 << 16)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(Codec()), grpc.UnknownServiceHandler(Handler(func(context.Context) (link.Acceptor, error) { return accepted, nil })),
		grpc.MaxRecvMsgSize(64<<20))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis)
	}()
	s, err := Dialer{Target: "passthrough:///buf", Options: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
	}}.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close(context.Canceled)
		<-s.Ended()
		srv.Stop()
		<-served
	})
	return s, accepted
}

const (
	ownWindows = "grpc-go chooses its windows"
	asStatus   = "what a callee aborts arrives as a status, and the caller's reason as a cancellation"
	notQueued  = "grpc-go's streams do not tell of an end before the messages were received"
)

func TestStreams(t *testing.T) {
	transporttest.Suite{
		Without: map[string]string{
			"a sender waits for credit":                        ownWindows,
			"a message may be larger than the window":          ownWindows,
			"abort releases a sender":                          ownWindows,
			"the peer's end releases a sender":                 ownWindows,
			"the callee's own end releases its sender":         ownWindows,
			"frames without a message may come from anywhere":  ownWindows,
			"abort releases a receiver":                        asStatus,
			"the first reason wins":                            asStatus,
			"OnAbort after the abort":                          asStatus,
			"after its own abort a callee cannot end the call": asStatus,
			"abort at any moment":                              asStatus,
			"frames before an abort come first":                notQueued,
			"a caller learns of an abort when it can receive":  notQueued,
			"after the end":                                    "what a handler has not received when it returns is dropped",
			"without Dst the message stays":                    notQueued,
		},
		Codec:  codec.Proto(),
		Window: 60 << 10,
		Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
			s, accepted := connect(t)
			caller, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: new(link.Profile), Deadline: deadline})
			if err != nil {
				t.Fatal(err)
			}
			return caller, <-accepted
		},
	}.Run(t)
}

// The deadline ends a stream of which only the end is wanted.
func TestTheDeadlineEndsAStreamThatOnlyWaitsForItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, accepted := connect(t)
		o := &link.CallHeader{Method: "/a/b", Profile: new(link.Profile), Deadline: time.Now().Add(time.Second)}
		caller, err := s.NewStream(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		callee := <-accepted
		if err := callee.Send(&link.Frame{Header: metadata.MD{"a": {"b"}}}); err != nil {
			t.Fatal(err)
		}
		var f link.Frame
		if err := caller.Recv(&f); err != nil || f.Header == nil {
			t.Fatal(f.Header, err)
		}
		if err := caller.Recv(&f); err != nil || f.End == nil || f.End.Status.Code() != codes.DeadlineExceeded {
			t.Errorf("%v, %v; want the end with DeadlineExceeded", f.End, err)
		}
	})
}

// A receiver that waits for a message gets the header as soon as it arrives.
func TestAHeaderDoesNotWaitForAMessage(t *testing.T) {
	s, accepted := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	caller, err := s.NewStream(ctx, &link.CallHeader{Method: "/a/b", Profile: new(link.Profile)})
	if err != nil {
		t.Fatal(err)
	}
	callee := <-accepted
	if err := callee.Send(&link.Frame{Header: metadata.MD{"a": {"b"}}}); err != nil {
		t.Fatal(err)
	}
	f := link.Frame{Sink: message.Sink{Dst: new(wrapperspb.BytesValue), Codec: codec.Proto(), Limit: 1000}}
	if err := caller.Recv(&f); err != nil || f.Header == nil || f.Got || f.End != nil {
		t.Fatalf("%+v, %v; want the header alone", f, err)
	}
	caller.Abort(context.Canceled)
}

// A target without a server is not said to be an ordinary gRPC server.
func TestATargetWhereNothingListens(t *testing.T) {
	_, err := Dialer{Target: "passthrough:///nowhere", Options: []grpc.DialOption{
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }),
	}}.Dial(t.Context())
	if err == nil || strings.Contains(err.Error(), "listens") {
		t.Errorf("Dial returns %v", err)
	}
}
