package main

import (
	"context"
	"sync"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// TestRivalsOfConnectUseTheirVersionOfHTTP also checks that callers keep their connections, and that
// one version has no streams both ways.
func TestRivalsOfConnectUseTheirVersionOfHTTP(t *testing.T) {
	const callers, calls = 8, 50
	for name, want := range map[string]string{"connect-http1": "HTTP/1.1", "connect-http2": "HTTP/2.0"} {
		if !selected(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			spy := spying{versions: map[string]bool{}, addresses: map[string]bool{}}
			rival := Rival{Name: name, Connect: func(Services) (Conn, error) {
				at, stop, err := stacks[name].serve("tcp", "127.0.0.1:0", &spy)
				if err != nil {
					return Conn{}, err
				}
				conn, err := stacks[name].dial("tcp", at, Row{Callers: callers})
				closeConn := conn.Close
				conn.Close = func() {
					closeConn()
					stop()
				}
				return conn, err
			}}
			f, err := Open(Row{Name: "empty", Kind: Empty, Callers: callers}, rival)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Run(callers * calls); err != nil {
				t.Error(err)
			}
			if len(spy.versions) != 1 || !spy.versions[want] {
				t.Errorf("versions are %v, want %s", spy.versions, want)
			}
			if n := len(spy.addresses); n > 2*callers { // some dial beside another, and take its connection
				t.Errorf("%d callers have made %d connections", callers, n)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			echo, err := Open(Row{Name: "echo", Kind: BidiEcho, Size: 32, Cancellable: true}, rival)
			if err != nil {
				t.Fatal(err)
			}
			if err, fails := echo.Check(), name == "connect-http1"; (err != nil) != fails {
				t.Errorf("an echo ends with %v", err)
			}
			_ = echo.Close()
		})
	}
}

// A spying service notes where calls come from.
type spying struct {
	service
	mu                  sync.Mutex
	versions, addresses map[string]bool
}

func (s *spying) EmptyCall(ctx context.Context, in *testpb.Empty) (*testpb.Empty, error) {
	over, _ := connecthttp.ServerInfoForContext(ctx)
	info, _ := connect.CallInfoForServerContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[over.RequestProto()] = true
	s.addresses[info.PeerAddr] = true
	return s.service.EmptyCall(ctx, in)
}
