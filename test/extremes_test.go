package test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A face is a way to call a server. dial returns what makes calls over one client.
type face struct {
	name   string
	listen func(*testing.T) string // the target to listen on
	dial   func(t *testing.T, target string, opts ...nearcall.DialOption) func(context.Context) error
}

func tcpTarget(*testing.T) string { return "tcp:127.0.0.1:0" }

// byNearcall returns a dial that uses opts besides those that it is given.
func byNearcall(opts ...nearcall.DialOption) func(t *testing.T, target string, more ...nearcall.DialOption) func(context.Context) error {
	return func(t *testing.T, target string, more ...nearcall.DialOption) func(context.Context) error {
		client := dial(t, target, append(more, opts...)...)
		return func(ctx context.Context) error {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(1000)})
			return err
		}
	}
}

// ownFaces returns the faces for nearcall's clients.
func ownFaces() []face {
	all := []face{
		{"tcp", tcpTarget, byNearcall(nearcall.WithMaxSharedMemory(0))},
		{"ws", func(*testing.T) string { return "ws://127.0.0.1:0/calls" }, byNearcall()},
	}
	if needs.HasUnixSockets() {
		unix := func(t *testing.T) string { return "unix:" + filepath.Join(t.TempDir(), "s") }
		all = append(all, face{"unix", unix, byNearcall(nearcall.WithMaxSharedMemory(0))})
		if runtime.GOOS == "linux" {
			all = append(all, face{"unix+shm", unix, byNearcall()},
				face{"shm", func(t *testing.T) string { return "shm:" + filepath.Join(t.TempDir(), "s") }, byNearcall()})
		}
	}
	return all
}

// faces returns all faces of a server.
func faces() []face {
	return append(ownFaces(),
		face{"gRPC", tcpTarget, func(t *testing.T, target string, _ ...nearcall.DialOption) func(context.Context) error {
			conn, err := grpc.NewClient(strings.TrimPrefix(target, "tcp:"), grpc.WithTransportCredentials(insecureCreds()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return func(ctx context.Context) error {
				_, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(1000)})
				return err
			}
		}},
		face{"HTTP/1.1", tcpTarget, byHTTP((*http.Protocols).SetHTTP1)},
		face{"HTTP/2", tcpTarget, byHTTP((*http.Protocols).SetUnencryptedHTTP2)},
	)
}

func byHTTP(protocol func(*http.Protocols, bool)) func(*testing.T, string, ...nearcall.DialOption) func(context.Context) error {
	return func(t *testing.T, target string, _ ...nearcall.DialOption) func(context.Context) error {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		protocol(transport.Protocols, true)
		t.Cleanup(transport.CloseIdleConnections)
		return func(ctx context.Context) error {
			url := "http://" + strings.TrimPrefix(target, "tcp:") + "/grpc.testing.TestService/UnaryCall"
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			resp, err := transport.RoundTrip(r)
			if err != nil {
				return status.Error(codes.Unavailable, err.Error())
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				return status.Error(codes.Unavailable, fmt.Sprintf("%s: %s, %v", resp.Status, body, err))
			}
			return nil
		}
	}
}

// allEnd makes n calls over f by each of n clients, to a server with some options, and checks how each
// call ends.
func allEnd(t *testing.T, f face, n int, want func(codes.Code) bool, server []nearcall.ServerOption, client ...nearcall.DialOption) {
	t.Helper()
	lis := listen(t, f.listen(t))
	start(t, serve(t, echo{}, server...), lis)
	for range n {
		call := f.dial(t, lis.Target(), client...)
		for range n {
			if err := call(t.Context()); !want(status.Code(err)) {
				t.Errorf("%v", err)
			}
		}
	}
}

func ok(c codes.Code) bool          { return c == codes.OK }
func okOrGone(c codes.Code) bool    { return c == codes.OK || c == codes.Unavailable }
func unavailable(c codes.Code) bool { return c == codes.Unavailable }
func keeps(p keepalive.ServerParameters) []nearcall.ServerOption {
	return []nearcall.ServerOption{nearcall.KeepaliveParams(p)}
}

