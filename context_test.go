package nearcall_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/looptest"
	"github.com/nearcall/nearcall/loop"
)

// patient is a service whose handlers wait for the end of their context.
type patient struct {
	testpb.UnimplementedTestServiceServer
	ran atomic.Int32
}

func (p *patient) wait(ctx context.Context) error {
	p.ran.Add(1)
	if _, err := loop.Await(ctx, func(func(struct{}, error)) {}); err == loop.ErrNoTask {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (p *patient) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return nil, p.wait(ctx)
}

func (p *patient) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	p.ran.Add(1)
	return new(testpb.Empty), nil
}

func (p *patient) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return p.wait(s.Context())
}

// A lawless context has ended, and its Err is nil: package context panics at it.
type lawless struct{ context.Context }

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (lawless) Done() <-chan struct{} { return closedChan }
func (lawless) Err() error            { return nil }

// TestAContextThatEndsWithoutAnErrorWasCancelled: nobody hangs, and nobody takes the
// nil for success.
func TestAContextThatEndsWithoutAnErrorWasCancelled(t *testing.T) {
	check := func(t *testing.T, client testpb.TestServiceClient) {
		t.Helper()
		ctx := lawless{context.Background()}
		_, err := client.UnaryCall(ctx, new(testpb.SimpleRequest))
		wantCode(t, err, codes.Canceled)
		s, err := client.FullDuplexCall(ctx)
		if err == nil {
			_, err = s.Recv()
		}
		wantCode(t, err, codes.Canceled)
	}
	for name, opts := range map[string][]nearcall.ServerOption{
		"in process":         nil,
		"in process, inline": {nearcall.InlineHandlers()},
	} {
		t.Run(name, func(t *testing.T) { check(t, inProcess(t, new(patient), nil, opts...)) })
	}
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			srv := nearcall.NewServer()
			testpb.RegisterTestServiceServer(srv, new(patient))
			lis := listen(t, targetFor(t, network))
			start(t, srv, lis)
			check(t, dial(t, lis.Target(), over(network)...))
		})
	}
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		check(t, inProcess(t, new(patient), newLoop(t, kind)))
	})
}

// A timerless context has a deadline that no timer keeps.
type timerless struct {
	context.Context
	deadline time.Time
}

func (c timerless) Deadline() (time.Time, bool) { return c.deadline, true }

// TestADeadlineIsReadOffTheClock: a call begins before its deadline, or not at all,
// however late the context's timer is.
func TestADeadlineIsReadOffTheClock(t *testing.T) {
	for name, opts := range map[string][]nearcall.ServerOption{
		"on workers": {nearcall.WorkerHandlers()},
		"inline":     {nearcall.InlineHandlers()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(patient)
				client := inProcess(t, p, nil, opts...)
				base, cancel := context.WithCancel(t.Context())
				defer cancel()
				ctx := timerless{base, time.Now().Add(time.Second)}
				if _, err := client.EmptyCall(ctx, new(testpb.Empty)); err != nil || p.ran.Load() != 1 {
					t.Errorf("before the deadline: %v, and %d handlers ran", err, p.ran.Load())
				}
				time.Sleep(time.Second)
				_, err := client.EmptyCall(ctx, new(testpb.Empty))
				wantCode(t, err, codes.DeadlineExceeded)
				_, err = client.FullDuplexCall(ctx)
				wantCode(t, err, codes.DeadlineExceeded)
				if p.ran.Load() != 1 {
					t.Errorf("%d handlers ran at the deadline", p.ran.Load()-1)
				}
			})
		})
	}
}

// TestADeadlineWithoutATimerEndsCallsInProcess: a context that has a deadline and can
// never end would otherwise leave its calls to last.
func TestADeadlineWithoutATimerEndsCallsInProcess(t *testing.T) {
	for name, opts := range map[string][]nearcall.ServerOption{
		"on the usual goroutine": nil,
		"on workers":             {nearcall.WorkerHandlers()},
		"inline":                 {nearcall.InlineHandlers()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := inProcess(t, new(patient), nil, opts...)
				begun := time.Now()
				_, err := client.UnaryCall(timerless{context.Background(), begun.Add(time.Second)}, new(testpb.SimpleRequest))
				wantCode(t, err, codes.DeadlineExceeded)
				s, err := client.FullDuplexCall(timerless{context.Background(), begun.Add(2 * time.Second)})
				if err == nil {
					_, err = s.Recv()
				}
				wantCode(t, err, codes.DeadlineExceeded)
				if took := time.Since(begun); took != 2*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
