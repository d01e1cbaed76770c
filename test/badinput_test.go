package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

func TestMalformedTargetsAreErrorsThatSayWhatToWrite(t *testing.T) {
	for target, hint := range map[string]string{
		"":                 "empty",
		"inproc:":          "inproc:NAME",
		"inproc://name":    "inproc:NAME",
		"inproc: name":     "inproc:NAME",
		"grpc:":            "grpc:TARGET",
		"tcp:":             "tcp:HOST:PORT",
		"tcp:host":         "tcp:HOST:PORT",
		"tcp:host:":        "port is missing",
		"tcp:host:65536":   "no port 65536",
		"tcp::80":          "host is missing",
		"tcp://host:80":    "tcp:HOST:PORT",
		"tcp:::1:80":       "tcp:[::1]:50051",
		"tcp:[host]:x:1":   "tcp:HOST:PORT",
		"tcp:host:1":       "transport security",
		"unix:":            "unix:PATH",
		"unix://":          "unix:PATH",
		"unix://host/path": "no host",
		"unix:/tmp/":       "names no file",
		"unix:@name":       "unix-abstract:name",
		"unix-abstract:":   "unix-abstract:NAME",
		"shm:":             "shm:",
		"shm:/tmp/":        "shm:",
		"shm:@name":        "shm:",
		"INPROC:":          "inproc:NAME",
		"ws://host/path":   "transport security",
		"quic:host:1":      `add import _ "github.com/nearcall/nearcall/quic"`,
		"grpc:no-security": "transport security",

		"unix:" + strings.Repeat("x", 200): "no more than",
	} {
		conn, err := nearcall.NewClient(target)
		if err == nil {
			_ = conn.Close()
			t.Errorf("NewClient(%q) did not fail", target)
		} else if !strings.Contains(err.Error(), hint) {
			t.Errorf("NewClient(%q): %q does not mention %q", target, err, hint)
		}
	}
	for _, target := range []string{"", "inproc:", "grpc:host", "localhost:1", "tcp:host", "tcp:203.0.113.1:1", "unix:", "unix:/nowhere/at/all", "shm:/nowhere/at/all"} {
		if lis, err := nearcall.Listen(target); err == nil {
			_ = lis.Close()
			t.Errorf("Listen(%q) did not fail", target)
		}
	}
}

// A target that Listen rejects is usually incomplete or misspelt.
func TestListenAsksWhetherAnotherTargetWasMeant(t *testing.T) {
	const all = "write inproc:NAME, shm:PATH, unix:PATH, unix-abstract:NAME, tcp:HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH"
	for target, hint := range map[string]string{
		":50051":          `did you mean "tcp::50051"?`,
		"50051":           `did you mean "tcp::50051"?`,
		"localhost:50051": `did you mean "tcp:localhost:50051"?`,
		"[::1]:50051":     `did you mean "tcp:[::1]:50051"?`,
		"tpc::50051":      `did you mean "tcp::50051"?`,
		"tcp4:a:1":        `did you mean "tcp:a:1"?`,
		"tpc:x":           `did you mean tcp:HOST:PORT?`,
		"/run/orders":     `did you mean "unix:/run/orders"?`,
		"unxi:/run/o":     `did you mean "unix:/run/o"?`,
		"uds:/run/o":      `did you mean "unix:/run/o"?`,
		"orders":          `did you mean "inproc:orders"?`,
		"mem:orders":      `did you mean "inproc:orders"?`,
		"Inporc:orders":   `did you mean "inproc:orders"?`,
		"dns:///a:1":      all,
		"http://a:1":      all,
		"grpcs://a":       all,
		"grpc:orders":     all,
	} {
		lis, err := nearcall.Listen(target)
		if err == nil {
			_ = lis.Close()
			t.Errorf("Listen(%q) did not fail", target)
		} else if want := fmt.Sprintf("nearcall: cannot listen on %q: %s", target, hint); err.Error() != want {
			t.Errorf("the error is %v\nwant %s", err, want)
		}
	}
}

// A client's target that is not nearcall's goes to grpc-go, which might know it. The
// error suggests another target only if grpc-go cannot connect.
func TestErrorsOfGRPCAskWhetherATargetOfNearcallWasMeant(t *testing.T) {
	for target, hint := range map[string]string{
		"mem:orders":   `; did you mean "inproc:orders"?`,
		"tpc:host:x":   `; did you mean "tcp:host:x"?`,
		"unxi:///nope": `; did you mean "unix:///nope"?`,
		"mem:1":        "",
		"host:1":       "",
		"unrelated:x":  "",
	} {
		fails := nearcall.WithGRPCDialOptions(grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("out of reach")
		}))
		client := dial(t, "grpc:passthrough:///"+target, fails, nearcall.WithTransportCredentials(insecure.NewCredentials()))
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if wantCode(t, err, codes.Unavailable); strings.Contains(err.Error(), "did you mean") {
			t.Errorf("passthrough:///%s: %v", target, err)
		}
		resolver.SetDefaultScheme("passthrough")
		client = dial(t, target, fails, nearcall.WithTransportCredentials(insecure.NewCredentials()))
		resolver.SetDefaultScheme("dns")
		_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if wantCode(t, err, codes.Unavailable); !strings.HasSuffix(err.Error(), "out of reach\""+hint) {
			t.Errorf("%s: %v, want %q at the end", target, err, hint)
		}
		_, err = client.FullDuplexCall(t.Context())
		if wantCode(t, err, codes.Unavailable); !strings.HasSuffix(err.Error(), "out of reach\""+hint) {
			t.Errorf("a stream to %s: %v, want %q at the end", target, err, hint)
		}

		// Without a connection error there is no hint.
		lis := bufconn.Listen(1 << 10)
		startGRPC(t, lis, echo{})
		resolver.SetDefaultScheme("passthrough")
		reaches := nearcall.WithGRPCDialOptions(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		client = dial(t, target, reaches, nearcall.WithTransportCredentials(insecure.NewCredentials()))
		resolver.SetDefaultScheme("dns")
		_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		wantCode(t, err, codes.OK)
	}
}

