package test

import (
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
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// A countingDialer counts connection attempts. Unlike inproc.Dialer it does not signal
// when a server starts listening, so the backoff applies.
type countingDialer struct {
	to       inproc.Dialer
	attempts *atomic.Int32
}

func (d countingDialer) Dial(ctx context.Context) (link.Session, error) {
	d.attempts.Add(1)
	return d.to.Dial(ctx)
}

// wantStates checks the state of a connection and of its *grpc.ClientConn.
func wantStates(t *testing.T, conn *nearcall.ClientConn, want connectivity.State) {
	t.Helper()
	if got := conn.GetState(); got != want {
		t.Errorf("the connection is %v, want %v", got, want)
	}
	if got := conn.GRPC().GetState(); got != want {
		t.Errorf("its *grpc.ClientConn is %v, want %v", got, want)
	}
}

func isClosing(t *testing.T, what string, err error) {
	t.Helper()
	//lint:ignore SA1019 programs compare with it
	if err != grpc.ErrClientConnClosing {
		t.Errorf("%s: %v, want grpc.ErrClientConnClosing", what, err)
	}
}

func TestGRPCConnHasTheStatesOfItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		name := "states-of-a-grpc-conn"
		conn, err := nearcall.NewClient("inproc:"+name, options.WithDialer(countingDialer{inproc.Dialer{Name: name, Options: inproc.Options{Config: &options.NewClient(nil).Connections}}, &attempts}))
		if err != nil {
			t.Fatal(err)
		}
		cc := conn.GRPC()
		wantStates(t, conn, connectivity.Idle)
		cc.ResetConnectBackoff() // no effect when idle
		synctest.Wait()
		wantStates(t, conn, connectivity.Idle)

		cc.Connect()
		synctest.Wait()
		wantStates(t, conn, connectivity.TransientFailure)
		for want := int32(2); want < 5; want++ { // without a backoff in between
			cc.ResetConnectBackoff()
			synctest.Wait()
			if got := attempts.Load(); got != want {
				t.Errorf("ResetConnectBackoff: %d attempts, want %d", got, want)
			}
		}
		wantStates(t, conn, connectivity.TransientFailure)

		lis, err := nearcall.Listen("inproc:" + name)
		if err != nil {
			t.Fatal(err)
		}
		srv := serve(t, echo{})
		go func() { _ = srv.Serve(lis) }()
		if !cc.WaitForStateChange(t.Context(), connectivity.TransientFailure) { // after the backoff
			t.Fatal("the state does not change")
		}
		wantStates(t, conn, connectivity.Ready)
		cc.ResetConnectBackoff() // no effect when ready
		cc.Connect()
		synctest.Wait()
		wantStates(t, conn, connectivity.Ready)
		if err := cc.Invoke(t.Context(), testpb.TestService_UnaryCall_FullMethodName, &testpb.SimpleRequest{}, new(testpb.SimpleResponse)); err != nil {
			t.Error(err)
		}

		srv.Stop()
		if !cc.WaitForStateChange(t.Context(), connectivity.Ready) {
			t.Fatal("the state does not change")
		}
		wantStates(t, conn, connectivity.Idle)
		conn.Connect()
		synctest.Wait()
		wantStates(t, conn, connectivity.TransientFailure)

		changed := make(chan connectivity.State, 1)
		go func() {
			cc.WaitForStateChange(t.Context(), connectivity.TransientFailure)
			changed <- cc.GetState()
		}()
		synctest.Wait()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if s := <-changed; s != connectivity.Shutdown {
			t.Errorf("after Close it is %v", s)
		}
		wantStates(t, conn, connectivity.Shutdown)
		isClosing(t, "a second Close", cc.Close())
	}) // the bubble checks that every goroutine has ended
}

func TestGRPCConnCanBeSeenConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := nearcall.NewClient("inproc:slow", options.WithDialer(endless{}))
		if err != nil {
			t.Fatal(err)
		}
		cc := conn.GRPC()
		cc.Connect()
		synctest.Wait()
		wantStates(t, conn, connectivity.Connecting)
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
		wantStates(t, conn, connectivity.Shutdown)
	})
}

// endless blocks in Dial until its context is done.
type endless struct{}

