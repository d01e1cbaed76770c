//go:build linux

package test

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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/local"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
)

// aware is a service whose unary calls return the network of the handler's peer.
func aware() echo {
	return echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		p, _ := peer.FromContext(ctx)
		return &testpb.SimpleResponse{Username: p.Addr.Network()}, nil
	}}
}

// wantNetwork makes a call to an aware service and checks that both sides report
// network.
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

// wantUnavailable makes a call that must fail with Unavailable and a text that contains
// hint.
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
	stay := []nearcall.DialOption{nearcall.WithDisableSharedMemory()}
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
		"by the server":                 {[]nearcall.ServerOption{nearcall.DisableSharedMemory()}, nil, "unix"},
		"by both":                       {[]nearcall.ServerOption{nearcall.DisableSharedMemory()}, stay, "unix"},
		"by a dialer that wraps it":     {nil, []nearcall.DialOption{nearcall.WithContextDialer(wrapped)}, "unix"},
		"not by a dialer of sockets":    {nil, []nearcall.DialOption{nearcall.WithContextDialer(itself)}, "shm"},
		"not by credentials without it": {[]nearcall.ServerOption{nearcall.Creds(localCreds)}, []nearcall.DialOption{nearcall.WithTransportCredentials(localCreds)}, "shm"},
	} {
		t.Run(name, func(t *testing.T) {
			lis := listen(t, targetFor(t, "unix+shm"))
			start(t, serve(t, aware(), test.server...), lis)
			client := dial(t, lis.Target(), test.client...)
			wantNetwork(t, client, test.want)
			if err := callAll(t.Context(), client); err != nil {
				t.Error(err)
			}
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

// Every user can connect to an abstract socket.
func TestAbstractUnixSocketsStaySockets(t *testing.T) {
	hold(t)
	lis := listen(t, "unix-abstract:nearcall-test-"+filepath.Base(t.TempDir())+"-stays")
	start(t, serve(t, aware()), lis)
	wantNetwork(t, dial(t, lis.Target()), "unix")
}

// A limit of 0 has no effect on shm targets.
func TestShmTargetsAreNothingButSharedMemory(t *testing.T) {
	hold(t)
	lis := listen(t, targetFor(t, "shm"))
	start(t, serve(t, aware(), nearcall.DisableSharedMemory()), lis)
	wantNetwork(t, dial(t, lis.Target(), nearcall.WithDisableSharedMemory()), "shm")
	// A unix target's client offers the upgrade that the listener requires.
	unix := "unix:" + strings.TrimPrefix(lis.Target(), "shm:")
	wantNetwork(t, dial(t, unix), "shm")
	for range 20 { // the refusal can reach the client in different ways
		wantUnavailable(t, dial(t, unix, nearcall.WithDisableSharedMemory()), "dial shm:")
	}

	plain := listen(t, targetFor(t, "unix"))
	start(t, serve(t, aware(), nearcall.DisableSharedMemory()), plain)
	shm := "shm:" + strings.TrimPrefix(plain.Target(), "unix:")
	wantUnavailable(t, dial(t, shm), "shared memory cannot be used: the server declines")
	wantUnavailable(t, dial(t, shm, nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
		return struct{ net.Conn }{c}, err
	})), "not a unix socket itself")
	wantNetwork(t, dial(t, plain.Target()), "unix")
}

// A declined offer is repeated, with backoff, like a failed connection attempt: another
// server might accept it.
func TestAShmClientFindsAServerThatTakesItsOffer(t *testing.T) {
	hold(t)
	path := filepath.Join(t.TempDir(), "s")
	srv := serve(t, aware(), nearcall.DisableSharedMemory())
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
	startGRPC(t, lis, echo{})
	wantCode(t, <-invoke(t.Context(), dial(t, "unix:"+path)), codes.OK)
	wantUnavailable(t, dial(t, "shm:"+path), `"shm:`+path+`: an ordinary gRPC server listens there; dial grpc:unix:`+path+`"`)
}

// relay forwards bytes, but no descriptors, between a path and a listener. Once that is closed, it
// closes the connections that it accepts.
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
			if err != nil { // a client that has left can still be in the queue when the server is gone
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

// Descriptors do not pass through a relay.
func TestThroughARelayAConnectionStaysASocket(t *testing.T) {
	hold(t)
	lis := listen(t, targetFor(t, "unix+shm"))
	insisting := listen(t, targetFor(t, "shm"))
	path, far := relay(t, lis.Addr()), relay(t, insisting.Addr())
	start(t, serve(t, aware()), lis)
	start(t, serve(t, aware()), insisting)
	client := dial(t, "unix:"+path)
	wantNetwork(t, client, "unix")
	if err := callAll(t.Context(), client); err != nil {
		t.Error(err)
	}
	wantUnavailable(t, dial(t, "shm:"+path), "shared memory cannot be used: 0 descriptors have come with the answer")
	wantUnavailable(t, dial(t, "unix:"+far), "dial shm:")
	wantUnavailable(t, dial(t, "shm:"+far), "0 descriptors have come with the answer")
	wantNetwork(t, dial(t, lis.Target()), "shm")
}
