package test

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestTargetsOfSockets(t *testing.T) {
	targets := map[string]string{ // the calls' authority; "" for the target's address
		"tcp:127.0.0.1:0":      "",
		"tcp:localhost:0":      "",
		"tcp::0":               "",
		"unix:relative":        "localhost",
		"unix:DIR/absolute":    "localhost",
		"unix://DIR/with-host": "localhost",
	}
	if runtime.GOOS == "linux" {
		targets["unix-abstract:nearcall-testDIR"] = "localhost"
		targets["shm:shared"] = "localhost"
		targets["shm:DIR/absolute-shared"] = "localhost"
	}
	for target, authority := range targets {
		t.Run(target, func(t *testing.T) {
			if !strings.HasPrefix(target, "tcp:") {
				needs.UnixSockets(t)
				dir := t.TempDir()
				t.Chdir(dir)
				target = strings.Replace(target, "DIR", dir, 1)
			}
			var p peer.Peer
			var md metadata.MD
			lis := listen(t, target)
			start(t, serve(t, seen(&p, &md)), lis)
			if strings.HasSuffix(lis.Target(), ":0") || strings.HasPrefix(lis.Target(), "tcp::") {
				t.Errorf("the listener's target is %s", lis.Target())
			}
			if authority == "" {
				authority = strings.TrimPrefix(lis.Target(), "tcp:")
			}
			client := dial(t, lis.Target(), nearcall.WithDisableSharedMemory())
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			if got := md[":authority"]; len(got) != 1 || got[0] != authority {
				t.Errorf("the authority is %q, want %q", got, authority)
			}
			secure := credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity) == nil
			if tcp := strings.HasPrefix(target, "tcp"); tcp == secure {
				t.Errorf("the connection is private: %t (%#v)", secure, p.AuthInfo)
			}
			if err := callAll(t.Context(), client); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnyListenerIsServed(t *testing.T) {
	certs := newCertificates(t)
	inner := listenTCP(t)
	buffer := bufconn.Listen(1 << 16)
	fd := listenTCP(t)
	for name, test := range map[string]struct {
		lis    net.Listener
		target string
		opts   []nearcall.DialOption
	}{
		"TCP": {fd, "tcp:" + fd.Addr().String(), nil},
		"bufconn": {buffer, "tcp:bufconn:0", []nearcall.DialOption{
			nearcall.WithTransportCredentials(insecure.NewCredentials()),
			nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return buffer.DialContext(ctx) }),
		}},
		"TLS": {tls.NewListener(inner, certs.server(nil)), "tcp:" + inner.Addr().String(), []nearcall.DialOption{
			nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var p peer.Peer
			var md metadata.MD
			start(t, serve(t, seen(&p, &md)), test.lis)
			wantCode(t, <-invoke(t.Context(), dial(t, test.target, test.opts...)), codes.OK)
			if _, isTLS := p.AuthInfo.(credentials.TLSInfo); isTLS != (name == "TLS") {
				t.Errorf("the handler sees %#v", p.AuthInfo)
			}
		})
	}
}

func TestOptionsOfTheNetworkReachTheConnection(t *testing.T) {
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}, nearcall.MaxHeaderListSize(1), nearcall.InitialWindowSize(1<<20), nearcall.InitialConnWindowSize(1<<21)), lis)
	client := dial(t, lis.Target(), nearcall.WithInitialWindowSize(1<<20), nearcall.WithInitialConnWindowSize(1<<21), nearcall.WithMaxHeaderListSize(1<<20))
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "long", strings.Repeat("x", 32<<10))
	wantCode(t, <-invoke(ctx, client), codes.Internal)
}

// A caller beyond MaxConcurrentStreams waits, and its handler does not run if it gives up.
func TestMaxConcurrentStreamsHoldsCallersBack(t *testing.T) {
	for name, c := range map[string]struct {
		opts        []nearcall.ServerOption
		calls, want int
		inProcess   bool
	}{
		"two":             {[]nearcall.ServerOption{nearcall.MaxConcurrentStreams(2)}, 5, 2, false},
		"two, in process": {[]nearcall.ServerOption{nearcall.MaxConcurrentStreams(2)}, 5, 2, true},
		"no limit":        {[]nearcall.ServerOption{nearcall.MaxConcurrentStreams(0)}, 1100, 1100, false},
		"by default":      {nil, 1100, 1000, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var running atomic.Int32
				release := make(chan struct{})
				srv := serve(t, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					running.Add(1)
					<-release
					return &testpb.SimpleResponse{}, nil
				}}, c.opts...)
				client, _ := connect(t, srv)
				if !c.inProcess {
					lis := bufconn.Listen(1 << 16)
					start(t, srv, lis)
					client = dial(t, "unix:bufconn", nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
				}
				var calls []<-chan error
				for range c.calls {
					calls = append(calls, invoke(t.Context(), client))
				}
				synctest.Wait()
				if n := int(running.Load()); n != c.want {
					t.Errorf("%d calls run at a time, want %d", n, c.want)
				}
				if c.want < c.calls {
					short, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					wantCode(t, <-invoke(short, client), codes.DeadlineExceeded)
				}
				close(release)
				for _, c := range calls {
					wantCode(t, <-c, codes.OK)
				}
				if n := int(running.Load()); n != c.calls {
					t.Errorf("%d handlers ran, want %d: one that gave up must not", n, c.calls)
				}
			})
		})
	}
}

