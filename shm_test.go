//go:build linux

package nearcall_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/local"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// overShm are the networks that connections of shared memory are made over.
var overShm = []string{"shm", "unix+shm"}

// aware is a service whose unary calls are answered with the network that their
// handler's peer is at.
func aware() echo {
	return echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		p, _ := peer.FromContext(ctx)
		return &testpb.SimpleResponse{Username: p.Addr.Network()}, nil
	}}
}

// wantNetwork makes a call to an aware service, and checks that both sides say
// that it goes over network.
func wantNetwork(t *testing.T, client testpb.TestServiceClient, network string) {
	t.Helper()
	var server peer.Peer
	reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.Peer(&server))
	if err != nil {
		t.Error(err)
		return
	}
	if reply.Username != network || server.Addr.Network() != network {
		t.Errorf("for the server the call comes over %s, and for the client it goes over %s, want %s", reply.Username, server.Addr.Network(), network)
	}
}

// wantUnavailable makes a call that has to fail with a text that has hint in it.
func wantUnavailable(t *testing.T, client testpb.TestServiceClient, hint string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := <-invoke(ctx, client)
	wantCode(t, err, codes.Unavailable)
	if err == nil || !strings.Contains(err.Error(), hint) {
		t.Errorf("%v does not mention %q", err, hint)
	}
}

func TestACallOverSharedMemorySaysSo(t *testing.T) {
	hold(t)
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			var p, server peer.Peer
			var md metadata.MD
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, seen(&p, &md)), lis)
			wantCode(t, <-invoke(t.Context(), dial(t, lis.Target()), grpc.Peer(&server)), codes.OK)
			for side, p := range map[string]peer.Peer{"client": p, "server": server} {
				if who, ok := p.AuthInfo.(nearcall.UnixAuthInfo); !ok || who.PID != os.Getpid() || int(who.UID) != os.Getuid() {
					t.Errorf("the %s is %#v", side, p.AuthInfo)
				}
				if p.Addr.Network() != "shm" || p.LocalAddr.Network() != "shm" {
					t.Errorf("the %s is at %s, seen from %s", side, p.Addr.Network(), p.LocalAddr.Network())
				}
			}
			if path := strings.SplitN(lis.Target(), ":", 2)[1]; server.Addr.String() != path {
				t.Errorf("the server's address is %s, want %s", server.Addr, path)
			}
		})
	}
}

func TestEitherSideOfAUnixTargetMayKeepTheSocket(t *testing.T) {
	hold(t)
	stay := []nearcall.DialOption{nearcall.WithoutUpgrade()}
	wrapped := func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
		return struct{ net.Conn }{c}, err
	}
	itself := func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	}
	localCreds := local.NewCredentials()
	for name, test := range map[string]struct {
		server []nearcall.ServerOption
		client []nearcall.DialOption
		want   string
	}{
		"by default":                    {nil, nil, "shm"},
		"by the client":                 {nil, stay, "unix"},
		"by the server":                 {[]nearcall.ServerOption{nearcall.NoUpgrade()}, nil, "unix"},
		"by both":                       {[]nearcall.ServerOption{nearcall.NoUpgrade()}, stay, "unix"},
		"by a dialer that wraps it":     {nil, []nearcall.DialOption{nearcall.WithContextDialer(wrapped)}, "unix"},
		"not by a dialer of sockets":    {nil, []nearcall.DialOption{nearcall.WithContextDialer(itself)}, "shm"},
		"not by credentials without it": {[]nearcall.ServerOption{nearcall.Creds(localCreds)}, []nearcall.DialOption{nearcall.WithTransportCredentials(localCreds)}, "shm"},
	} {
		t.Run(name, func(t *testing.T) {
			lis := listen(t, targetFor(t, "unix+shm"))
			start(t, serve(t, aware(), test.server...), lis)
			client := dial(t, lis.Target(), test.client...)
			wantNetwork(t, client, test.want)
			testBidiStream(t.Context(), t, client)
		})
	}
}

func TestWhatIsEncryptedStaysASocket(t *testing.T) {
	hold(t)
	certs := newCertificates(t)
	server := nearcall.Creds(credentials.NewTLS(certs.server(nil)))
	client := []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))), nearcall.WithAuthority("localhost")}
	lis := listen(t, targetFor(t, "unix+shm"))
	start(t, serve(t, aware(), server), lis)
	wantNetwork(t, dial(t, lis.Target(), client...), "unix")

	insisting := listen(t, targetFor(t, "shm"))
	start(t, serve(t, aware(), server), insisting)
	wantUnavailable(t, dial(t, insisting.Target(), client...), "not a unix socket itself")
	unix := "unix:" + strings.TrimPrefix(insisting.Target(), "shm:")
	wantUnavailable(t, dial(t, unix, client...), "dial shm:")
}

