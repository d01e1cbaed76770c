package test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// proven is the number of quick calls after which a connection's reader runs a method's
// handler, with some to spare.
const proven = 50

// A blocking service has a method that waits until its call ends, if the request says so.
func blocking(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if in.ResponseSize > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &testpb.SimpleResponse{}, nil
}

// overPipe returns a client of a server whose connection is in memory. It must be called
// in a synctest bubble.
func overPipe(t *testing.T, e echo, opts ...nearcall.ServerOption) testpb.TestServiceClient {
	p, conn := at(t, nil)
	p.opens(t, e, opts...)
	return testpb.NewTestServiceClient(conn)
}

// delayed returns how long a call has to wait for its reply while a call of the same
// method waits for its end, which must come when its caller leaves.
func delayed(t *testing.T, client testpb.TestServiceClient) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1})
		left <- err
	}()
	synctest.Wait()
	begun := time.Now()
	if _, err := client.EmptyCall(t.Context(), &testpb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	delay := time.Since(begun)
	cancel()
	wantCode(t, <-left, codes.Canceled)
	return delay
}

func callTimes(t *testing.T, client testpb.TestServiceClient, n int) {
	t.Helper()
	for range n {
		if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A handler that has always been quick runs on the goroutine that reads the connection. If
// one blocks all the same, it delays other calls for some milliseconds, and only once.
func TestQuickHandlerDelaysOthersBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := overPipe(t, echo{unary: blocking})
		if d := delayed(t, client); d > 0 {
			t.Errorf("before the method is known to be quick, another call is delayed by %v", d)
		}
		callTimes(t, client, 400) // it was slow once
		if d := delayed(t, client); d == 0 || d > 4*time.Millisecond {
			t.Errorf("another call is delayed by %v, want some milliseconds", d)
		}
		for range 3 {
			callTimes(t, client, proven)
			if d := delayed(t, client); d > 0 {
				t.Errorf("after it was slow, another call is delayed by %v", d)
			}
		}
	})
}

// Calls that come together with one that blocks, and block as well, are read behind.
func TestManyHandlersThatBlockAtOnceDelayOthersNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 10
		client := overPipe(t, echo{unary: blocking})
		callTimes(t, client, 400)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, calls)
		for range calls {
			go func() {
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1})
				left <- err
			}()
		}
		synctest.Wait()
		begun := time.Now()
		callTimes(t, client, 1)
		if d := time.Since(begun); d > 4*time.Millisecond {
			t.Errorf("another call is delayed by %v", d)
		}
		cancel()
		for range calls {
			wantCode(t, <-left, codes.Canceled)
		}
		callTimes(t, client, proven)
	})
}

func TestWithWorkerHandlersNoHandlerDelaysAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := overPipe(t, echo{unary: blocking}, nearcall.HandlerPlacement(nearcall.Workers))
		callTimes(t, client, 400)
		if d := delayed(t, client); d > 0 {
			t.Errorf("another call is delayed by %v", d)
		}
	})
}

// A handler's deadline needs no reader.
func TestTheDeadlineOfAHandlerOnAReaderHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := overPipe(t, echo{unary: blocking})
		callTimes(t, client, proven)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1})
		wantCode(t, err, codes.DeadlineExceeded)
		if d := time.Since(begun); d != time.Millisecond {
			t.Errorf("the deadline of 1 ms comes after %v", d)
		}
		callTimes(t, client, 1)
	})
}

// A handler on the reader of a connection can call its caller, stop its server and wait for
// it, and close what it likes.
func TestAHandlerOnAReaderMayWaitForWhatItsReaderReads(t *testing.T) {
	t.Run("a call to the peer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asks := false
			e := echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				if asks {
					_, err := testpb.NewTestServiceClient(nearcall.PeerConn(ctx)).UnaryCall(ctx, in)
					return &testpb.SimpleResponse{}, err
				}
				return &testpb.SimpleResponse{}, nil
			}}
			p, conn := at(t, nil, nearcall.WithServer(serve(t, echo{})))
			p.opens(t, e)
			client := testpb.NewTestServiceClient(conn)
			callTimes(t, client, proven)
			asks = true
			begun := time.Now()
			callTimes(t, client, proven)
			if d := time.Since(begun); d > 0 {
				t.Errorf("calls that call back take %v", d)
			}
		})
	})
	t.Run("the server's end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var srv *nearcall.Server
			stopped := make(chan struct{})
			e := echo{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				if in.ResponseSize > 0 {
					srv.Stop()
					close(stopped)
				}
				return &testpb.SimpleResponse{}, nil
			}}
			p, conn := at(t, nil)
			srv = p.opens(t, e)
			client := testpb.NewTestServiceClient(conn)
			callTimes(t, client, proven)
			_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 1})
			wantCode(t, err, codes.Unavailable)
			<-stopped
		})
	})
}
