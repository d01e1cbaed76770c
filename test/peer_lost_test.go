package test

import (
	"context"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
)

// untilTold is the time within which a caller or a handler must learn that its peer was killed: the
// system closes the connection at once. Wine sometimes keeps the connections of a killed process
// open, which ss shows to be its server's, and then keepalive is what ends the calls.
func untilTold() time.Duration {
	if runtime.GOOS == "windows" {
		return 40 * time.Second
	}
	return 5 * time.Second
}

func TestAServerThatIsKilledInTheMiddleOfAStream(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			hold(t)
			begin := func(target string) *child.Process {
				p, err := child.Start("TestServeInAProcess", serveTarget+"="+target, serveService+"=echo")
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			server := begin(targetFor(t, network))
			keepalive := nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second})
			client := dial(t, server.Target, over(network, impatient(), keepalive)...)
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			if err := server.End(os.Kill); err != nil {
				t.Fatal(err)
			}
			_, err = s.Recv()
			wantCode(t, err, codes.Unavailable)
			wantCode(t, <-invoke(t.Context(), client), codes.Unavailable)
			if d := time.Since(killed); d > untilTold() {
				t.Errorf("it took %v to tell", d)
			}
			again := begin(server.Target)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			wantCode(t, <-invoke(ctx, client, grpc.WaitForReady(true)), codes.OK)
			if err := again.End(os.Kill); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCallFromAProcess is a client that another test starts and kills.
func TestCallFromAProcess(t *testing.T) {
	target := os.Getenv(callTarget)
	if target == "" {
		t.Skip("only in a child process")
	}
	client := dial(t, target)
	s, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
		t.Fatal(err)
	}
	call := invoke(t.Context(), client)
	child.Serve(target)
	<-call
}

func TestAClientThatIsKilledInTheMiddleOfAStream(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			hold(t)
			ended := make(chan error, 1)
			lis := listenFor(t, network, echo{bidi: func(s bidi) error {
				for {
					if _, err := s.Recv(); err != nil {
						<-s.Context().Done()
						ended <- s.Context().Err()
						wantCode(t, err, codes.Canceled)
						return err
					}
				}
			}})
			client, err := child.Start("TestCallFromAProcess", callTarget+"="+lis.Target())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			if len(ended) > 0 {
				t.Error("the stream ended before its client was killed")
			}
			if err := client.End(os.Kill); err != nil {
				t.Fatal(err)
			}
			wantCancelled(t, ended, untilTold())
			goesOn(t, lis)
		})
	}
}

// wantCancelled checks that a handler's context ends with Canceled in time.
func wantCancelled(t *testing.T, ended <-chan error, within time.Duration) {
	t.Helper()
	select {
	case err := <-ended:
		if err != context.Canceled {
			t.Errorf("the handler's context: %v", err)
		}
	case <-time.After(within):
		t.Error("the handler goes on")
	}
}

// lossy is a connection that drops everything while lost is set.
type lossy struct {
	net.Conn
	lost *atomic.Bool
}

func (l lossy) Read(b []byte) (int, error) {
	for {
		n, err := l.Conn.Read(b)
		if err != nil || !l.lost.Load() {
			return n, err
		}
	}
}

func (l lossy) Write(b []byte) (int, error) {
	if l.lost.Load() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

// Clients ping at most every 10 s, so this runs in a bubble.
func TestAClientGivesANetworkUpThatSwallowsEverything(t *testing.T) {
	for name, c := range map[string]struct {
		keepalive keepalive.ClientParameters
		want      codes.Code
		least     time.Duration
		most      time.Duration
	}{
		"with keepalive":    {keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}, codes.Unavailable, 11 * time.Second, 21 * time.Second},
		"without keepalive": {keepalive.ClientParameters{}, codes.DeadlineExceeded, time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				start(t, serve(t, echo{}), lis)
				var lost atomic.Bool
				client := dial(t, "unix:bufconn", nearcall.WithKeepaliveParams(c.keepalive),
					nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						conn, err := lis.DialContext(ctx)
						return lossy{conn, &lost}, err
					}))
				wantCode(t, <-invoke(t.Context(), client), codes.OK)
				begin := time.Now()
				lost.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				wantCode(t, <-invoke(ctx, client), c.want)
				if d := time.Since(begin); d < c.least || d > c.most {
					t.Errorf("it took %v, want %v to %v", d, c.least, c.most)
				}
				lost.Store(false)
			})
		})
	}
}
