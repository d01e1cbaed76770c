package balance_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

type service struct {
	testpb.UnimplementedTestServiceServer
	duplex func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

func (s service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return s.duplex(stream)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

// ordinary serves s with grpc-go, and returns the address.
func ordinary(t *testing.T, s service, opts ...grpc.ServerOption) string {
	t.Helper()
	lis, srv := listen(t), grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, s)
	go srv.Serve(lis)
	t.Cleanup(srv.Stop)
	return lis.Addr().String()
}

// near serves s with nearcall at target.
func near(t *testing.T, target string, s service) *nearcall.Server {
	t.Helper()
	srv, _ := nearListening(t, target, s)
	return srv
}

// nearListening is near, and returns what stops the server and frees the name of its listener.
func nearListening(t *testing.T, target string, s service) (srv *nearcall.Server, stop func()) {
	t.Helper()
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	srv = nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv, s)
	go srv.Serve(lis)
	stop = func() {
		srv.Stop()
		_ = lis.Close() // Serve has not begun if Stop came first, and then closes it later
	}
	t.Cleanup(stop)
	return srv, stop
}

// The addresses of an endpoint are tried in their order, but the nearest first.
func TestTheNearestAddressOfAnEndpointIsTriedFirst(t *testing.T) {
	serve := func(target, name string) string {
		lis, err := nearcall.Listen(target)
		if err != nil {
			t.Fatal(err)
		}
		srv := nearcall.NewServer(nearcall.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			_ = grpc.SetHeader(ctx, metadata.Pairs("server", name))
			return handle(ctx, req)
		}))
		testpb.RegisterTestServiceServer(srv, service{})
		go srv.Serve(lis)
		t.Cleanup(srv.Stop)
		if strings.HasPrefix(target, "tcp:") {
			return "tcp:" + lis.Addr().String()
		}
		return target
	}
	far, further := serve("tcp:127.0.0.1:0", "far"), serve("tcp:127.0.0.1:0", "further")
	here := serve("inproc:"+t.Name(), "here")
	for name, c := range map[string]struct {
		addrs []string
		want  string
	}{
		"in this process":           {[]string{far, here}, "here"},
		"nothing is in the process": {[]string{far, "inproc:" + t.Name() + "/nobody", further}, "far"},
		"equally far":               {[]string{further, far}, "further"},
	} {
		t.Run(name, func(t *testing.T) {
			var e resolver.Endpoint
			for _, a := range c.addrs {
				e.Addresses = append(e.Addresses, resolver.Address{Addr: a})
			}
			r := manual.NewBuilderWithScheme("one")
			r.InitialState(resolver.State{Endpoints: []resolver.Endpoint{e}})
			conn, err := nearcall.NewClient("one:///any", nearcall.WithResolvers(r), nearcall.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var md metadata.MD
			if _, err := testpb.NewTestServiceClient(conn).EmptyCall(soon(t), &testpb.Empty{}, grpc.Header(&md)); err != nil {
				t.Fatal(err)
			}
			if got := md.Get("server"); len(got) != 1 || got[0] != c.want {
				t.Errorf("the server is %v, want %q", got, c.want)
			}
			if a := e.Addresses[0].Addr; a != c.addrs[0] {
				t.Errorf("the resolver's own list begins with %s now", a)
			}
		})
	}
}

// dial returns a connection to addrs.
func dial(t *testing.T, addrs []string, opts ...nearcall.DialOption) *nearcall.ClientConn {
	t.Helper()
	r := manual.NewBuilderWithScheme("list")
	var s resolver.State
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, resolver.Address{Addr: a}) // each becomes an endpoint
	}
	r.InitialState(s)
	opts = append(opts, nearcall.WithResolvers(r), nearcall.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := nearcall.NewClient("list:///any", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

const retries = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// A stream on which the client has sent nothing is retried as often as its policy says.
func TestAStreamToAnOrdinaryServerIsRetriedAsItsPolicySays(t *testing.T) {
	var attempts atomic.Int32
	addr := ordinary(t, service{duplex: func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		attempts.Add(1)
		return status.Error(codes.Unavailable, "the handler's")
	}})
	conn := dial(t, []string{addr}, nearcall.WithDefaultServiceConfig(retries))
	ctx, cancel := context.WithTimeout(soon(t), 2*time.Second)
	defer cancel()
	s, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Unavailable || attempts.Load() != 3 {
		t.Errorf("after %d attempts the error is %v, want 3 and the handler's", attempts.Load(), err)
	}
}

// A server that refuses a call's headers is asked as often as the policy says, though the request
// must not have been written when the refusal arrives.
func TestACallRefusedBeforeItsRequestIsRetriedAsItsPolicySays(t *testing.T) {
	var attempts atomic.Int32
	addr := ordinary(t, service{}, grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		attempts.Add(1)
		return nil, status.Error(codes.Unavailable, "the tap's")
	}))
	conn := dial(t, []string{addr}, nearcall.WithDefaultServiceConfig(retries))
	client := testpb.NewTestServiceClient(conn)
	for range 100 {
		attempts.Store(0)
		_, err := client.EmptyCall(soon(t), &testpb.Empty{})
		if status.Code(err) != codes.Unavailable || attempts.Load() != 3 {
			t.Fatalf("after %d attempts the error is %v, want 3 and the tap's", attempts.Load(), err)
		}
	}
}

