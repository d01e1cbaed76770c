package balance_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A waiting is a channel whose call waits for something.
type waiting struct {
	conn     *nearcall.ClientConn
	resolver *manual.Resolver
	cancel   context.CancelFunc // of the call's context
	server   string             // that answers
	leave    func()             // ends the server for which the call waits
}

// resolve makes the resolver find the address.
func (w *waiting) resolve(addr string) {
	w.resolver.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: addr}}})
}

// A wait is a place where a call of a channel waits. before is called before the call is made, and begun waits
// until it waits there. ends are what must end it, with the code of the call's error.
type wait struct {
	ready  bool // the call waits for ready
	before func(t *testing.T, w *waiting)
	begun  func(t *testing.T, w *waiting)
	ends   map[string]codes.Code
}

// silent is a server that accepts connections and says nothing.
func silent(t *testing.T, w *waiting) {
	lis := listen(t)
	var mu sync.Mutex
	var open []net.Conn
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	}()
	w.leave = sync.OnceFunc(func() {
		_ = lis.Close()
		<-accepting
		for _, c := range open {
			_ = c.Close()
		}
	})
	t.Cleanup(w.leave)
	w.resolve(lis.Addr().String())
}

// holding is a server whose handlers wait. It is nearcall's or grpc-go's.
func holding(native bool) (before, begun func(t *testing.T, w *waiting)) {
	running := make(chan struct{}, 1)
	hold := holder{running: running}
	before = func(t *testing.T, w *waiting) {
		if native {
			target := "inproc:" + t.Name()
			lis, err := nearcall.Listen(target)
			if err != nil {
				t.Fatal(err)
			}
			srv := nearcall.NewServer()
			testpb.RegisterTestServiceServer(srv, hold)
			go srv.Serve(lis)
			w.leave = srv.Stop
			t.Cleanup(func() {
				srv.Stop()
				_ = lis.Close()
			})
			w.resolve(target)
			return
		}
		lis, srv := listen(t), grpc.NewServer()
		testpb.RegisterTestServiceServer(srv, hold)
		go srv.Serve(lis)
		w.leave = srv.Stop
		t.Cleanup(srv.Stop)
		w.resolve(lis.Addr().String())
	}
	return before, func(*testing.T, *waiting) { <-running }
}

type holder struct {
	testpb.UnimplementedTestServiceServer
	running chan struct{}
}

func (h holder) hold(ctx context.Context) error {
	h.running <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func (h holder) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return nil, h.hold(ctx)
}

func (h holder) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return h.hold(s.Context())
}

// waits returns all places where calls wait. The other waits of the package are those of a sessionConn, for which
// TestAllWaitsOfSessionConnsEnd has rows, the handshake, which ends with the context that grpc-go gives it, and
// the replacement of a config selector, which waits for SelectConfig alone. No lock is held during a wait.
func waits() map[string]wait {
	blocked := func(function string) func(*testing.T, *waiting) {
		return func(t *testing.T, _ *waiting) { leak.AwaitBlocked(t, "select", function) }
	}
	beforeNative, begunNative := holding(true)
	beforeGRPC, begunGRPC := holding(false)
	answer := map[string]codes.Code{"cancelling": codes.Canceled, "the deadline": codes.DeadlineExceeded, "Close": codes.Canceled, "Close of GRPC()": codes.Canceled, "the server's end": codes.Unavailable}
	return map[string]wait{
		"the resolver": {before: func(*testing.T, *waiting) {}, begun: blocked("grpc.(*ClientConn).waitForResolvedAddrs("), ends: map[string]codes.Code{
			"cancelling": codes.Canceled, "the deadline": codes.DeadlineExceeded, "Close": codes.Canceled, "Close of GRPC()": codes.Canceled,
			"an address": codes.OK, "the resolver's error": codes.Unavailable,
		}},
		"a connection": {before: silent, begun: blocked("grpc.(*pickerWrapper).pick("), ends: map[string]codes.Code{
			"cancelling": codes.Canceled, "the deadline": codes.DeadlineExceeded, "Close": codes.Canceled, "Close of GRPC()": codes.Canceled,
			"the server's end": codes.Unavailable, "an address": codes.OK,
		}},
		"another picker": {ready: true, before: func(t *testing.T, w *waiting) {
			silent(t, w)
			w.leave()
		}, begun: blocked("grpc.(*pickerWrapper).pick("), ends: map[string]codes.Code{
			"cancelling": codes.Canceled, "the deadline": codes.DeadlineExceeded, "Close": codes.Canceled, "Close of GRPC()": codes.Canceled,
			"an address": codes.OK,
		}},
		"an answer of nearcall": {before: beforeNative, begun: begunNative, ends: answer},
		"an answer of gRPC":     {before: beforeGRPC, begun: begunGRPC, ends: answer},
	}
}

var waitEnds = map[string]func(w *waiting){
	"cancelling":           func(w *waiting) { w.cancel() },
	"the deadline":         func(*waiting) {},
	"Close":                func(w *waiting) { _ = w.conn.Close() },
	"Close of GRPC()":      func(w *waiting) { _ = w.conn.GRPC().Close() },
	"the server's end":     func(w *waiting) { w.leave() },
	"an address":           func(w *waiting) { w.resolve(w.server) },
	"the resolver's error": func(w *waiting) { w.resolver.CC().ReportError(errors.New("no such name")) },
}

// Each place where a call of a channel waits is left for each reason for which it must be.
func TestAllWaitsOfCallsEnd(t *testing.T) {
	for kind, call := range map[string]func(context.Context, testpb.TestServiceClient, ...grpc.CallOption) error{
		"unary": func(ctx context.Context, c testpb.TestServiceClient, opts ...grpc.CallOption) error {
			_, err := c.EmptyCall(ctx, &testpb.Empty{}, opts...)
			return err
		},
		"stream": func(ctx context.Context, c testpb.TestServiceClient, opts ...grpc.CallOption) error {
			s, err := c.FullDuplexCall(ctx, opts...)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	} {
		for what, place := range waits() {
			for by, want := range place.ends {
				t.Run(kind+"/"+what+"/"+by, func(t *testing.T) {
					w := &waiting{resolver: manual.NewBuilderWithScheme("waits"), server: ordinary(t, service{
						duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
							return s.Send(&testpb.StreamingOutputCallResponse{})
						}})}
					conn, err := nearcall.NewClient("waits:///any", nearcall.WithResolvers(w.resolver), nearcall.WithTransportCredentials(insecure.NewCredentials()))
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					w.conn = conn
					conn.Connect() // the resolver has a ClientConn then
					place.before(t, w)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w.cancel = cancel
					if by == "the deadline" {
						ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
						defer cancel()
					}
					ended := make(chan error, 1)
					go func() { ended <- call(ctx, testpb.NewTestServiceClient(conn), grpc.WaitForReady(place.ready)) }()
					if by != "the deadline" { // which may be earlier
						place.begun(t, w)
					}
					waitEnds[by](w)
					leak.Within(t, time.Minute, "a call that waits for "+what+" is ended by "+by, func() {
						if err := <-ended; status.Code(err) != want {
							t.Errorf("waiting for %s, ended by %s: %v, want %v", what, by, err, want)
						}
					})
				})
			}
		}
	}
}