func (endless) Dial(ctx context.Context) (link.Session, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestClosingAConnectionOrItsGRPCConnClosesBoth(t *testing.T) {
	for name, test := range map[string]struct {
		early bool // GRPC is called before the first call
		close func(*nearcall.ClientConn) error
	}{
		"the connection":         {true, (*nearcall.ClientConn).Close},
		"its GRPC":               {true, func(c *nearcall.ClientConn) error { return c.GRPC().Close() }},
		"its GRPC, made for it":  {false, func(c *nearcall.ClientConn) error { return c.GRPC().Close() }},
		"both at the same time":  {true, bothClose},
		"the connection, before": {false, (*nearcall.ClientConn).Close},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service, running, _ := waiting()
				client, conn := connect(t, serve(t, service))
				if test.early {
					client = testpb.NewTestServiceClient(conn.GRPC())
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				unary := invoke(ctx, client)
				<-running
				s, err := client.FullDuplexCall(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := test.close(conn); err != nil {
					t.Errorf("Close: %v", err)
				}
				wantStates(t, conn, connectivity.Shutdown)
				isClosing(t, "the call that ran", <-unary)
				_, err = s.Recv()
				isClosing(t, "the stream that ran", err)
				for what, c := range map[string]grpc.ClientConnInterface{"the connection": conn, "its GRPC": conn.GRPC()} {
					isClosing(t, "a call of "+what, c.Invoke(ctx, testpb.TestService_UnaryCall_FullMethodName, &testpb.SimpleRequest{}, new(testpb.SimpleResponse)))
					_, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, testpb.TestService_FullDuplexCall_FullMethodName)
					isClosing(t, "a stream of "+what, err)
				}
				isClosing(t, "Close again", conn.Close())
				isClosing(t, "its GRPC's Close again", conn.GRPC().Close())
			})
		})
	}
}

// bothClose closes c and its *grpc.ClientConn concurrently. At least one Close must
// succeed: bothClose returns an error only if both fail.
func bothClose(c *nearcall.ClientConn) error {
	cc := c.GRPC()
	other := make(chan error)
	go func() { other <- cc.Close() }()
	err := c.Close()
	if second := <-other; err != nil {
		err = second
	}
	return err
}

func TestGRPCConnIsMadeOnceAndWhileOthersClose(t *testing.T) {
	srv := serve(t, echo{})
	for range 50 {
		conn := srv.Client()
		made := make(chan *grpc.ClientConn, 4)
		var all sync.WaitGroup
		for range cap(made) {
			all.Go(func() {
				cc := conn.GRPC()
				cc.Connect()
				_ = cc.Invoke(context.Background(), testpb.TestService_UnaryCall_FullMethodName, &testpb.SimpleRequest{}, new(testpb.SimpleResponse))
				made <- cc
			})
		}
		all.Go(func() { _ = conn.Close() })
		all.Wait()
		wantStates(t, conn, connectivity.Shutdown)
		for range cap(made) {
			if cc := <-made; cc != conn.GRPC() {
				t.Fatal("there are two")
			}
		}
	}
}

// countedCalls is a stats handler that counts calls.
type countedCalls struct{ begun atomic.Int32 }

func (c *countedCalls) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		c.begun.Add(1)
	}
}
func (*countedCalls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*countedCalls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*countedCalls) HandleConn(context.Context, stats.ConnStats)                       {}

// Stats handlers, call options and interceptors apply once to a call, through either
// connection.
func TestCallsOfAGRPCConnAreInterceptedAndCountedOnce(t *testing.T) {
	stat := &countedCalls{}
	var unary, streams, finished atomic.Int32
	var conn *nearcall.ClientConn
	_, conn = connect(t, serve(t, echo{}),
		nearcall.WithStatsHandler(stat),
		nearcall.WithDefaultCallOptions(grpc.OnFinish(func(error) { finished.Add(1) })),
		nearcall.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if unary.Add(1); cc != conn.GRPC() {
				t.Error("interceptors are shown another")
			}
			if len(opts) != 2 { // the connection's and the stub's
				t.Errorf("there are %d call options, want 2", len(opts))
			}
			return next(ctx, method, req, reply, cc, opts...)
		}),
		nearcall.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			streams.Add(1)
			return next(ctx, desc, cc, method, opts...)
		}))
	client := testpb.NewTestServiceClient(conn.GRPC())
	if err := callAll(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]int32{"intercepted calls": unary.Load(), "intercepted streams": streams.Load() - 2, "of four calls told to stats": stat.begun.Load() - 3, "of four finished": finished.Load() - 3} {
		if n != 1 {
			t.Errorf("%s: %d, want 1", what, n)
		}
	}
}

