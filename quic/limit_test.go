package quic

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// Calls over the limit of the server begin in the order in which they were made, and one that is
// cancelled meanwhile takes no turn.
func TestCallsOverTheLimitBeginInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		var mu sync.Mutex
		var begun []int
		release := make(chan struct{})
		serveOn(t, n.lis, service{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			mu.Lock()
			begun = append(begun, int(in.ResponseSize))
			mu.Unlock()
			<-release
			return &testpb.SimpleResponse{}, nil
		}}, nearcall.Creds(nearcall.NewTLS(config)), nearcall.MaxConcurrentStreams(2))
		client := n.client(t)
		const calls = 12
		cancelled := []int{2, 5, 6, 11}
		var all sync.WaitGroup
		var cancels [calls]context.CancelFunc
		for i := range calls {
			var ctx context.Context
			ctx, cancels[i] = context.WithCancel(t.Context())
			defer cancels[i]()
			all.Go(func() {
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: int32(i)})
				want := codes.OK
				if slices.Contains(cancelled, i) {
					want = codes.Canceled
				}
				if status.Code(err) != want {
					t.Errorf("call %d: %v, want %v", i, err, want)
				}
			})
			time.Sleep(time.Second) // the first two calls may wait for the handshake
		}
		for _, i := range cancelled {
			cancels[i]()
			synctest.Wait()
		}
		for range calls - len(cancelled) {
			release <- struct{}{}
			time.Sleep(time.Second)
		}
		all.Wait()
		if want := []int{0, 1, 3, 4, 7, 8, 9, 10}; !slices.Equal(begun, want) {
			t.Errorf("the calls began in the order %v, want %v", begun, want)
		}
	})
}

// Handlers of cancelled calls may run on, and count. Each call that waits for one of them to return
// waits on its own goroutine.
func TestCallsWaitForHandlersOfCancelledCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		n := plainNetwork(t)
		config, _ := testTLS()
		release := make(chan struct{})
		serveOn(t, n.lis, service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			<-release
			return &testpb.SimpleResponse{}, nil
		}}, nearcall.Creds(nearcall.NewTLS(config)), nearcall.MaxConcurrentStreams(most))
		client := n.client(t)
		call := func(ctx context.Context, want codes.Code) func() {
			return func() {
				if _, err := client.UnaryCall(ctx, empty); status.Code(err) != want {
					t.Errorf("%v, want %v", err, want)
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range most {
			all.Go(call(ctx, codes.Canceled))
		}
		time.Sleep(time.Second)
		cancel()
		all.Wait()
		for range most {
			all.Go(call(t.Context(), codes.OK))
		}
		time.Sleep(time.Second)
		close(release)
		all.Wait()
	})
}

// A task that is abandoned while it waits for its turn keeps none.
func TestATaskThatIsAbandonedKeepsNoTurn(t *testing.T) {
	looptest.Abandon(t, func() {
		for _, told := range []bool{true, false} {
			h := looptest.NewBoundHost()
			running, release := make(chan struct{}, 3), make(chan struct{})
			config, roots := testTLS()
			lis, err := nearcall.Listen("quic:127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			srv := nearcall.NewServer(nearcall.Creds(nearcall.NewTLS(config)), nearcall.MaxConcurrentStreams(1))
			testpb.RegisterTestServiceServer(srv, service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				running <- struct{}{}
				<-release
				return &testpb.SimpleResponse{}, nil
			}})
			go func() { _ = srv.Serve(lis) }()
			conn, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(nearcall.NewTLS(roots)))
			if err != nil {
				t.Fatal(err)
			}
			client := testpb.NewTestServiceClient(conn)
			done := make(chan error, 1)
			call := func() {
				_, err := client.UnaryCall(context.Background(), empty)
				done <- err
			}
			go call()
			<-running
			_ = h.Go(func(ctx context.Context) { _, _ = client.UnaryCall(ctx, empty) })
			h.Settle()
			h.Leave()
			if told {
				h.Tell()
			}
			close(release)
			for range 2 {
				leak.Within(t, time.Minute, "a call ends", func() {
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
				go call()
			}
			srv.Stop()
			_ = conn.Close()
		}
	})
}
