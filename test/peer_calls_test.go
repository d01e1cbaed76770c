package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// eachPeer runs f for each way between a client and a server that call each other.
func eachPeer(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range append([]string{"inproc"}, available(t, networks("tcp", "unix")...)...) {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

// peers connects a client, which has the server own, to srv.
func peers(t *testing.T, network string, srv, own *nearcall.Server, opts ...nearcall.DialOption) (testpb.TestServiceClient, *nearcall.ClientConn) {
	t.Helper()
	if own != nil {
		opts = append(opts, nearcall.WithServer(own))
	}
	if network == "inproc" {
		conn := srv.Client(opts...)
		t.Cleanup(func() { _ = conn.Close() })
		return testpb.NewTestServiceClient(conn), conn
	}
	lis := listen(t, targetFor(t, network))
	start(t, srv, lis)
	conn, err := nearcall.NewClient(lis.Target(), over(network, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn), conn
}

// callPeer returns a client of the peer of ctx's call.
func callPeer(ctx context.Context) testpb.TestServiceClient {
	return testpb.NewTestServiceClient(nearcall.PeerConn(ctx))
}

// backAndForth is a service whose unary method calls the peer's, ResponseSize deep.
var backAndForth = echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if in.ResponseSize == 0 {
		return &testpb.SimpleResponse{Username: "bottom"}, nil
	}
	reply, err := callPeer(ctx).UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: in.ResponseSize - 1})
	if err != nil {
		return nil, err
	}
	reply.Username += "."
	return reply, nil
}}

// handing is a service whose unary method passes on the connection to its caller.
func handing() (e echo, conns chan testpb.TestServiceClient) {
	conns = make(chan testpb.TestServiceClient, 10)
	return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		conns <- callPeer(ctx)
		return &testpb.SimpleResponse{Payload: in.Payload}, nil
	}}, conns
}

// Client and server call each other ten deep, on goroutines and on loops.
func TestPeersCallEachOther(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		for _, kind := range append([]looptest.Kind{{Name: "goroutines"}}, looptest.Kinds...) {
			if kind.Name == "coroutines" || kind.Name == "pinned" {
				continue
			}
			t.Run(kind.Name, func(t *testing.T) {
				var srv, own *nearcall.Server
				if kind.New == nil {
					srv, own = serve(t, backAndForth), serve(t, backAndForth)
				} else {
					srv, _ = onLoop(t, kind, backAndForth)
					own, _ = onLoop(t, kind, backAndForth)
				}
				client, _ := peers(t, network, srv, own)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						for range 10 {
							reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 10})
							if err != nil || reply.Username != "bottom.........." {
								t.Errorf("%v, %v", reply, err)
								return
							}
						}
					})
				}
				all.Wait()
			})
		}
	})
}

// A connection to the peer makes calls of all kinds, after its handler has returned, until
// the connection ends.
func TestAPeerIsCalledUntilTheConnectionEnds(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		e, conns := handing()
		client, conn := peers(t, network, serve(t, e), serve(t, echo{}))
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		peer := outcome(t, "the call with the peer", conns)
		for range 3 {
			if err := callAll(t.Context(), peer); err != nil {
				t.Error(err)
			}
		}
		s, err := peer.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		_, err = s.Recv()
		wantCode(t, err, codes.Unavailable)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, waits := range []bool{false, true} {
			wantCode(t, <-invoke(ctx, peer, grpc.WaitForReady(waits)), codes.Unavailable)
		}
	})
}

// Calls to a peer that serves nothing fail with Unimplemented, and say what is missing.
func TestAPeerThatTakesNoCalls(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		e, conns := handing()
		client, _ := peers(t, network, serve(t, e), nil)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		peer := outcome(t, "the call with the peer", conns)
		err := <-invoke(t.Context(), peer, grpc.WaitForReady(true))
		wantCode(t, err, codes.Unimplemented)
		if !strings.Contains(err.Error(), "WithServer") {
			t.Errorf("the handler is told: %v", err)
		}
		s, err := peer.FullDuplexCall(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		wantCode(t, err, codes.Unimplemented)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		wantCode(t, <-invoke(t.Context(), peer), codes.Unimplemented) // the connection has gone on
	})
	t.Run("gRPC", func(t *testing.T) {
		e, conns := handing()
		lis := listen(t, "tcp:127.0.0.1:0")
		start(t, serve(t, e), lis)
		wantCode(t, <-invoke(t.Context(), dialGRPC(t, lis)), codes.OK)
		wantCode(t, <-invoke(t.Context(), outcome(t, "the call with the peer", conns)), codes.Unimplemented)
	})
	t.Run("no handler", func(t *testing.T) {
		wantCode(t, <-invoke(t.Context(), callPeer(t.Context())), codes.Unimplemented)
	})
}

