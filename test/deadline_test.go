package test

import (
	"bufio"
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/looptest"
	"github.com/nearcall/nearcall/internal/wire"
	"github.com/nearcall/nearcall/loop"
)

// patient is a service whose handlers wait until their context is done.
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

// A lawless context is done but its Err is nil, which makes package context panic.
type lawless struct{ context.Context }

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (lawless) Done() <-chan struct{} { return closedChan }

func (lawless) Err() error { return nil }

// TestAContextThatEndsWithoutAnErrorWasCancelled: such a call fails, and neither hangs
// nor succeeds because of the nil.
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
		"in process, inline": {nearcall.HandlerPlacement(nearcall.Inline)},
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
	t.Run("fallback", func(t *testing.T) {
		lis := listenTCP(t)
		startGRPC(t, lis, new(patient))
		client := dial(t, "tcp:"+lis.Addr().String())
		if _, err := client.EmptyCall(t.Context(), new(testpb.Empty)); err != nil { // it connects
			t.Fatal(err)
		}
		check(t, client)
	})
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		check(t, inProcess(t, new(patient), newLoop(t, kind)))
	})
}

// A timerless context has a deadline but no timer that enforces it.
type timerless struct {
	context.Context
	deadline time.Time
}

func (c timerless) Deadline() (time.Time, bool) { return c.deadline, true }

// TestADeadlineIsReadOffTheClock: a call does not begin after its deadline, even if the
// context's timer is late.
func TestADeadlineIsReadOffTheClock(t *testing.T) {
	for name, opts := range map[string][]nearcall.ServerOption{
		"on workers": {nearcall.HandlerPlacement(nearcall.Workers)},
		"inline":     {nearcall.HandlerPlacement(nearcall.Inline)},
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

// TestADeadlineWithoutATimerEndsCallsInProcess: a context with a deadline that is never
// done would otherwise leave its calls running.
func TestADeadlineWithoutATimerEndsCallsInProcess(t *testing.T) {
	for name, opts := range map[string][]nearcall.ServerOption{
		"on the usual goroutine": nil,
		"on workers":             {nearcall.HandlerPlacement(nearcall.Workers)},
		"inline":                 {nearcall.HandlerPlacement(nearcall.Inline)},
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

// On the wire a deadline is a duration. It does not depend on clocks that differ
// between machines or are set.
func TestDeadlinesDoNotDependOnClocks(t *testing.T) {
	hold(t)
	type told struct {
		deadline time.Time
		ended    error
		at       time.Time
	}
	handler := make(chan told, 1)
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		d, _ := s.Context().Deadline()
		<-s.Context().Done()
		handler <- told{d, s.Context().Err(), time.Now()}
		return nil
	}})
	// The server applies the duration to its monotonic clock.
	s := meet(t, lis)
	begin := time.Now()
	const timeout = 200 * time.Millisecond
	open, _ := s.call("FullDuplexCall", nil, timeout, nil)
	s.write(greeting(wire.MinWindow), open)
	got := <-handler
	if !strings.Contains(got.deadline.String(), " m=+") {
		t.Errorf("the handler's deadline %v has no monotonic time", got.deadline)
	}
	if left := got.deadline.Sub(begin); left < timeout || left > timeout+5*time.Second {
		t.Errorf("the handler's deadline was %v away, want %v", left, timeout)
	}
	if d := got.at.Sub(begin); got.ended != context.DeadlineExceeded || d < timeout {
		t.Errorf("the handler's context ended with %v after %v", got.ended, d)
	}

	// The client computes the duration from a deadline whose wall clock is years off.
	inner := listenTCP(t)
	defer inner.Close()
	timeouts := make(chan time.Duration, 1)
	go func() {
		conn, err := inner.Accept()
		if err != nil {
			return
		}
		s := &stranger{t: t, conn: conn, in: bufio.NewReader(conn)}
		defer conn.Close()
		s.answer()
		s.write(greeting(wire.MinWindow))
		var dec wire.Decoder
		_ = s.frames(func(f wire.Frame) bool {
			if !f.Kind.Stream() {
				return false
			}
			rc, err := dec.Stream(f, nil, true)
			if err != nil {
				t.Error(err)
			}
			timeouts <- rc.Timeout
			return true
		})
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	ctx, leave := context.WithCancel(ctx)
	call := invoke(ctx, dial(t, "tcp:"+inner.Addr().String()))
	if left := <-timeouts; left > time.Hour || left < time.Hour-time.Minute {
		t.Errorf("a timeout of an hour is %v on the wire", left)
	}
	leave()
	<-call
	runtime.KeepAlive(ctx)
}

// An overdue service ends its calls, with what end says, once their caller has left or must have:
// when the handler's context has ended or its deadline has passed.
type overdue struct {
	testpb.UnimplementedTestServiceServer
	end   error
	ended atomic.Int32                       // the calls that handlers have ended
	leave atomic.Pointer[context.CancelFunc] // cancels the caller's context; nil if that has a deadline
}

func (o *overdue) wait(ctx context.Context) error {
	var passed <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		passed = time.After(time.Until(deadline))
	}
	if leave := o.leave.Load(); leave != nil {
		(*leave)()
	}
	if _, err := loop.Await(ctx, func(func(struct{}, error)) {}); err == loop.ErrNoTask {
		select {
		case <-ctx.Done():
		case <-passed:
		}
	}
	o.ended.Add(1)
	return o.end
}

func (o *overdue) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return new(testpb.SimpleResponse), o.wait(ctx)
}

