package metrics_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/metrics"
)

// figures are the figures of this process, flat.
func figures() map[string]int64 {
	all := make(map[string]int64)
	s := metrics.Read()
	for _, n := range s.GetSessions() {
		name := n.GetSide() + " " + n.GetPath()
		all[name+" open"], all[name+" opened"] = n.GetOpen(), int64(n.GetOpened())
	}
	for _, n := range s.GetNotNearer() {
		all[n.GetReason()] = int64(n.GetConnections())
	}
	all["reconnections"] = int64(s.GetReconnections())
	return all
}

// settled returns the figures once the sessions of other tests have ended.
func settled(t *testing.T) (all map[string]int64) {
	leak.Eventually(t, "no session is open", func() bool {
		all = figures()
		for name, n := range all {
			if n != 0 && strings.HasSuffix(name, " open") {
				return false
			}
		}
		return true
	})
	return all
}

// grew waits until figures have changed by this much since before, and others have not.
func grew(t *testing.T, when string, before map[string]int64, want map[string]int64) {
	t.Helper()
	got := make(map[string]int64)
	if !leak.Finally(t, when, func() bool {
		clear(got)
		for name, n := range figures() {
			if n != before[name] {
				got[name] = n - before[name]
			}
		}
		for name, n := range want {
			if got[name] != n {
				return false
			}
		}
		return len(got) == len(want)
	}) {
		t.Errorf("%s: the figures have changed by %v, want %v", when, got, want)
	}
}