// A server that stops gracefully lets its handlers call their callers until they return.
func TestHandlersCallBackWhileTheirServerStops(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		running, release := make(chan struct{}), make(chan struct{})
		srv := serve(t, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			close(running)
			<-release
			for range 3 {
				if err := callAll(ctx, callPeer(ctx)); err != nil {
					return nil, fmt.Errorf("the callback: %w", err)
				}
			}
			return &testpb.SimpleResponse{Payload: in.Payload}, nil
		}})
		client, conn := peers(t, network, srv, serve(t, echo{}))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		call := invoke(ctx, client)
		outcome(t, "the handler's begin", running)
		stopped := make(chan struct{})
		go func() {
			srv.GracefulStop()
			close(stopped)
		}()
		leak.Within(t, 10*time.Second, "the client learns of the drain", func() {
			conn.WaitForStateChange(t.Context(), connectivity.Ready)
		})
		close(release)
		wantCode(t, <-call, codes.OK)
		leak.Within(t, 10*time.Second, "GracefulStop returns", func() { <-stopped })
	})
}

// Stopping a client's server ends the calls that it serves. The client's own calls go on,
// over the same connection.
func TestStoppingAClientsServerLeavesTheConnection(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		for _, graceful := range []bool{false, true} {
			t.Run(fmt.Sprintf("graceful %v", graceful), func(t *testing.T) {
				e, conns := handing()
				waits, running, release := waiting()
				own := serve(t, waits)
				client, _ := peers(t, network, serve(t, e), own)
				wantCode(t, <-invoke(t.Context(), client), codes.OK)
				peer := outcome(t, "the call with the peer", conns)
				callback := invoke(t.Context(), peer)
				outcome(t, "the handler's begin", running)
				stopped := make(chan struct{})
				if graceful {
					go func() {
						own.GracefulStop()
						close(stopped)
					}()
					leak.Eventually(t, "new callbacks are refused", func() bool {
						ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
						defer cancel()
						return status.Code(<-invoke(ctx, peer)) == codes.Unavailable
					})
					close(release)
					wantCode(t, <-callback, codes.OK)
				} else {
					own.Stop()
					close(stopped)
					if err := <-callback; status.Code(err) != codes.Unavailable {
						t.Errorf("the callback ended with %v", err)
					}
				}
				leak.Within(t, 10*time.Second, "the server stops", func() { <-stopped })
				wantCode(t, <-invoke(t.Context(), peer), codes.Unavailable)
				for range 3 {
					wantCode(t, <-invoke(t.Context(), client), codes.OK)
					wantCode(t, <-invoke(t.Context(), outcome(t, "the call with the peer", conns)), codes.Unavailable)
				}
			})
		}
	})
}

// When GracefulStop of a client's server returns, the server has got the replies: nothing is
// lost if the client's process then ends.
func TestGracefulStopWritesRepliesToServer(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		if network == "inproc" || network == "shm" || network == "unix+shm" {
			t.Skip("there is no socket to close")
		}
		e, conns := handing()
		running := make(chan struct{})
		large := serve(t, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			close(running)
			return &testpb.SimpleResponse{Payload: payload(3 << 20)}, nil
		}})
		var socket net.Conn
		client, _ := peers(t, network, serve(t, e), large, nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			address, isUnix := strings.CutPrefix(address, "unix://")
			var d net.Dialer
			var err error
			if isUnix {
				socket, err = d.DialContext(ctx, "unix", address)
			} else {
				socket, err = d.DialContext(ctx, "tcp", address)
			}
			return socket, err
		}))
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		callback := invoke(t.Context(), outcome(t, "the call with the peer", conns))
		outcome(t, "the handler's begin", running)
		large.GracefulStop()
		_ = socket.(interface{ CloseWrite() error }).CloseWrite()
		wantCode(t, <-callback, codes.OK)
	})
}

