package nearcall_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// Calls to a loop whose host is gone end, the first of which finds that out, and
// their server does not wait for them.
func TestCallsToALoopWhoseHostIsGone(t *testing.T) {
	gone := fmt.Errorf("the host is gone: %w", context.Canceled) // which is not what calls end with
	l := loop.NewHosted(func(func()) error { return gone })
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.On(l), &plain{t: t})
	conn := srv.Client()
	client := testpb.NewTestServiceClient(conn)
	for range 2 {
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			_, err := client.EmptyCall(ctx, &testpb.Empty{})
			wantCode(t, err, codes.Unavailable)
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			wantCode(t, err, codes.Unavailable)
		}
	}
	stopped := make(chan error, 1)
	go func() {
		srv.GracefulStop()
		stopped <- nil
	}()
	_ = outcome(t, "GracefulStop", stopped)
	_ = conn.Close()
	if err := l.Close(t.Context()); !errors.Is(err, gone) {
		t.Errorf("Close: %v", err)
	}
}

// Where a host's goroutine was bound to its thread, what it has begun goes on nowhere,
// and a server does not wait for it.
func TestAServerDoesNotWaitForAHostThatIsGone(t *testing.T) {
	const child = "NEARCALL_BOUND_HOST" // as it leaves a goroutine
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAServerDoesNotWaitForAHostThatIsGone$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "it ends well") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	asked, gone := make(chan func(), 1), make(chan struct{})
	l := loop.NewHosted(func(f func()) error {
		select {
		case <-gone:
			return errors.New("the host is gone")
		default:
			asked <- f
			return nil
		}
	})
	visits := make(chan struct{}, 100)
	go func() {
		runtime.LockOSThread()
		for f := range asked {
			f()
			visits <- struct{}{}
		}
	}()
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.On(l), echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return nil, loop.Sleep(ctx, time.Hour)
	}})
	client := testpb.NewTestServiceClient(srv.Client())
	done := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{})
		done <- err
	}()
	<-visits // it sleeps
	close(gone)
	_ = l.Post(func() {})
	wantCode(t, outcome(t, "the call", done), codes.Unavailable)
	go func() {
		srv.GracefulStop()
		_ = l.Close(context.Background())
		done <- nil
	}()
	_ = outcome(t, "GracefulStop", done)
	if !t.Failed() {
		os.Stdout.WriteString("it ends well\n")
		os.Exit(0)
	}
}

// A host that goes while a connection's writer wakes a task ends that task's call, and
// not the connection.
func TestAHostThatGoesWhileASocketIsWritten(t *testing.T) {
	// On one processor the handler fills the stream before the writer runs.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, network := range networks() {
		t.Run("network="+network, func(t *testing.T) {
			for range 50 {
				if hostGoesWhileWritten(t, network) || t.Failed() {
					return
				}
			}
			t.Error("the writer never woke the handler")
		})
	}
}

// hostGoesWhileWritten reports whether the stream was ever full. It may not be where
// the system's processors are busy with something else.
func hostGoesWhileWritten(t *testing.T, network string) bool {
	var mu sync.Mutex
	left, funcs := 1, make(chan func(), 1)
	l := loop.NewHosted(func(f func()) error {
		mu.Lock()
		defer mu.Unlock()
		if left--; left < 0 {
			return errors.New("the host is gone")
		}
		funcs <- f
		return nil
	})
	go func() {
		for f := range funcs {
			f()
		}
	}()
	defer close(funcs)
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.On(l), echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		for range 5_000 { // until the stream is full, and the writer wakes the handler
			if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(10)}); err != nil {
				return err
			}
		}
		return nil
	}})
	client := clientOf(t, srv, network)
	done := make(chan error, 1)
	go func() {
		s, err := client.FullDuplexCall(context.Background())
		for err == nil {
			_, err = s.Recv()
		}
		done <- err
	}()
	err := outcome(t, "the stream", done)
	srv.Stop()
	closed := l.Close(t.Context())
	if err == io.EOF {
		return false
	}
	wantCode(t, err, codes.Unavailable)
	if closed == nil {
		t.Error("Close does not tell of the host")
	}
	return true
}