func TestGRPCConnOfEachTarget(t *testing.T) {
	for target, canonical := range map[string]string{
		"inproc:some":               "inproc:///some",
		"inproc:with a space":       "",
		"inproc:100%":               "",
		"tcp:localhost:1":           "tcp:///localhost:1",
		"unix:///tmp/absent":        "unix:///tmp/absent",
		"unix:tmp/absent":           "unix:///tmp/absent",
		"unix:/tmp/100%":            "",
		"grpc:passthrough:///other": "passthrough:///other",
	} {
		t.Run(target, func(t *testing.T) {
			if strings.HasPrefix(target, "unix:") {
				needs.UnixSockets(t)
			}
			conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(insecureCreds()))
			if err != nil {
				t.Fatal(err)
			}
			cc := conn.GRPC()
			if canonical != "" && cc.CanonicalTarget() != canonical {
				t.Errorf("the canonical target is %q, want %q", cc.CanonicalTarget(), canonical)
			}
			if canonical != "" && "grpc:"+cc.Target() != target && cc.Target() != target {
				t.Errorf("the target is %q", cc.Target())
			}
			wantStates(t, conn, connectivity.Idle)
			cc.Connect()
			if !cc.WaitForStateChange(t.Context(), connectivity.Idle) {
				t.Error("the state does not change")
			}
			if err := cc.Close(); err != nil {
				t.Error(err)
			}
			wantStates(t, conn, connectivity.Shutdown)
		})
	}
}

func TestGRPCConnWithAConfigThatCannotBeHonoured(t *testing.T) {
	for _, config := range []string{"nonsense", `null`, `{"loadBalancingConfig": [{"no_such_balancer": {}}]}`} {
		_, conn := connect(t, serve(t, echo{}), nearcall.WithDefaultServiceConfig(config))
		cc := conn.GRPC()
		wantStates(t, conn, connectivity.Idle)
		direct := conn.Invoke(t.Context(), testpb.TestService_UnaryCall_FullMethodName, &testpb.SimpleRequest{}, new(testpb.SimpleResponse))
		through := cc.Invoke(t.Context(), testpb.TestService_UnaryCall_FullMethodName, &testpb.SimpleRequest{}, new(testpb.SimpleResponse))
		if status.Code(direct) != status.Code(through) || status.Code(direct) != codes.OK && config != "nonsense" {
			t.Errorf("%s: a call fails with %v, and through grpc's connection with %v", config, direct, through)
		}
	}
}

func TestGetMethodConfigHasTheLimitOfAttempts(t *testing.T) {
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	for limit, want := range map[int]int{0: 4, 3: 3, 5: 4} {
		for _, target := range []string{"inproc:attempts", "passthrough:///attempts"} {
			conn, err := nearcall.NewClient(target, nearcall.WithDefaultServiceConfig(config), nearcall.WithMaxCallAttempts(limit),
				nearcall.WithTransportCredentials(insecureCreds()))
			if err != nil {
				t.Fatal(err)
			}
			conn.Connect()
			leak.Eventually(t, "the target is resolved", func() bool {
				m := conn.GRPC().GetMethodConfig("/a/b")
				if m.RetryPolicy == nil {
					return false
				}
				if m.RetryPolicy.MaxAttempts != want {
					t.Errorf("%s with a limit of %d: %+v, want %d attempts", target, limit, m.RetryPolicy, want)
				}
				return true
			})
			_ = conn.Close()
		}
	}
}

// order returns options with interceptors that append name to list.
func order(list *[]string, name string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			*list = append(*list, name)
			return next(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			*list = append(*list, name+" chained")
			return next(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			*list = append(*list, name+" streams")
			return next(ctx, desc, cc, method, opts...)
		}),
	}
}