// TestDurationsOfServers: a duration that means never ends no connection, a tiny one ends connections
// early, and none does harm beyond that. An age that is negative is none; grpc-go panics.
func TestDurationsOfServers(t *testing.T) {
	const longest = math.MaxInt64
	for name, c := range map[string]struct {
		opts []nearcall.ServerOption
		want func(codes.Code) bool // okOrGone if connections may end at once
	}{
		"never":                {keeps(keepalive.ServerParameters{MaxConnectionIdle: longest, MaxConnectionAge: longest, MaxConnectionAgeGrace: longest, Time: longest, Timeout: longest}), ok},
		"almost never":         {keeps(keepalive.ServerParameters{MaxConnectionIdle: longest - 1, MaxConnectionAge: longest - 1, MaxConnectionAgeGrace: longest - 1, Time: longest - 1, Timeout: longest - 1}), ok},
		"negative ages":        {keeps(keepalive.ServerParameters{MaxConnectionIdle: -1, MaxConnectionAge: -1, MaxConnectionAgeGrace: -1}), ok},
		"very negative ages":   {keeps(keepalive.ServerParameters{MaxConnectionIdle: math.MinInt64, MaxConnectionAge: math.MinInt64, MaxConnectionAgeGrace: math.MinInt64}), ok},
		"1 ns idle":            {keeps(keepalive.ServerParameters{MaxConnectionIdle: 1}), okOrGone},
		"1 ns old":             {keeps(keepalive.ServerParameters{MaxConnectionAge: 1}), okOrGone},
		"1 ns old, no grace":   {keeps(keepalive.ServerParameters{MaxConnectionAge: 1, MaxConnectionAgeGrace: -1}), okOrGone},
		"1 ns old, long grace": {keeps(keepalive.ServerParameters{MaxConnectionAge: 1, MaxConnectionAgeGrace: longest}), okOrGone},
		"PINGs after 1 ns":     {keeps(keepalive.ServerParameters{Time: 1, Timeout: longest}), ok},
		"PINGs before now":     {keeps(keepalive.ServerParameters{Time: -1, Timeout: -1}), okOrGone},
		"no PINGs are allowed": {[]nearcall.ServerOption{nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: longest})}, ok},
		"all PINGs are":        {[]nearcall.ServerOption{nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: math.MinInt64, PermitWithoutStream: true})}, ok},
		"any time to connect":  {[]nearcall.ServerOption{nearcall.ConnectionTimeout(longest)}, ok},
	} {
		for _, f := range faces() {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				n := 3
				if c.want(codes.Unavailable) {
					n = 1 // clients back off
				}
				allEnd(t, f, n, c.want, c.opts)
			})
		}
	}
}

// As in grpc-go, no connection succeeds if a server gives it no time.
func TestNoTimeToConnect(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -1, 0, 1} {
		for _, f := range faces() {
			t.Run(fmt.Sprint(f.name, d), func(t *testing.T) {
				t.Parallel()
				allEnd(t, f, 1, unavailable, []nearcall.ServerOption{nearcall.ConnectionTimeout(d)})
			})
		}
	}
}

// TestDurationsOfClients: calls succeed whatever the durations are.
func TestDurationsOfClients(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64} {
		for name, opt := range map[string]nearcall.DialOption{
			"idle timeout":      nearcall.WithIdleTimeout(d),
			"keepalive":         nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: d, Timeout: d, PermitWithoutStream: true}),
			"keepalive timeout": nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: math.MaxInt64, Timeout: d}),
			"backoff":           nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: d, MaxDelay: d, Multiplier: 1.6, Jitter: 0.2}, MinConnectTimeout: max(d, time.Minute)}),
		} {
			for _, f := range ownFaces() {
				t.Run(fmt.Sprintf("%s/%v/%s", f.name, d, name), func(t *testing.T) {
					t.Parallel()
					allEnd(t, f, 2, ok, nil, opt)
				})
			}
		}
	}
}