// run serves lis with srv, and returns a function that stops both.
func run(t *testing.T, srv server, lis net.Listener) (stop func()) {
	orderspb.RegisterOrdersServer(srv, shop{})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	return func() {
		srv.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func listen(t *testing.T, target string) nearcall.Listener {
	t.Helper()
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

func place(t *testing.T, conn grpc.ClientConnInterface) {
	t.Helper()
	_, err := orderspb.NewOrdersClient(conn).Place(t.Context(), &orderspb.PlaceRequest{Item: "tea"}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
}

type closer interface {
	grpc.ClientConnInterface
	Close() error
}

// placeOver makes a call over a new connection, and returns it.
func placeOver(t *testing.T, target string, opts ...nearcall.DialOption) closer {
	t.Helper()
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	place(t, conn)
	return conn
}

// A web client makes a call over HTTP/1.1, or over HTTP/2 without TLS.
type web struct {
	grpc.ClientConnInterface
	http.Transport
}

func (w *web) Close() error {
	w.CloseIdleConnections()
	return nil
}

func placeOverHTTP(t *testing.T, lis nearcall.Listener, version2 bool) closer {
	w := new(web)
	w.Protocols = new(http.Protocols)
	w.Protocols.SetUnencryptedHTTP2(version2)
	w.Protocols.SetHTTP1(!version2)
	reply, err := (&http.Client{Transport: w}).Post("http://"+lis.Addr().String()+placed, "application/json", strings.NewReader(`{"item":"tea"}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, reply.Body) // otherwise the connection would be closed
	if err := reply.Body.Close(); err != nil || reply.StatusCode != http.StatusOK {
		t.Fatal(reply.Status, err)
	}
	return w
}

// Each path counts on both sides from the first call on until the connection has ended.
func TestSessionsAreCountedByPath(t *testing.T) {
	unix := func(t *testing.T) string { return "unix:" + filepath.Join(t.TempDir(), "s") }
	shm := func(t *testing.T) string {
		if runtime.GOOS != "linux" {
			t.Skip("shared memory needs Linux")
		}
		return unix(t)
	}
	tcp := func(*testing.T) string { return "tcp:127.0.0.1:0" }
	dial := func(opts ...nearcall.DialOption) func(*testing.T, nearcall.Listener) closer {
		return func(t *testing.T, lis nearcall.Listener) closer { return placeOver(t, lis.Target(), opts...) }
	}
	hostPort := func(opts ...nearcall.DialOption) func(*testing.T, nearcall.Listener) closer {
		return func(t *testing.T, lis nearcall.Listener) closer {
			return placeOver(t, lis.Addr().String(), append(opts, nearcall.WithTransportCredentials(insecure.NewCredentials()))...)
		}
	}
	ordinary := func(*testing.T) server { return grpc.NewServer() }
	for name, test := range map[string]struct {
		target  func(*testing.T) string
		options []nearcall.ServerOption
		server  func(*testing.T) server // nil for nearcall's
		dial    func(*testing.T, nearcall.Listener) closer
		client  string // path; "" if the client is not nearcall's
		serves  string // path; "" if the server is not nearcall's
		reasons map[string]int64
	}{
		"in process":    {target: func(*testing.T) string { return "inproc:metrics" }, dial: dial(), client: "inproc", serves: "inproc"},
		"shared memory": {target: shm, dial: dial(), client: "shm", serves: "shm"},
		"a unix socket, because of the client": {
			target: shm, dial: dial(nearcall.WithDisableSharedMemory()), client: "unix", serves: "unix", reasons: map[string]int64{"disabled": 1},
		},
		"a unix socket, because of the server": {
			target: shm, options: []nearcall.ServerOption{nearcall.DisableSharedMemory()}, dial: dial(),
			client: "unix", serves: "unix", reasons: map[string]int64{"disabled": 1, "declined": 1},
		},
		"a unix socket, because of the server's memory": {
			target: shm, options: []nearcall.ServerOption{nearcall.MaxSharedMemory(1000)}, dial: dial(),
			client: "unix", serves: "unix", reasons: map[string]int64{"no_memory": 1, "declined": 1},
		},
		"a unix socket, because of the client's memory": {
			target: shm, dial: dial(nearcall.WithMaxSharedMemory(1000)),
			client: "unix", serves: "unix", reasons: map[string]int64{"no_memory": 1, "declined": 1},
		},
		"TCP":                     {target: tcp, dial: dial(), client: "tcp", serves: "tcp"},
		"HOST:PORT":               {target: tcp, dial: hostPort(), client: "inproc", serves: "inproc"},
		"a WebSocket":             {target: func(*testing.T) string { return "ws://127.0.0.1:0/calls" }, dial: dial(), client: "ws", serves: "ws"},
		"an ordinary gRPC server": {target: tcp, server: ordinary, dial: dial(), client: "grpc", reasons: map[string]int64{"grpc_server": 1}},
		"an ordinary gRPC server at HOST:PORT": {
			target: tcp, server: ordinary, dial: hostPort(), client: "grpc", reasons: map[string]int64{"grpc_server": 1},
		},
		"an ordinary gRPC client": {target: tcp, serves: "grpc", dial: func(t *testing.T, lis nearcall.Listener) closer {
			conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			place(t, conn)
			return conn
		}},
		"a web client":             {target: tcp, serves: "http", dial: func(t *testing.T, lis nearcall.Listener) closer { return placeOverHTTP(t, lis, false) }},
		"a web client over HTTP/2": {target: tcp, serves: "http", dial: func(t *testing.T, lis nearcall.Listener) closer { return placeOverHTTP(t, lis, true) }},
		"a connection of the user": {target: tcp, client: "other", serves: "tcp", dial: dial(nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			return nameless{c}, err
		}))},
	} {
		t.Run(name, func(t *testing.T) {
			before := settled(t)
			lis := listen(t, test.target(t))
			var srv server = nearcall.NewServer(append(test.options, nearcall.OtherClients(nearcall.WebClients|nearcall.GRPCClients))...)
			if test.server != nil {
				srv = test.server(t)
			}
			stop := run(t, srv, lis)
			defer stop()
			conn := test.dial(t, lis)
			want := make(map[string]int64)
			for side, path := range map[string]string{"client ": test.client, "server ": test.serves} {
				if path != "" {
					want[side+path+" open"], want[side+path+" opened"] = 1, 1
				}
			}
			for reason, n := range test.reasons {
				want[reason] = n
			}
			grew(t, "while it is open", before, want)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			for name := range want {
				if strings.HasSuffix(name, " open") {
					delete(want, name)
				}
			}
			grew(t, "after it was closed", before, want)
		})
	}
}

// nameless is a connection whose addresses name no network.
type nameless struct{ net.Conn }

func (nameless) RemoteAddr() net.Addr { return namelessAddr{} }

type namelessAddr struct{}

func (namelessAddr) Network() string { return "" }
func (namelessAddr) String() string  { return "" }

// A client whose server is replaced connects again.
func TestReconnectionsAreCounted(t *testing.T) {
	for name, target := range map[string]func(lis nearcall.Listener) string{
		"tcp:HOST:PORT": nearcall.Listener.Target,
		"HOST:PORT":     func(lis nearcall.Listener) string { return lis.Addr().String() },
	} {
		t.Run(name, func(t *testing.T) {
			lis := listen(t, "tcp:127.0.0.1:0")
			// Without shared memory, and with an age, the connection stays TCP.
			aged := nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Hour})
			stop := run(t, nearcall.NewServer(nearcall.DisableSharedMemory(), aged), lis)
			conn, err := nearcall.NewClient(target(lis), nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}, MinConnectTimeout: 20 * time.Second}))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			before := figures()
			place(t, conn)
			if n := figures()["reconnections"] - before["reconnections"]; n != 0 {
				t.Errorf("the first connection counts as %d reconnections", n)
			}
			stop()
			stop = run(t, nearcall.NewServer(nearcall.DisableSharedMemory(), aged), listen(t, "tcp:"+lis.Addr().String()))
			defer func() { stop() }()
			place(t, conn)
			if n := figures()["reconnections"] - before["reconnections"]; n != 1 {
				t.Errorf("%d reconnections are counted", n)
			}
		})
	}
}

// A Calls is an expvar.Var: its text is JSON.
func TestTheTextIsJSON(t *testing.T) {
	calls := metrics.NewCalls()
	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shop{})
	calls.Register(srv)
	conn := srv.Client()
	defer conn.Close()
	place(t, conn)
	var shown struct {
		Methods  []struct{ Name string }
		Sessions []struct{ Path string }
	}
	for _, text := range []string{calls.String(), (*metrics.Calls)(nil).String()} {
		if err := json.Unmarshal([]byte(text), &shown); err != nil || len(shown.Sessions) == 0 {
			t.Errorf("%v in %s", err, text)
		}
	}
	if len(shown.Methods) != 1 || shown.Methods[0].Name != placed {
		t.Errorf("the methods are %v", shown.Methods)
	}
}