func TestALibrarysConnectionPassesItsCallsOn(t *testing.T) {
	tls, err := credentials.NewClientTLSFromFile(testdata.Path("x509/server_ca_cert.pem"), "")
	if err != nil {
		t.Fatal(err)
	}
	dialled := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		t.Error("the library's connection dials")
		return nil, net.ErrClosed
	})
	for name, more := range map[string][]grpc.DialOption{
		"insecure":    {grpc.WithTransportCredentials(insecureCreds())},
		"TLS":         {grpc.WithTransportCredentials(tls), grpc.WithPerRPCCredentials(secret{})},
		"a bundle":    {grpc.WithCredentialsBundle(google{})},
		"without any": nil,
		//lint:ignore SA1019 go-plugin uses it
		"as go-plugin does": {grpc.WithTransportCredentials(insecureCreds()), grpc.FailOnNonTempDialError(true)},
	} {
		for _, target := range []string{"unused", "localhost:1", "dns:///localhost:1", "unix:absent", "passthrough:///absent", "unix-abstract:absent", "inproc:absent"} {
			//lint:ignore SA1019 libraries use it
			for how, dial := range map[string]func(string, ...grpc.DialOption) (*grpc.ClientConn, error){"Dial": grpc.Dial, "NewClient": grpc.NewClient} {
				t.Run(strings.Join([]string{name, target, how}, "/"), func(t *testing.T) {
					var seen []string
					near := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						seen = append(seen, "nearcall's")
						return next(ctx, method, req, reply, cc, opts...)
					}
					_, conn := connect(t, serve(t, echo{}), nearcall.WithUnaryInterceptor(near))
					opts := append(append([]grpc.DialOption{dialled}, order(&seen, "library's")...), more...)
					cc, err := dial(target, append(opts, conn.DialOptions()...)...)
					if err != nil {
						t.Fatal(err)
					}
					defer cc.Close()
					client := testpb.NewTestServiceClient(cc)
					if err := callAll(t.Context(), client); err != nil {
						t.Error(err)
					}
					if got := strings.Join(seen, ", "); got != "library's, library's chained, nearcall's"+strings.Repeat(", library's streams", 3) {
						t.Errorf("interceptors: %s", got)
					}
				})
			}
		}
	}
}

// secret requires a secured connection.
type secret struct{}

func (secret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, nil
}
func (secret) RequireTransportSecurity() bool { return true }

// google is a bundle, as Google's libraries use.
type google struct{}

func (google) TransportCredentials() credentials.TransportCredentials { return insecureCreds() }
func (google) PerRPCCredentials() credentials.PerRPCCredentials       { return nil }
func (g google) NewWithMode(string) (credentials.Bundle, error)       { return g, nil }

func TestALibrarysConnectionHasTheStateOfItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := "states-of-a-library"
		conn, err := nearcall.NewClient("inproc:" + name)
		if err != nil {
			t.Fatal(err)
		}
		wantAll := func(want connectivity.State, ccs ...*grpc.ClientConn) {
			t.Helper()
			synctest.Wait()
			for i, cc := range ccs {
				if got := cc.GetState(); got != want {
					t.Errorf("connection %d is %v, want %v", i, got, want)
				}
			}
		}
		opts := conn.DialOptions()
		//lint:ignore SA1019 libraries use it
		first, err := grpc.Dial("unused", opts...)
		if err != nil {
			t.Fatal(err)
		}
		second, err := grpc.NewClient("unused", opts...)
		if err != nil {
			t.Fatal(err)
		}
		wantAll(connectivity.Idle, first, second, conn.GRPC())
		second.Connect()
		wantAll(connectivity.TransientFailure, first, second, conn.GRPC())

		lis, err := nearcall.Listen("inproc:" + name)
		if err != nil {
			t.Fatal(err)
		}
		srv := serve(t, echo{})
		go func() { _ = srv.Serve(lis) }()
		time.Sleep(time.Minute)
		wantAll(connectivity.Ready, first, second, conn.GRPC())
		//lint:ignore SA1019 libraries use it
		blocking, err := grpc.Dial("unused", append(opts, grpc.WithBlock())...)
		if err != nil {
			t.Fatal(err)
		}
		wantAll(connectivity.Ready, blocking)

		for _, cc := range []*grpc.ClientConn{first, blocking} {
			if err := cc.Close(); err != nil {
				t.Error(err)
			}
			isClosing(t, "a call of a closed one", cc.Invoke(t.Context(), testpb.TestService_UnaryCall_FullMethodName, &testpb.SimpleRequest{}, new(testpb.SimpleResponse)))
			_, err = cc.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, testpb.TestService_FullDuplexCall_FullMethodName)
			isClosing(t, "a stream of a closed one", err)
		}
		if _, err := testpb.NewTestServiceClient(second).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
			t.Errorf("another's call: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		wantAll(connectivity.TransientFailure, second)
		_, err = testpb.NewTestServiceClient(second).UnaryCall(t.Context(), &testpb.SimpleRequest{})
		isClosing(t, "a call after Close", err)
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}) // the bubble checks that every goroutine has ended
}

