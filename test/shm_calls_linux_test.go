//go:build linux

package test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// overShm lists the ways to set up shared memory.
var overShm = []string{"shm", "unix+shm"}

// doomed is a service whose calls wait until their context is done, and send its error
// to ended. Each call sends the network of its peer to running.
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

// wantShm waits for calls to a doomed service, which must use shared memory.
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

// atOnce is how soon a peer must notice that a process was killed. The system closes
// the socket, so no timeout is involved.
const atOnce = time.Second

// Connections leave neither memory nor descriptors behind, whether or not they became
// shared memory.
func TestConnectionsOfSharedMemoryLeaveNothing(t *testing.T) {
	hold(t)
	for _, network := range overShm {
		lis := listen(t, targetFor(t, network))
		start(t, serve(t, aware()), lis)
		stays := listen(t, targetFor(t, "unix"))
		start(t, serve(t, aware(), nearcall.DisableSharedMemory()), stays)
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
		leak.Eventually(t, "all memory is given back", func() bool { return mappings(t) <= before })
	}
}

// mappings returns how many shared-memory mappings this process has.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Error(err)
	}
	return strings.Count(string(maps), "memfd:nearcall")
}

// What has arrived is received as far as the client's bound goes, whatever else both sides had in their
// memory. The rest is lost with an error that names the bound.
func TestTheBoundSaysHowMuchIsReceivedAfterTheEnd(t *testing.T) {
	hold(t)
	const size = 1<<20 - 100
	for name, test := range map[string]struct {
		bound           int64
		calls, received int
		up              bool // a message of each call goes up first
	}{
		"there is room for one side's messages": {bound: least + 3<<20, calls: 3, received: 3, up: true},
		"there is room for messages alone":      {bound: 3*size - 1, calls: 3, received: 2},
		"there is room for none":                {bound: least, calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			noneOpen(t)
			sent := make(chan struct{})
			lis := listen(t, targetFor(t, "shm"))
			srv := serve(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
				<-sent
				if test.up {
					if _, err := s.Recv(); err != nil {
						return err
					}
				}
				return s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(size)})
			}})
			start(t, srv, lis)
			client := dial(t, lis.Target(), nearcall.WithMaxSharedMemory(test.bound))
			var all []grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
			for range test.calls {
				s, err := client.FullDuplexCall(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if test.up {
					if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(size)}); err != nil {
						t.Fatal(err)
					}
				}
				all = append(all, s)
			}
			close(sent)
			for _, s := range all {
				if _, err := s.Header(); err != nil {
					t.Fatal(err)
				}
			}
			srv.GracefulStop()
			becomes(t, "the connection has ended", func(s *metricspb.SharedMemory) bool { return s.Connections == 0 })
			received := 0
			for _, s := range all {
				m, err := s.Recv()
				if err == nil && len(m.GetPayload().GetBody()) == size {
					if _, err := s.Recv(); err != io.EOF {
						t.Errorf("the stream ends with %v", err)
					}
					received++
					continue
				}
				wantCode(t, err, codes.ResourceExhausted)
				if !strings.Contains(err.Error(), fmt.Sprintf("of the %d bytes that WithMaxSharedMemory allows", test.bound)) {
					t.Error(err)
				}
			}
			if received != test.received {
				t.Errorf("%d messages of %d are received, want %d", received, test.calls, test.received)
			}
			noneOpen(t)
		})
	}
}
