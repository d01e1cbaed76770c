//go:build linux

package test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// overShm lists the ways to set up shared memory.
var overShm = []string{"shm", "unix+shm"}

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

			large := chaos.Message(1, 0, size, chaos.Request)
			var server peer.Peer
			reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: large}, grpc.Peer(&server))
			if err != nil || server.Addr.Network() != "shm" {
				t.Fatal(server, err)
			}
			if err := chaos.Check(reply.Payload, 1, 0, size, chaos.Request); err != nil {
				t.Error(err)
			}
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 { // both directions concurrently
				if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: chaos.Message(2, i, size, chaos.Request)}); err != nil {
					t.Fatal(err)
				}
				reply, err := s.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if err := chaos.Check(reply.Payload, 2, i, size, chaos.Request); err != nil {
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

// Many concurrent calls, some of them large, on several connections.
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
							tag, size := uint64(100*i+k), chaos.Header+i*i*i*500 // the largest fill half a ring
							reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: chaos.Message(tag, k, size, chaos.Request)})
							if err == nil {
								err = chaos.Check(reply.Payload, tag, k, size, chaos.Request)
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

// refusesCalls waits until the stopping server refuses client's calls.
func refusesCalls(t *testing.T, client testpb.TestServiceClient) {
	t.Helper()
	leak.Eventually(t, "new calls are refused", func() bool {
		_, err := client.EmptyCall(t.Context(), &testpb.Empty{}) // a method that the service does not implement
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

func TestAServerThatIsKilledEndsCallsOverSharedMemory(t *testing.T) {
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			server, err := child.Start("TestServeInAProcess", serveTarget+"="+targetFor(t, network), serveService+"=waiting")
			if err != nil {
				t.Fatal(err)
			}
			conn, err := nearcall.NewClient(server.Target)
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
			if err := server.End(os.Kill); err != nil {
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
			leak.Eventually(t, "the connection is given up", func() bool { return conn.GetState() != connectivity.Ready })
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
			client, err := child.Start("TestCallFromAProcess", callTarget+"="+lis.Target())
			if err != nil {
				t.Fatal(err)
			}
			wantShm(t, running, 2)
			if len(ended) > 0 {
				t.Error("a call ended before its client was killed")
			}
			if err := client.End(os.Kill); err != nil {
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

// TestArrivedMessagesSurviveConnection: until they are received,
// large messages are in the server's memory, which must stay mapped.
func TestArrivedMessagesSurviveConnection(t *testing.T) {
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
			client := dial(t, lis.Target(), over(network)...)
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Header(); err != nil { // the handler runs
				t.Fatal(err)
			}
			srv.GracefulStop()
			becomes(t, "the connection has ended", func(s *metricspb.SharedMemory) bool { return s.Connections == 0 })
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