func TestALibrarysConnectionToATargetOfGRPC(t *testing.T) {
	lis := listenTCP(t)
	startGRPC(t, lis, echo{})
	conn, err := nearcall.NewClient(lis.Addr().String(), nearcall.WithTransportCredentials(insecureCreds()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cc, err := grpc.NewClient("unused", conn.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if _, err := testpb.NewTestServiceClient(cc).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Error(err)
	}
	cc.Connect()
	for s := cc.GetState(); s != connectivity.Ready; s = cc.GetState() {
		if !cc.WaitForStateChange(t.Context(), s) {
			t.Fatal("it does not become ready")
		}
	}
}

// TestALibrarysCallsEndWithItsConnection, as in grpc-go: a library ends its streams by closing its
// connection. The calls of others over the same ClientConn go on.
func TestALibrarysCallsEndWithItsConnection(t *testing.T) {
	hold(t)
	for _, network := range append(available(t, networks("tcp", "unix")...), "inproc", "grpc") {
		t.Run(network, func(t *testing.T) {
			release, ended := make(chan struct{}), make(chan error, 2)
			begun := make(chan struct{}, 4)
			wait := func(ctx context.Context) error {
				begun <- struct{}{}
				select {
				case <-ctx.Done():
					ended <- ctx.Err()
					return ctx.Err()
				case <-release:
					return nil
				}
			}
			srv := serve(t, echo{
				unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					return &testpb.SimpleResponse{}, wait(ctx)
				},
				bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
					return wait(s.Context())
				},
			})
			var conn *nearcall.ClientConn
			switch network {
			case "inproc":
				_, conn = connect(t, srv)
			default:
				at := network
				if network == "grpc" {
					at = "tcp"
				}
				lis := listen(t, targetFor(t, at))
				start(t, srv, lis)
				target, opts := lis.Target(), over(network)
				if network == "grpc" {
					target, opts = "grpc:"+strings.TrimPrefix(target, "tcp:"), []nearcall.DialOption{nearcall.WithTransportCredentials(insecureCreds())}
				}
				var err error
				if conn, err = nearcall.NewClient(target, opts...); err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			type library struct {
				cc      *grpc.ClientConn
				results chan error // of its unary call and its stream
			}
			begin := func() library {
				cc, err := grpc.NewClient("unused", conn.DialOptions()...)
				if err != nil {
					t.Fatal(err)
				}
				l := library{cc, make(chan error, 2)}
				client := testpb.NewTestServiceClient(cc)
				go func() {
					_, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{})
					l.results <- err
				}()
				s, err := client.FullDuplexCall(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					_, err := s.Recv()
					l.results <- err
				}()
				<-begun
				<-begun
				return l
			}
			first, second := begin(), begin()
			if err := first.cc.Close(); err != nil {
				t.Error(err)
			}
			for range 2 {
				isClosing(t, "a call of the closed one", <-first.results)
				if err := <-ended; err != context.Canceled {
					t.Errorf("the handler's context: %v", err)
				}
			}
			close(release)
			for range 2 {
				if err := <-second.results; err != nil && err != io.EOF {
					t.Errorf("a call of the other: %v", err)
				}
			}
			if err := second.cc.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