// Anybody may connect to an abstract name.
func TestAbstractUnixSocketsStaySockets(t *testing.T) {
	hold(t)
	lis := listen(t, "unix-abstract:nearcall-test-"+filepath.Base(t.TempDir())+"-stays")
	start(t, serve(t, aware()), lis)
	wantNetwork(t, dial(t, lis.Target()), "unix")
}

// Options that keep sockets what they are do not concern shm targets.
func TestShmTargetsAreNothingButSharedMemory(t *testing.T) {
	hold(t)
	lis := listen(t, targetFor(t, "shm"))
	start(t, serve(t, aware(), nearcall.NoUpgrade()), lis)
	wantNetwork(t, dial(t, lis.Target(), nearcall.WithoutUpgrade()), "shm")
	// What a unix target's client offers is what the listener wants.
	unix := "unix:" + strings.TrimPrefix(lis.Target(), "shm:")
	wantNetwork(t, dial(t, unix), "shm")
	for range 20 { // whatever of the refusal comes first
		wantUnavailable(t, dial(t, unix, nearcall.WithoutUpgrade()), "dial shm:")
	}

	plain := listen(t, targetFor(t, "unix"))
	start(t, serve(t, aware(), nearcall.NoUpgrade()), plain)
	shm := "shm:" + strings.TrimPrefix(plain.Target(), "unix:")
	wantUnavailable(t, dial(t, shm), "shared memory cannot be used: the server declines")
	wantUnavailable(t, dial(t, shm, nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
		return struct{ net.Conn }{c}, err
	})), "not a unix socket itself")
	wantNetwork(t, dial(t, plain.Target()), "unix")
}

// An offer that is declined is made again, with backoff, as connections
// are: a server may come that takes it.
func TestAShmClientFindsAServerThatTakesItsOffer(t *testing.T) {
	hold(t)
	path := filepath.Join(t.TempDir(), "s")
	srv := serve(t, aware(), nearcall.NoUpgrade())
	start(t, srv, listen(t, "unix:"+path))
	client := dial(t, "shm:"+path, impatient())
	wantUnavailable(t, client, "the server declines")
	srv.Stop()
	start(t, serve(t, aware()), listen(t, "unix:"+path))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	wantCode(t, <-invoke(ctx, client, grpc.WaitForReady(true)), codes.OK)
	wantNetwork(t, client, "shm")
}

func TestAnOrdinaryGRPCServerAtAUnixSocket(t *testing.T) {
	hold(t)
	path := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	defer func() {
		srv.Stop()
		<-served
	}()
	for _, target := range []string{"unix:" + path, "shm:" + path} {
		wantUnavailable(t, dial(t, target), `"`+target+`: an ordinary gRPC server listens there; dial grpc:unix:`+path+`"`)
	}
}

// relay passes on bytes, and nothing else, between who connects to the path that
// it returns and a listener.
func relay(t *testing.T, to net.Addr) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "relay")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := lis.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", to.String())
			if err != nil {
				t.Errorf("the relay: %v", err)
				_ = near.Close()
				continue
			}
			pump := func(from, to net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.(*net.UnixConn).CloseWrite()
			}
			all.Go(func() {
				var both sync.WaitGroup
				both.Go(func() { pump(near, far) })
				both.Go(func() { pump(far, near) })
				both.Wait()
				_ = near.Close()
				_ = far.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		all.Wait()
	})
	return path
}

// Descriptors do not get through a relay.
func TestThroughARelayAConnectionStaysASocket(t *testing.T) {
	hold(t)
	lis := listen(t, targetFor(t, "unix+shm"))
	insisting := listen(t, targetFor(t, "shm"))
	path, far := relay(t, lis.Addr()), relay(t, insisting.Addr())
	start(t, serve(t, aware()), lis)
	start(t, serve(t, aware()), insisting)
	client := dial(t, "unix:"+path)
	wantNetwork(t, client, "unix")
	testServerStream(t.Context(), t, client)
	testClientStream(t.Context(), t, client)
	testBidiStream(t.Context(), t, client)
	wantUnavailable(t, dial(t, "shm:"+path), "shared memory cannot be used: 0 descriptors have come with the answer")
	wantUnavailable(t, dial(t, "unix:"+far), "dial shm:")
	wantUnavailable(t, dial(t, "shm:"+far), "0 descriptors have come with the answer")
	wantNetwork(t, dial(t, lis.Target()), "shm")
}