// What a client has sent before it leaves is received afterwards, with the status.
func TestRepliesThatHaveArrivedOutliveTheConnection(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		e, conns := handing()
		own := serve(t, echo{})
		client, conn := peers(t, network, serve(t, e), own)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		peer := outcome(t, "the call with the peer", conns)
		s, err := peer.StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{Payload: payload(10)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		own.GracefulStop()
		_ = conn.Close()
		leak.Eventually(t, "the server notices the end", func() bool { return status.Code(<-invoke(t.Context(), peer)) == codes.Unavailable })
		left := -1
		for ; err == nil; left++ {
			_, err = s.Recv()
		}
		if left != 99 || err != io.EOF {
			t.Errorf("%d messages are received, want 99; the stream ended with %v", left, err)
		}
	})
}

// A client that leaves in the middle of a callback ends it, and leaves nothing behind.
func TestAClientLeavesInTheMiddleOfACallback(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		hold(t)
		results := make(chan error, 1)
		waits, running, release := waiting()
		defer close(release)
		srv := serve(t, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			_, err := callPeer(ctx).UnaryCall(context.WithoutCancel(ctx), &testpb.SimpleRequest{})
			results <- err
			return nil, err
		}})
		client, conn := peers(t, network, srv, serve(t, waits))
		call := invoke(t.Context(), client)
		outcome(t, "the handler's begin", running)
		_ = conn.Close()
		if err := <-call; err == nil {
			t.Error("the call succeeded")
		}
		wantCode(t, <-results, codes.Unavailable)
	})
}

// A callback to a client that does not answer ends with its deadline or its call.
func TestACallbackThatHangsEndsWithItsCall(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		waits, _, release := waiting()
		defer close(release)
		results := make(chan error, 20)
		srv := serve(t, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			_, err := callPeer(ctx).UnaryCall(ctx, &testpb.SimpleRequest{})
			results <- err
			return nil, err
		}})
		client, _ := peers(t, network, srv, serve(t, waits))
		for timeout := 50 * time.Millisecond; timeout < time.Minute; timeout *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			err := <-invoke(ctx, client)
			cancel()
			wantCode(t, err, codes.DeadlineExceeded)
			select {
			case err := <-results:
				if status.Code(err) != codes.DeadlineExceeded && status.Code(err) != codes.Canceled {
					t.Errorf("the callback ended with %v", err)
				}
				return
			case <-time.After(timeout): // the deadline passed before the handler ran
			}
		}
		t.Error("no call reached its handler")
	})
}

// Calls nest as deep as MaxConcurrentStreams of the two sides allows, and beyond that wait
// for their deadline. Nothing is stuck after that.
func TestNestedCallsCountOnBothSides(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		limit := nearcall.MaxConcurrentStreams(3)
		client, _ := peers(t, network, serve(t, backAndForth, limit), serve(t, backAndForth, limit))
		for range 2 {
			if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 5}); err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 6})
			cancel()
			wantCode(t, err, codes.DeadlineExceeded)
		}
	})
}

// Handlers of cancelled calls may wait for callbacks, whose replies are still read at the
// limit of handlers.
func TestHandlersAtTheLimitGetTheRepliesOfTheirCallbacks(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		if network == "inproc" {
			t.Skip("cancelled calls count until their handlers return")
		}
		waits, running, release := waiting()
		results := make(chan error, 2)
		srv := serve(t, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if in.FillUsername {
				return &testpb.SimpleResponse{}, nil
			}
			_, err := callPeer(ctx).UnaryCall(context.WithoutCancel(ctx), &testpb.SimpleRequest{})
			results <- err
			return nil, err
		}}, nearcall.MaxConcurrentStreams(2))
		client, _ := peers(t, network, srv, serve(t, waits))
		ctx, cancel := context.WithCancel(t.Context())
		calls := []<-chan error{invoke(ctx, client), invoke(ctx, client)}
		outcome(t, "the handler's begin", running)
		outcome(t, "the handler's begin", running)
		cancel()
		for _, call := range calls {
			wantCode(t, <-call, codes.Canceled)
		}
		// The next call waits until one of the handlers has returned.
		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{FillUsername: true})
		wantCode(t, err, codes.DeadlineExceeded)
		next := make(chan error, 5)
		for range cap(next) {
			go func() {
				_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{FillUsername: true})
				next <- err
			}()
		}
		close(release)
		for range calls {
			wantCode(t, <-results, codes.OK)
		}
		for range cap(next) {
			wantCode(t, <-next, codes.OK)
		}
	})
}