func TestSchemesAreReadInAnyCase(t *testing.T) {
	lis := listen(t, "INPROC:Any")
	start(t, serve(t, echo{}), lis)
	for _, target := range []string{lis.Target(), "inproc:Any", "InProc:Any"} {
		wantCode(t, <-invoke(t.Context(), dial(t, target)), codes.OK)
	}
	wantCode(t, <-invoke(t.Context(), dial(t, "inproc:any")), codes.Unavailable) // names are case-sensitive
}

// The connection of Server.Client has no target, so the error must not mention one.
func TestAStoppedServersOwnClientSaysThatItIsStopped(t *testing.T) {
	srv := serve(t, echo{})
	client, _ := connect(t, srv)
	srv.Stop()
	err := <-invoke(t.Context(), client)
	if wantCode(t, err, codes.Unavailable); err == nil || strings.Contains(err.Error(), "inproc") || !strings.Contains(err.Error(), "the server is stopped") {
		t.Errorf("the error is %v", err)
	}
}

// mustPanic returns what f panics with, as text.
func mustPanic(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		t.Helper()
		r := recover()
		if r == nil {
			t.Error("no panic")
			return
		}
		text, _ = r.(string)
	}()
	f()
	return ""
}

func TestRegistrationMistakesPanic(t *testing.T) {
	srv := serve(t, echo{})
	register := func() { testpb.RegisterTestServiceServer(srv, echo{}) }
	if text := mustPanic(t, register); !strings.Contains(text, "duplicate") {
		t.Errorf("registered twice: %q", text)
	}
	wrong := func() { srv.RegisterService(&testpb.UnimplementedService_ServiceDesc, "a string") }
	if text := mustPanic(t, wrong); !strings.Contains(text, "does not satisfy") {
		t.Errorf("wrong type: %q", text)
	}
	client, _ := connect(t, srv)
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	late := func() {
		srv.RegisterService(&testpb.UnimplementedService_ServiceDesc, testpb.UnimplementedUnimplementedServiceServer{})
	}
	if text := mustPanic(t, late); !strings.Contains(text, "after the first") {
		t.Errorf("after the first call: %q", text)
	}
}

func TestServeRefusesWhatItCannotServe(t *testing.T) {
	srv := serve(t, echo{})
	if err := srv.Serve(nil); err == nil {
		t.Error("a nil listener was served")
	}
	closed := listenTCP(t)
	_ = closed.Close()
	if err := srv.Serve(closed); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed TCP listener: %v", err)
	}
	named, err := nearcall.Listen("inproc:refusing")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := named.Accept(); err == nil || !strings.Contains(err.Error(), "Server.Serve") {
		t.Errorf("Accept of an inproc listener: %v", err)
	}
	srv.Stop()
	if err := srv.Serve(named); !errors.Is(err, grpc.ErrServerStopped) {
		t.Errorf("Serve after Stop: %v, want %v", err, grpc.ErrServerStopped)
	}
}

func TestNilContextsAndConnectionsAreErrors(t *testing.T) {
	_, conn := connect(t, serve(t, echo{}))
	var none context.Context
	const method = "/grpc.testing.TestService/UnaryCall"
	wantCode(t, conn.Invoke(none, method, &testpb.SimpleRequest{}, &testpb.SimpleResponse{}), codes.Internal)
	_, err := conn.NewStream(none, &grpc.StreamDesc{}, method)
	wantCode(t, err, codes.Internal)
	_, err = conn.NewStream(t.Context(), nil, method)
	wantCode(t, err, codes.Internal)

	var nobody *nearcall.ClientConn
	wantCode(t, nobody.Invoke(t.Context(), method, &testpb.SimpleRequest{}, &testpb.SimpleResponse{}), codes.Internal)
	_, err = nobody.NewStream(t.Context(), &grpc.StreamDesc{}, method)
	wantCode(t, err, codes.Internal)
}

func TestServiceConfigsThatCannotBeHonoured(t *testing.T) {
	for _, config := range []string{
		`{`,
		`{"methodConfig":[{"name":[{"service":"s"}],"timeout":"soon"}]}`,
		`{"methodConfig":[{"name":[{"method":"m"}]}]}`,
		`{"methodConfig":[{"name":[{"service":"s"},{"service":"s"}]}]}`,
		`{"methodConfig":[{"name":[{"service":"s"}],"retryPolicy":{"maxAttempts":2}}]}`,
	} {
		if _, err := nearcall.NewClient("inproc:x", nearcall.WithDefaultServiceConfig(config)); err == nil {
			t.Errorf("NewClient took %s", config)
		}
		client, _ := connect(t, serve(t, echo{}), nearcall.WithDefaultServiceConfig(config))
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "service config") {
			t.Errorf("Server.Client with %s: %v", config, err)
		}
		_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.WaitForReady(true))
		wantCode(t, err, codes.Unavailable) // waiting could not help
	}
}