func (o *overdue) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if err := s.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
		return err
	}
	return o.wait(s.Context())
}

func (o *overdue) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	if err := o.wait(s.Context()); err != nil {
		return err
	}
	return s.SendAndClose(new(testpb.StreamingInputCallResponse))
}

func (o *overdue) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return o.wait(s.Context())
}

// EmptyCall makes calls to the client, which serves the same.
func (o *overdue) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), o.calls(callPeer(ctx))
}

// calls makes calls of each kind. It returns an error unless each ends with its deadline, or as
// cancelled if that is how its caller left.
func (o *overdue) calls(client testpb.TestServiceClient) error {
	for kind, call := range map[string]func(ctx context.Context) error{
		"unary": func(ctx context.Context) error {
			_, err := client.UnaryCall(ctx, new(testpb.SimpleRequest))
			return err
		},
		"server stream": func(ctx context.Context) error {
			s, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
			for err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"client stream": func(ctx context.Context) error {
			s, err := client.StreamingInputCall(ctx)
			if err == nil {
				_, err = s.CloseAndRecv()
			}
			return err
		},
		"bidi stream": func(ctx context.Context) error {
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	} {
		o.leave.Store(nil)
		before := o.ended.Load()
		// On a busy machine the call can begin after the deadline.
		for timeout := 20 * time.Millisecond; o.ended.Load() == before; timeout *= 2 {
			// The context has no timer: nothing but the clock tells that the deadline has passed.
			base, cancel := context.WithCancel(context.Background())
			err := call(timerless{base, time.Now().Add(timeout)})
			cancel()
			if status.Code(err) != codes.DeadlineExceeded {
				return status.Errorf(codes.FailedPrecondition, "%s: %v, want DeadlineExceeded", kind, err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		o.leave.Store(&cancel)
		if err := call(ctx); status.Code(err) != codes.Canceled {
			return status.Errorf(codes.FailedPrecondition, "%s: %v, want Canceled", kind, err)
		}
	}
	return nil
}

// TestACallThatItsCallerHasLeftIsNotComplete: what the handler says of a call that its deadline or
// its caller has cut off may arrive before the context's timer fires. It does not count.
func TestACallThatItsCallerHasLeftIsNotComplete(t *testing.T) {
	for says, end := range map[string]error{
		"nothing":   nil,
		"not found": status.Error(codes.NotFound, "no"),
		"cancelled": status.Error(codes.Canceled, "no"),
	} {
		service := func() *overdue { return &overdue{end: end} }
		check := func(t *testing.T, o *overdue, client testpb.TestServiceClient) {
			t.Helper()
			if err := o.calls(client); err != nil {
				t.Errorf("the handler says %s: %v", says, err)
			}
		}
		serving := func(o *overdue, opts ...nearcall.ServerOption) *nearcall.Server {
			srv := nearcall.NewServer(opts...)
			testpb.RegisterTestServiceServer(srv, o)
			t.Cleanup(srv.Stop)
			return srv
		}
		for name, opts := range map[string][]nearcall.ServerOption{
			"in process":             nil,
			"in process, on workers": {nearcall.HandlerPlacement(nearcall.Workers)},
			"in process, inline":     {nearcall.HandlerPlacement(nearcall.Inline)},
		} {
			t.Run(name, func(t *testing.T) {
				o := service()
				check(t, o, inProcess(t, o, nil, opts...))
			})
		}
		for _, network := range available(t, networks("unix", "tcp")...) {
			t.Run(network, func(t *testing.T) {
				o := service()
				lis := listen(t, targetFor(t, network))
				start(t, serving(o), lis)
				check(t, o, dial(t, lis.Target(), over(network)...))
			})
		}
		t.Run("TLS", func(t *testing.T) {
			o, certs := service(), newCertificates(t)
			lis := listen(t, "tcp:127.0.0.1:0")
			start(t, serving(o, nearcall.Creds(credentials.NewTLS(certs.server(nil)))), lis)
			check(t, o, dial(t, lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))))
		})
		t.Run("WebSocket", func(t *testing.T) {
			o := service()
			for _, target := range webSocketTargets(t, serving(o)) {
				check(t, o, dial(t, target))
			}
		})
		t.Run("peer", func(t *testing.T) {
			eachPeer(t, func(t *testing.T, network string) {
				o := service()
				client, _ := peers(t, network, serving(o), serving(o))
				_, err := client.EmptyCall(t.Context(), new(testpb.Empty))
				if err != nil {
					t.Errorf("the handler says %s: %v", says, err)
				}
			})
		})
		t.Run("loop", func(t *testing.T) {
			eachLoop(t, func(t *testing.T, kind looptest.Kind) {
				o := service()
				srv, _ := onLoop(t, kind, o)
				check(t, o, clientOf(t, srv, "tcp"))
			})
		})
	}
}