func TestCallsOfEachKindGoOverSharedMemory(t *testing.T) {
	hold(t)
	const size = 10 << 20
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, echo{}, nearcall.MaxRecvMsgSize(2*size)), lis)
			client := dial(t, lis.Target(), nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*size)))
			testServerStream(t.Context(), t, client)
			testClientStream(t.Context(), t, client)
			testBidiStream(t.Context(), t, client)

			large := message(1, 0, size, request)
			var server peer.Peer
			reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: large}, grpc.Peer(&server))
			if err != nil || server.Addr.Network() != "shm" {
				t.Fatal(server, err)
			}
			if err := check(reply.Payload, 1, 0, size, request); err != nil {
				t.Error(err)
			}
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 { // both directions at a time
				if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: message(2, i, size, request)}); err != nil {
					t.Fatal(err)
				}
				reply, err := s.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if err := check(reply.Payload, 2, i, size, request); err != nil {
					t.Error(err)
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Error(err)
			}
		})
	}
}

// Many calls at a time, of which some are large, and as many connections.
func TestManyCallsShareSharedMemory(t *testing.T) {
	hold(t)
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, echo{}), lis)
			var all sync.WaitGroup
			for range 4 {
				client := dial(t, lis.Target())
				for i := range 8 {
					all.Go(func() {
						for k := range 10 {
							tag, size := uint64(100*i+k), header+i*i*i*500 // half a ring, of the last
							reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: message(tag, k, size, request)})
							if err == nil {
								err = check(reply.Payload, tag, k, size, request)
							}
							if err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			all.Wait()
		})
	}
}

// refusesCalls waits until client's calls are refused, as a server stops.
func refusesCalls(t *testing.T, client testpb.TestServiceClient) {
	t.Helper()
	eventually(t, "new calls are refused", func() bool {
		_, err := client.EmptyCall(t.Context(), &testpb.Empty{}) // which the service does not have
		return status.Code(err) == codes.Unavailable
	})
}

func TestGracefulStopLetsCallsOverSharedMemoryEnd(t *testing.T) {
	hold(t)
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			e, running, release := waiting()
			lis := listen(t, targetFor(t, network))
			srv := serve(t, e)
			start(t, srv, lis)
			client := dial(t, lis.Target())
			call := invoke(t.Context(), client)
			<-running
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(1)}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			stopped := make(chan struct{})
			go func() {
				srv.GracefulStop()
				close(stopped)
			}()
			refusesCalls(t, client)
			select {
			case <-stopped:
				t.Error("GracefulStop did not wait")
			default:
			}
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(2)}); err != nil {
				t.Error(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Error(err)
			}
			_ = s.CloseSend()
			if _, err := s.Recv(); err != io.EOF {
				t.Error(err)
			}
			close(release)
			wantCode(t, <-call, codes.OK)
			<-stopped
		})
	}
}

func TestStopAndCloseEndCallsOverSharedMemory(t *testing.T) {
	hold(t)
	for name, test := range map[string]struct {
		end  func(*nearcall.Server, *nearcall.ClientConn)
		want codes.Code
	}{
		"Stop":  {func(s *nearcall.Server, _ *nearcall.ClientConn) { s.Stop() }, codes.Unavailable},
		"Close": {func(_ *nearcall.Server, c *nearcall.ClientConn) { _ = c.Close() }, codes.Canceled},
	} {
		for _, network := range overShm {
			t.Run(network+", "+name, func(t *testing.T) {
				ended := make(chan error, 2)
				e, running := doomed(ended)
				lis := listen(t, targetFor(t, network))
				srv := serve(t, e)
				start(t, srv, lis)
				conn, err := nearcall.NewClient(lis.Target())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				client := testpb.NewTestServiceClient(conn)
				call := invoke(t.Context(), client)
				s, err := client.FullDuplexCall(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				wantShm(t, running, 2)
				test.end(srv, conn)
				wantCode(t, <-call, test.want)
				_, err = s.Recv()
				wantCode(t, err, test.want)
				for range 2 {
					wantCancelled(t, ended, 10*time.Second)
				}
			})
		}
	}
}

// doomed is a service whose calls wait for the end of their contexts, which they
// pass on to ended. Each tells running what network its client comes over.
func doomed(ended chan<- error) (e echo, running chan string) {
	running = make(chan string, 100)
	wait := func(ctx context.Context) error {
		p, _ := peer.FromContext(ctx)
		running <- p.Addr.Network()
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	e.unary = func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return nil, wait(ctx)
	}
	e.bidi = func(s bidi) error { return wait(s.Context()) }
	return e, running
}

// wantShm waits for calls to a doomed service that come over shared memory.
func wantShm(t *testing.T, running <-chan string, calls int) {
	t.Helper()
	for range calls {
		select {
		case network := <-running:
			if network != "shm" {
				t.Errorf("a call comes over %s", network)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no call arrives")
		}
	}
}

// atOnce is how long the other side may take to learn of a process that is
// killed. The system tells: nothing has to be noticed by its absence.
const atOnce = time.Second

func TestAServerThatIsKilledEndsCallsOverSharedMemory(t *testing.T) {
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			server, err := spawn("TestServeInAProcess", serveTarget+"="+targetFor(t, network), serveService+"=waiting")
			if err != nil {
				t.Fatal(err)
			}
			conn, err := nearcall.NewClient(server.target)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			client := testpb.NewTestServiceClient(conn)
			unary := invoke(t.Context(), client)
			s := overSharedMemory(t, client)
			streamed := make(chan error, 1)
			go func() {
				_, err := s.Recv()
				streamed <- err
			}()
			if err := server.end(os.Kill); err != nil {
				t.Fatal(err)
			}
			gone := time.Now()
			for what, ended := range map[string]<-chan error{"the unary call": unary, "the stream": streamed} {
				select {
				case err := <-ended:
					wantCode(t, err, codes.Unavailable)
				case <-time.After(10 * time.Second):
					t.Errorf("%s goes on", what)
				}
			}
			if d := time.Since(gone); d > atOnce {
				t.Errorf("it took %v to tell", d)
			}
			eventually(t, "the connection is given up", func() bool { return conn.GetState() != connectivity.Ready })
		})
	}
}