// A client gets the replies to its own calls while as many handlers as may run serve
// calls that were cancelled.
func TestAClientGetsItsRepliesAtTheLimitOfItsHandlers(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		if network == "inproc" {
			t.Skip("cancelled calls count until their handlers return")
		}
		e, conns := handing()
		running, release := make(chan struct{}, 2), make(chan struct{})
		own := serve(t, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			running <- struct{}{}
			<-release
			return &testpb.SimpleResponse{}, nil
		}}, nearcall.MaxConcurrentStreams(1))
		client, _ := peers(t, network, serve(t, e), own)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		peer := outcome(t, "the call with the peer", conns)
		ctx, cancel := context.WithCancel(t.Context())
		callback := invoke(ctx, peer)
		outcome(t, "the handler's begin", running)
		cancel()
		wantCode(t, <-callback, codes.Canceled)
		next := invoke(t.Context(), peer) // it waits until the handler has returned
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for range 3 {
			wantCode(t, <-invoke(ctx, client), codes.OK)
		}
		close(release)
		wantCode(t, <-next, codes.OK)
	})
}

// The options of a server's calls to its clients are those of PeerConnOptions.
func TestOptionsOfCallsToThePeer(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		e, conns := handing()
		var intercepted atomic.Int32
		var md metadata.MD
		var targets sync.Map
		srv := serve(t, e, nearcall.PeerConnOptions(
			nearcall.WithUserAgent("orders"),
			nearcall.WithAuthority("agent"),
			nearcall.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				intercepted.Add(1)
				targets.Store(cc.Target(), true)
				return invoker(ctx, method, req, reply, cc, opts...)
			}),
		))
		own := serve(t, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			md, _ = metadata.FromIncomingContext(ctx)
			return &testpb.SimpleResponse{}, nil
		}})
		client, conn := peers(t, network, srv, own)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		wantCode(t, <-invoke(t.Context(), <-conns), codes.OK)
		if intercepted.Load() != 1 || !strings.HasPrefix(md.Get("user-agent")[0], "orders ") || md.Get(":authority")[0] != "agent" {
			t.Errorf("%d calls were intercepted, with %v", intercepted.Load(), md)
		}
		_ = conn.Close()
	})
}

// An invalid service config in PeerConnOptions makes calls to the peer fail, as it does for a
// connection in process.
func TestAnInvalidServiceConfigForCallsToThePeer(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		e, conns := handing()
		client, _ := peers(t, network, serve(t, e, nearcall.PeerConnOptions(nearcall.WithDefaultServiceConfig("{"))), serve(t, echo{}))
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		err := <-invoke(t.Context(), <-conns)
		wantCode(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), "service config") {
			t.Errorf("the handler is told: %v", err)
		}
	})
}

// A client that only serves connects by itself, and again when its connection is lost.
func TestAClientThatOnlyServesStaysConnected(t *testing.T) {
	lis := &acceptCounter{Listener: listenTCP(t)}
	start(t, serve(t, echo{}), lis)
	var socket atomic.Pointer[net.Conn]
	conn, err := nearcall.NewClient("tcp:"+lis.Addr().String(), nearcall.WithServer(serve(t, echo{})), nearcall.WithPersistentConnection(), impatient(),
		nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", address)
			socket.Store(&c)
			return c, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	for n := int32(1); n <= 3; n++ {
		leak.Eventually(t, "the client has connected", func() bool { return lis.accepted.Load() == n && conn.GetState().String() == "READY" })
		_ = (*socket.Load()).Close()
	}
	_ = conn.Close()
}

// Options for clients that serve are refused for targets that go to grpc-go.
func TestWithServerNeedsATargetOfNearcalls(t *testing.T) {
	for name, opt := range map[string]nearcall.DialOption{
		"WithServer":               nearcall.WithServer(serve(t, echo{})),
		"WithPersistentConnection": nearcall.WithPersistentConnection(),
	} {
		if _, err := nearcall.NewClient("grpc:localhost:1", opt, nearcall.WithTransportCredentials(insecureCreds())); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that was stopped serves no client. The client's own calls are not affected.
func TestAClientWhoseServerWasStoppedBefore(t *testing.T) {
	eachPeer(t, func(t *testing.T, network string) {
		e, conns := handing()
		own := serve(t, echo{})
		own.Stop()
		client, _ := peers(t, network, serve(t, e), own)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		wantCode(t, <-invoke(t.Context(), <-conns), codes.Unimplemented)
	})
}