func TestDialersAreGivenWhatGRPCGivesThem(t *testing.T) {
	refuse := errors.New("refused by the test")
	for target, grpcs := range map[string]string{ // the equivalent target for grpc-go
		"unix:///abs/s":   "unix:///abs/s",
		"unix:rel":        "unix:rel",
		"tcp:localhost:7": "passthrough:localhost:7",
		"unix:" + filepath.Join(os.TempDir(), "s"): "unix:" + filepath.Join(os.TempDir(), "s"),
	} {
		given := func(dial func(func(context.Context, string) (net.Conn, error)) grpc.ClientConnInterface) (address string, err error) {
			got := make(chan string, 1)
			conn := dial(func(_ context.Context, address string) (net.Conn, error) {
				select {
				case got <- address:
				default:
				}
				return nil, refuse
			})
			err = <-invoke(t.Context(), testpb.NewTestServiceClient(conn))
			return <-got, err
		}
		want, _ := given(func(d func(context.Context, string) (net.Conn, error)) grpc.ClientConnInterface {
			conn, err := grpc.NewClient(grpcs, grpc.WithContextDialer(d), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		})
		address, err := given(func(d func(context.Context, string) (net.Conn, error)) grpc.ClientConnInterface {
			conn, err := nearcall.NewClient(target, nearcall.WithContextDialer(d))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		})
		wantCode(t, err, codes.Unavailable)
		if address != want || !strings.Contains(err.Error(), refuse.Error()) {
			t.Errorf("%s: the dialer got %q, and grpc-go's %q; the error is %v", target, address, want, err)
		}
	}
	_, err := nearcall.NewClient("tcp:host:1", nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, nil }))
	if err == nil || !strings.Contains(err.Error(), "transport security") {
		t.Errorf("a dialer without credentials: %v", err)
	}
}

// A server controls who can connect to its socket file.
func TestSocketFilesHaveAModeAndAnOwner(t *testing.T) {
	if runtime.GOOS == "windows" {
		_, err := nearcall.Listen(targetFor(t, "unix"), nearcall.SocketFile(0o600, -1, -1))
		if err == nil || !strings.Contains(err.Error(), "leave the options out") {
			t.Errorf("the error is %v", err)
		}
		return
	}
	for _, network := range networks("unix") {
		target := targetFor(t, network)
		lis, err := nearcall.Listen(target, nearcall.SocketFile(0o620, -1, os.Getgid()))
		if err != nil {
			t.Fatal(err)
		}
		srv := serve(t, echo{})
		start(t, srv, lis)
		_, path, _ := strings.Cut(target, ":")
		if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o620 {
			t.Errorf("%s: the file is %v, %v", target, info, err)
		}
		wantCode(t, <-invoke(t.Context(), dial(t, lis.Target(), over(network)...)), codes.OK)
		srv.Stop()
	}
	targets := []string{"tcp:127.0.0.1:0", "inproc:file-mode"}
	if runtime.GOOS == "linux" {
		targets = append(targets, "unix-abstract:nearcall-file-mode")
	}
	for _, target := range targets {
		for _, o := range []nearcall.ListenOption{nearcall.SocketFile(0o600, -1, -1), nearcall.SocketFile(0o600, 0, 0), nearcall.TakeOver()} {
			lis, err := nearcall.Listen(target, o)
			if err == nil {
				_ = lis.Close()
			}
			if want := "only for unix:PATH and shm:PATH, which have a socket file; leave it out"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error is %v, want %q", target, err, want)
			}
		}
	}
	_, err := nearcall.Listen(targetFor(t, "unix"), nearcall.SocketFile(0o600|fs.ModeSetuid, -1, -1))
	if err == nil || !strings.Contains(err.Error(), "permission bits only, as in 0660, got urw-------") {
		t.Errorf("the error is %v", err)
	}
}

// A client with a relative path connects to the same file whatever the working directory is
// when it connects again.
func TestARelativePathIsThatOfTheClientsBegin(t *testing.T) {
	needs.UnixSockets(t)
	for _, network := range append(networks("unix"), "fallback") {
		t.Run(network, func(t *testing.T) {
			scheme, opts := "unix:", over(network)
			if network == "shm" {
				scheme = "shm:"
			}
			t.Chdir(t.TempDir())
			if err := os.MkdirAll("deep/real", 0o700); err != nil {
				t.Fatal(err)
			}
			path := "./s"
			if os.Symlink("deep/real", "link") == nil {
				path = "link/../s" // in deep
			}
			var lis net.Listener
			if network == "fallback" {
				var err error
				if lis, err = net.Listen("unix", path); err != nil {
					t.Fatal(err)
				}
				startGRPC(t, lis, echo{})
			} else {
				lis = listen(t, scheme+path)
				start(t, serve(t, echo{}), lis)
			}
			client := dial(t, scheme+path, opts...)
			t.Chdir(t.TempDir())
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
		})
	}
}