// refusing relays connections to addr, but refuses all streams of the first one when their request has
// arrived: no handler has seen them.
func refusing(t *testing.T, addr string) string {
	lis := listen(t)
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for n := 0; ; n++ {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			if n == 0 {
				go refuse(conn)
				continue
			}
			to, err := net.Dial("tcp", addr)
			if err != nil {
				_ = conn.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(to, conn)
				_ = to.Close()
			}()
			go func() {
				_, _ = io.Copy(conn, to)
				_ = conn.Close()
			}()
		}
	}()
	return lis.Addr().String()
}

// refuse answers a connection of HTTP/2 until it has a request, and then says that it has handled none.
func refuse(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	if _, err := r.Discard(24); err != nil { // the preface
		return
	}
	_, _ = conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // SETTINGS
	for {
		var head [9]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(r, payload); err != nil {
			return
		}
		switch kind, flags := head[3], head[4]; {
		case kind == 4 && flags == 0: // SETTINGS
			_, _ = conn.Write([]byte{0, 0, 0, 4, 1, 0, 0, 0, 0})
		case kind == 6 && flags == 0: // PING
			_, _ = conn.Write(append([]byte{0, 0, 8, 6, 1, 0, 0, 0, 0}, payload...))
		case kind == 0 && flags&1 != 0: // the end of a request
			_, _ = conn.Write([]byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // GOAWAY
		}
	}
}

// A call that an ordinary server has not processed is made again, though its request was sent.
func TestACallThatAnOrdinaryServerHasNotProcessedIsMadeAgain(t *testing.T) {
	addr := refusing(t, ordinary(t, service{}))
	conn := dial(t, []string{addr})
	if _, err := testpb.NewTestServiceClient(conn).EmptyCall(soon(t), &testpb.Empty{}); err != nil {
		t.Error(err)
	}
}

// The end of the *grpc.ClientConn ends calls, as in grpc-go.
func TestCloseOfGRPCEndsCalls(t *testing.T) {
	hold := service{duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		_ = s.Send(&testpb.StreamingOutputCallResponse{})
		<-s.Context().Done()
		return nil
	}}
	inproc := "inproc:" + t.Name()
	near(t, inproc, hold)
	for name, addr := range map[string]string{"nearcall": inproc, "gRPC": ordinary(t, hold)} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, []string{addr})
			s, err := testpb.NewTestServiceClient(conn).FullDuplexCall(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := s.Recv()
				ended <- err
			}()
			_ = conn.GRPC().Close()
			leak.Within(t, 5*time.Second, "the end of the call", func() {
				if err := <-ended; status.Code(err) != codes.Canceled {
					t.Errorf("the call has ended with %v, want Canceled", err)
				}
			})
		})
	}
}

// A connection that was lost, and made again for a call, does not become idle while there are calls.
func TestAConnectionThatWasLostStaysOutOfIdleMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := "inproc:" + t.Name()
		first := near(t, target, service{})
		var built atomic.Int32
		r := manual.NewBuilderWithScheme("counted")
		r.BuildCallback = func(resolver.Target, resolver.ClientConn, resolver.BuildOptions) { built.Add(1) }
		r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: target}}})
		conn, err := nearcall.NewClient("counted:///any", nearcall.WithResolvers(r), nearcall.WithIdleTimeout(time.Minute), nearcall.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		call := func() {
			t.Helper()
			if _, err := testpb.NewTestServiceClient(conn).EmptyCall(t.Context(), &testpb.Empty{}); err != nil {
				t.Fatal(err)
			}
		}
		call()
		first.Stop()
		synctest.Wait()
		if s := conn.GetState(); s != connectivity.Idle {
			t.Fatalf("the connection is %v", s)
		}
		time.Sleep(20 * time.Second) // the channel has looked for calls, and the timeout has not passed
		near(t, target, service{})
		for range 100 {
			call()
			time.Sleep(5 * time.Second)
		}
		if n := built.Load(); n != 1 {
			t.Errorf("the target was resolved %d times", n)
		}
	})
}

// A call whose connection ends while it is picked does not wait for a policy that is idle, and that
// nobody asks to connect.
func TestConnectionsToAnOrdinaryServerThatEndAllTheTime(t *testing.T) {
	addr := ordinary(t, service{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Millisecond}))
	conn := dial(t, []string{addr})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range needs.Rounds(1500) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				_, err := testpb.NewTestServiceClient(conn).EmptyCall(ctx, &testpb.Empty{})
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}