func TestAClientThatIsKilledEndsHandlersOverSharedMemory(t *testing.T) {
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			ended := make(chan error, 3)
			e, running := doomed(ended)
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, e), lis)
			client, err := spawn("TestCallFromAProcess", callTarget+"="+lis.Target())
			if err != nil {
				t.Fatal(err)
			}
			wantShm(t, running, 2)
			if len(ended) > 0 {
				t.Error("a call ended before its client was killed")
			}
			if err := client.end(os.Kill); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				wantCancelled(t, ended, atOnce)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			next := invoke(ctx, dial(t, lis.Target()))
			wantShm(t, running, 1)
			cancel()
			wantCode(t, <-next, codes.Canceled)
		})
	}
}

// A connection that comes and goes leaves nothing: neither memory nor
// descriptors, of what was agreed on and of what was not.
func TestConnectionsOfSharedMemoryLeaveNothing(t *testing.T) {
	hold(t)
	for _, network := range overShm {
		lis := listen(t, targetFor(t, network))
		start(t, serve(t, aware()), lis)
		stays := listen(t, targetFor(t, "unix"))
		start(t, serve(t, aware(), nearcall.NoUpgrade()), stays)
		shm := "shm:" + strings.TrimPrefix(stays.Target(), "unix:")
		before := mappings(t)
		for range 30 {
			for target, want := range map[string]codes.Code{lis.Target(): codes.OK, stays.Target(): codes.OK, shm: codes.Unavailable} {
				conn, err := nearcall.NewClient(target)
				if err != nil {
					t.Fatal(err)
				}
				wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), want)
				_ = conn.Close()
			}
		}
		eventually(t, "all memory is given back", func() bool { return mappings(t) <= before })
	}
}

// mappings is how many pieces of memory are mapped that connections share.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:nearcall")
}

// TestWhatHasArrivedIsReceivedThoughTheConnectionHasEnded: large messages are in
// the server's memory until then.
func TestWhatHasArrivedIsReceivedThoughTheConnectionHasEnded(t *testing.T) {
	hold(t)
	for _, network := range append([]string{"unix"}, overShm...) {
		t.Run(network, func(t *testing.T) {
			const size = 40_000
			lis := listen(t, targetFor(t, network))
			srv := serve(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
				for range 2 {
					if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, size)}}); err != nil {
						return err
					}
				}
				return nil
			}})
			start(t, srv, lis)
			ended := make(connEnds, 1)
			client := dial(t, lis.Target(), over(network, nearcall.WithStatsHandler(ended))...)
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Header(); err != nil { // the handler runs
				t.Fatal(err)
			}
			srv.GracefulStop()
			<-ended
			for range 2 {
				m, err := s.Recv()
				if n := len(m.GetPayload().GetBody()); n != size || err != nil {
					t.Fatalf("%d bytes, %v", n, err)
				}
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("the stream ends with %v", err)
			}
		})
	}
}

// connEnds are told of connections that have ended.
type connEnds chan struct{}

func (connEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (connEnds) HandleRPC(context.Context, stats.RPCStats)                         {}
func (connEnds) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e connEnds) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, end := s.(*stats.ConnEnd); end {
		e <- struct{}{}
	}
}
