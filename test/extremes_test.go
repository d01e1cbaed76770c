package test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
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
		client := dial(t, target, slices.Concat(more, opts)...)
		return func(ctx context.Context) error {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(100_000)})
			return err
		}
	}
}

// ownFaces returns the faces for nearcall's clients.
func ownFaces() []face {
	all := []face{
		{"tcp", tcpTarget, byNearcall(nearcall.WithDisableSharedMemory())},
		{"ws", func(*testing.T) string { return "ws://127.0.0.1:0/calls" }, byNearcall()},
	}
	if needs.HasUnixSockets() {
		unix := func(t *testing.T) string { return "unix:" + filepath.Join(t.TempDir(), "s") }
		all = append(all, face{"unix", unix, byNearcall(nearcall.WithDisableSharedMemory())})
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
				_, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(100_000)})
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
			body, err := io.ReadAll(resp.Body)
			switch {
			case resp.StatusCode == http.StatusTooManyRequests:
				return status.Error(codes.ResourceExhausted, string(body))
			case err != nil || resp.StatusCode != http.StatusOK:
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
func exhausted(c codes.Code) bool   { return c == codes.ResourceExhausted }
func unavailable(c codes.Code) bool { return c == codes.Unavailable }

// TestDurationsOfServers: a duration that means never ends no connection, a tiny one ends connections
// early, and none does harm beyond that. An age that is negative is none; grpc-go panics.
func TestDurationsOfServers(t *testing.T) {
	options := func(d time.Duration, p keepalive.ServerParameters) []nearcall.ServerOption {
		return []nearcall.ServerOption{
			nearcall.KeepaliveParams(p), nearcall.ConnectionTimeout(math.MaxInt64),
			nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: d, PermitWithoutStream: d < 0}),
		}
	}
	ages := func(d time.Duration) []nearcall.ServerOption {
		return options(0, keepalive.ServerParameters{MaxConnectionIdle: d, MaxConnectionAge: d, MaxConnectionAgeGrace: d})
	}
	const longest = math.MaxInt64
	for name, c := range map[string]struct {
		opts []nearcall.ServerOption
		want func(codes.Code) bool // okOrGone if connections may end at once
	}{
		"never":              {ages(longest), ok},
		"almost never":       {ages(longest - 1), ok},
		"negative ages":      {ages(-1), ok},
		"very negative ages": {ages(math.MinInt64), ok},
		"1 ns idle":          {options(0, keepalive.ServerParameters{MaxConnectionIdle: 1}), okOrGone},
		"1 ns old":           {options(0, keepalive.ServerParameters{MaxConnectionAge: 1, MaxConnectionAgeGrace: longest}), okOrGone},
		"1 ns old, no grace": {options(0, keepalive.ServerParameters{MaxConnectionAge: 1, MaxConnectionAgeGrace: -1}), okOrGone},
		"no PINGs":           {options(longest, keepalive.ServerParameters{Time: longest, Timeout: longest}), ok},
		"PINGs after 1 ns":   {options(1, keepalive.ServerParameters{Time: 1, Timeout: longest}), ok},
		"PINGs before now":   {options(-1, keepalive.ServerParameters{Time: -1, Timeout: -1}), okOrGone},
	} {
		for _, f := range faces() {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				n := 2
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
	for _, d := range []time.Duration{math.MinInt64, 0, 1} {
		for _, f := range faces() {
			t.Run(fmt.Sprintf("%s/%v", f.name, d), func(t *testing.T) {
				t.Parallel()
				want := unavailable
				if d == 1 {
					want = okOrGone // some systems' clocks show less as nothing
				}
				allEnd(t, f, 1, want, []nearcall.ServerOption{nearcall.ConnectionTimeout(d)})
			})
		}
	}
}

// TestDurationsOfClients: calls succeed whatever the durations are.
func TestDurationsOfClients(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64} {
		backoffs := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: d, MaxDelay: d, Multiplier: 1.6, Jitter: 0.2}, MinConnectTimeout: max(d, time.Minute)}
		for _, f := range ownFaces() {
			t.Run(fmt.Sprintf("%s/%v", f.name, d), func(t *testing.T) {
				t.Parallel()
				allEnd(t, f, 2, ok, nil, nearcall.WithIdleTimeout(d), nearcall.WithConnectParams(backoffs),
					nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: d, Timeout: d, PermitWithoutStream: true}))
			})
		}
	}
}

// TestSizesOfServers: calls succeed whatever the limits are, but those of messages.
func TestSizesOfServers(t *testing.T) {
	for _, n := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt32, math.MaxInt64} {
		window, limit := int32(min(max(n, math.MinInt32), math.MaxInt32)), uint32(min(max(n, 0), math.MaxUint32))
		opts := []nearcall.ServerOption{nearcall.InitialWindowSize(window), nearcall.InitialConnWindowSize(window), nearcall.MaxConcurrentStreams(limit)}
		if n != 1 { // no header of gRPC is that small
			opts = append(opts, nearcall.MaxHeaderListSize(limit))
		}
		if n > 1 { // less has no room for a connection of shm:
			opts = append(opts, nearcall.MaxSharedMemory(n), nearcall.MaxRecvMsgSize(int(min(n, math.MaxInt))), nearcall.MaxSendMsgSize(int(min(n, math.MaxInt))))
		}
		for _, f := range faces() {
			t.Run(fmt.Sprintf("%s/%d", f.name, n), func(t *testing.T) {
				t.Parallel()
				allEnd(t, f, 1, ok, opts)
			})
		}
	}
	for name, opt := range map[string]nearcall.ServerOption{"MaxRecvMsgSize": nearcall.MaxRecvMsgSize(-1), "MaxSendMsgSize": nearcall.MaxSendMsgSize(math.MinInt)} {
		for _, f := range faces() {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				allEnd(t, f, 1, exhausted, []nearcall.ServerOption{opt})
			})
		}
	}
}

// TestSizesOfClients: the same for clients.
func TestSizesOfClients(t *testing.T) {
	for _, n := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt32, math.MaxInt64} {
		window, limit := int32(min(max(n, math.MinInt32), math.MaxInt32)), uint32(min(max(n, 0), math.MaxUint32))
		opts := []nearcall.DialOption{
			nearcall.WithInitialWindowSize(window), nearcall.WithInitialConnWindowSize(window), nearcall.WithMaxHeaderListSize(limit),
			nearcall.WithMaxCallAttempts(int(max(math.MinInt, min(n, math.MaxInt)))),
		}
		if n > 1 { // less has no room for a connection of shm:
			most := int(min(n, math.MaxInt))
			opts = append(opts, nearcall.WithMaxSharedMemory(n), nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)))
		}
		for _, f := range ownFaces() {
			t.Run(fmt.Sprintf("%s/%d", f.name, n), func(t *testing.T) {
				t.Parallel()
				allEnd(t, f, 1, ok, nil, opts...)
			})
		}
	}
}
