package test

import (
	"context"
	"io"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
	"github.com/nearcall/nearcall/loop"
)

// eachLoop runs f as a subtest for each kind of loop.
func eachLoop(t *testing.T, f func(t *testing.T, kind looptest.Kind)) {
	for _, kind := range looptest.Kinds {
		t.Run(kind.Name, func(t *testing.T) { f(t, kind) })
	}
}

// newLoop returns a loop that is closed at the end of the test.
func newLoop(t testing.TB, kind looptest.Kind) *loop.Loop {
	t.Helper()
	l, end := kind.New()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := end(ctx); err != nil {
			t.Errorf("the loop: %v", err)
		}
	})
	return l
}

// onLoop returns a server whose service runs on a loop, and closes both at the end of
// the test.
func onLoop(t testing.TB, kind looptest.Kind, e testpb.TestServiceServer, opts ...nearcall.ServerOption) (*nearcall.Server, *loop.Loop) {
	t.Helper()
	l := newLoop(t, kind)
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv.OnLoop(l), e)
	t.Cleanup(srv.Stop)
	return srv, l
}

// clientOf returns a client of srv, in process if network is empty.
func clientOf(t *testing.T, srv *nearcall.Server, network string) testpb.TestServiceClient {
	t.Helper()
	if network != "" {
		lis := listen(t, targetFor(t, network))
		start(t, srv, lis)
		return dial(t, lis.Target())
	}
	conn := srv.Client()
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// A plain counts its steps without a lock, and reports concurrent ones. It belongs to
// one loop.
type plain struct {
	testpb.UnimplementedTestServiceServer
	t      testing.TB
	inside int
	n      int
	next   testpb.TestServiceClient // called by each UnaryCall, unless nil
}

func (p *plain) step() {
	if p.inside++; p.inside != 1 {
		p.t.Errorf("%d tasks run at a time", p.inside)
	}
	p.n++
	p.inside--
}

func (p *plain) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	p.step()
	if p.next != nil {
		if _, err := p.next.EmptyCall(ctx, &testpb.Empty{}); err != nil {
			return nil, err
		}
	}
	if err := loop.Sleep(ctx, time.Duration(in.GetResponseSize())*time.Microsecond); err != nil {
		return nil, err
	}
	p.step()
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (p *plain) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	p.step()
	return &testpb.Empty{}, nil
}

func (p *plain) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p.step()
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
		p.step()
	}
}

// Many calls of all kinds modify plain fields of a service, whose handlers call the
// service again, on every path. The race detector must find nothing.
func TestHandlersOnALoopNeedNoLock(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		for _, network := range append([]string{""}, networks()...) {
			t.Run("network="+network, func(t *testing.T) {
				p := &plain{t: t}
				srv, l := onLoop(t, kind, p)
				client := clientOf(t, srv, network)
				p.next = client
				const callers, calls = 20, 30
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						ctx := t.Context()
						if i%3 == 0 {
							ctx = context.Background()
						}
						if i%5 == 0 {
							s, err := client.FullDuplexCall(ctx)
							for n := 0; n < calls && err == nil; n++ {
								if err = s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(10)}); err == nil {
									_, err = s.Recv()
								}
							}
							if err == nil {
								err = s.CloseSend()
							}
							if err == nil {
								if _, err = s.Recv(); err == io.EOF {
									err = nil
								}
							}
							if err != nil {
								t.Error(err)
							}
							return
						}
						for n := range calls {
							if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: int32(n), Payload: payload(10)}); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				done := make(chan int)
				if err := l.Post(func() { done <- p.n }); err != nil {
					t.Fatal(err)
				}
				if n, want := <-done, callers/5*calls*2+callers*4/5*calls*3; n != want {
					t.Errorf("%d steps were made, want %d", n, want)
				}
			})
		}
	})
}

// A task can call a service of its loop, with its context or another.
func TestATaskCallsItsOwnLoop(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		p := &plain{t: t}
		srv, l := onLoop(t, kind, p)
		conn := srv.Client()
		defer conn.Close()
		client := testpb.NewTestServiceClient(conn)
		done := make(chan error, 2)
		if err := l.Go(func(ctx context.Context) {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			done <- err
			_, err = client.UnaryCall(context.Background(), &testpb.SimpleRequest{})
			done <- err
		}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// outcome waits for what another goroutine does, which may have failed.
func outcome[T any](t *testing.T, what string, done <-chan T) (v T) {
	t.Helper()
	leak.Within(t, time.Minute, what+" comes", func() { v = <-done })
	return v
}

// inProcess returns a client of a service that runs on l, or on no loop.
func inProcess(t *testing.T, e testpb.TestServiceServer, l *loop.Loop, opts ...nearcall.ServerOption) testpb.TestServiceClient {
	t.Helper()
	srv := nearcall.NewServer(opts...)
	if l == nil {
		testpb.RegisterTestServiceServer(srv, e)
	} else {
		testpb.RegisterTestServiceServer(srv.OnLoop(l), e)
	}
	conn := srv.Client()
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
	})
	return testpb.NewTestServiceClient(conn)
}

// One task sends on a stream while another task of the same loop receives from it.
func TestTwoTasksShareAStream(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l := newLoop(t, kind)
		client := inProcess(t, &plain{t: t}, nil)
		done := make(chan error, 1)
		if err := l.Go(func(ctx context.Context) {
			s, err := client.FullDuplexCall(ctx)
			if err != nil {
				done <- err
				return
			}
			received := make(chan struct{})
			_ = l.Go(func(context.Context) {
				_, err := s.Recv() // yields the loop while it waits
				close(received)
				done <- err
			})
			_ = loop.Sleep(ctx, 20*time.Millisecond)
			if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
				done <- err
			}
			_, _ = loop.Await(ctx, func(resume func(int, error)) { go func() { <-received; resume(0, nil) }() })
			_ = s.CloseSend()
			_, _ = s.Recv()
		}); err != nil {
			t.Fatal(err)
		}
		if err := outcome(t, "the receiver", done); err != nil {
			t.Error(err)
		}
	})
}

// Services on two loops call each other, directly and through a service on no loop. The
// contexts belong to tasks but cannot be cancelled.
func TestLoopsThatCallOneAnother(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		a, b := newLoop(t, kind), newLoop(t, kind)
		var ofA, ofB, between testpb.TestServiceClient
		calls := func(next *testpb.TestServiceClient) echo {
			return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				if in.ResponseSize == 0 {
					return &testpb.SimpleResponse{}, nil
				}
				return (*next).UnaryCall(context.WithoutCancel(ctx), &testpb.SimpleRequest{ResponseSize: in.ResponseSize - 1})
			}}
		}
		ofA, ofB = inProcess(t, calls(&ofB), a), inProcess(t, calls(&between), b)
		between = inProcess(t, calls(&ofA), nil)
		var all sync.WaitGroup
		done := make(chan error, 1)
		for _, client := range []testpb.TestServiceClient{ofA, ofB, between} {
			for n := range 10 {
				for _, ctx := range []context.Context{t.Context(), context.Background()} {
					all.Go(func() {
						if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: int32(n)}); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
		go func() {
			all.Wait()
			done <- nil
		}()
		_ = outcome(t, "the calls", done)
	})
}

// A caller whose goroutine waits for a busy loop returns at its deadline, and when the
// server is stopped.
func TestNobodyIsHeldByABusyLoop(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l, end := kind.New()
		srv := nearcall.NewServer(nearcall.HandlerPlacement(nearcall.Inline))
		testpb.RegisterTestServiceServer(srv.OnLoop(l), &plain{t: t})
		conn := srv.Client()
		client := testpb.NewTestServiceClient(conn)
		release := make(chan struct{})
		if err := l.Post(func() { <-release }); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		call := func(ctx context.Context) {
			_, err := client.EmptyCall(ctx, &testpb.Empty{})
			done <- err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		go call(ctx)
		wantCode(t, outcome(t, "a call with a deadline", done), codes.DeadlineExceeded)
		go call(context.Background())
		time.Sleep(5 * time.Millisecond) // the result is the same if the call has not started yet
		srv.Stop()
		wantCode(t, outcome(t, "a call to a server that is stopped", done), codes.Unavailable)
		close(release)
		_ = conn.Close()
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// counting counts the messages of a stream.
type counting struct {
	testpb.UnimplementedTestServiceServer
	n    int
	over bool
}

func (c *counting) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	defer func() { c.over = true }()
	for {
		_, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(&testpb.StreamingInputCallResponse{})
		}
		if err != nil {
			return err
		}
		c.n++
	}
}

// A handler that always finds another message yields to other tasks now and then.
func TestAStreamThatNeverWaitsLetsOthersIn(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		for _, network := range append([]string{""}, networks()...) {
			t.Run("network="+network, func(t *testing.T) {
				c := new(counting)
				srv, l := onLoop(t, kind, c)
				client := clientOf(t, srv, network)
				others := make(chan int, 1)
				if err := l.Go(func(ctx context.Context) {
					most, last := 0, 0
					for !c.over && loop.Sleep(ctx, 0) == nil {
						most = max(most, c.n-last)
						last = c.n
					}
					others <- most
				}); err != nil {
					t.Fatal(err)
				}
				s, err := client.StreamingInputCall(t.Context())
				for n := 0; n < 3000 && err == nil; n++ {
					err = s.Send(&testpb.StreamingInputCallRequest{})
				}
				if err == nil {
					_, err = s.CloseAndRecv()
				}
				if err != nil {
					t.Fatal(err)
				}
				if n := <-others; n > 64 {
					t.Errorf("%d messages are received before another task has its turn", n)
				}
			})
		}
	})
}

// A caller of a busy handler returns at its deadline, and Send returns at once. On
// loops whose callers run handlers, both return when the handler waits or returns.
func TestWhenCallersOfABusyHandlerReturn(t *testing.T) {
	const busy, deadline = 400 * time.Millisecond, 50 * time.Millisecond
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		synctest.Test(t, func(t *testing.T) {
			wantDeadline, wantSend := deadline, time.Duration(0)
			if kind.Hands {
				wantDeadline, wantSend = busy, busy
			}
			l, end := kind.New()
			srv := nearcall.NewServer()
			testpb.RegisterTestServiceServer(srv.OnLoop(l), echo{
				unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					time.Sleep(busy)
					return &testpb.SimpleResponse{}, nil
				},
				bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
					_, err := s.Recv()
					time.Sleep(busy)
					return err
				},
			})
			conn := srv.Client()
			client := testpb.NewTestServiceClient(conn)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			cancel()
			if d := time.Since(began); d != wantDeadline || status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("a call with a deadline ends after %v with %v, want %v", d, err, wantDeadline)
			}
			time.Sleep(time.Second)
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			began = time.Now()
			if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil || time.Since(began) != wantSend {
				t.Errorf("Send returns after %v with %v, want %v", time.Since(began), err, wantSend)
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("Recv: %v", err)
			}
			_ = conn.Close()
			srv.Stop()
			if err := end(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
}

// Programs that register services and query them can use any of these servers.
var _, _ nearcall.Registrar = (*grpc.Server)(nil), (*nearcall.Server)(nil)

func TestALoopsRegistrarTellsOfAllServices(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		srv, l := onLoop(t, kind, echo{})
		healthpb.RegisterHealthServer(srv, health.NewServer())

		var registrar grpc.ServiceRegistrar = srv.OnLoop(l) // the type that registering functions take
		reflection.Register(srv.OnLoop(l))
		reflects, ok := registrar.(reflection.ServiceInfoProvider)
		if !ok {
			t.Fatalf("%T does not tell of services", registrar)
		}
		got := slices.Sorted(maps.Keys(reflects.GetServiceInfo()))
		want := []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection", "grpc.testing.TestService"}
		if !slices.Equal(got, want) {
			t.Errorf("the services are %q, want %q", got, want)
		}
		if direct := srv.GetServiceInfo(); !reflect.DeepEqual(reflects.GetServiceInfo(), direct) {
			t.Errorf("the loop's registrar has %v, the server %v", reflects.GetServiceInfo(), direct)
		}

		_, conn := connect(t, srv)
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var listed []string
		for _, s := range reply.GetListServicesResponse().GetService() {
			listed = append(listed, s.GetName())
		}
		if !slices.Equal(listed, want) {
			t.Errorf("reflection lists %q, want %q", listed, want)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("after CloseSend: %v", err)
		}
	})
}

// A handler that sends to a task must not run that task, because the task might wait
// for the handler.
func TestACalleeDoesNotRunItsCaller(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		sent := make(chan struct{})
		client := inProcess(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			if err := loop.Sleep(s.Context(), 20*time.Millisecond); err != nil { // until the caller waits
				return err
			}
			err := s.Send(&testpb.StreamingOutputCallResponse{})
			close(sent)
			return err
		}}, newLoop(t, kind))
		done := make(chan error, 1)
		if err := newLoop(t, kind).Go(func(ctx context.Context) {
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			select { // blocks its loop
			case <-sent:
			case <-time.After(10 * time.Second):
				t.Error("the handler does not go on")
			}
			done <- err
		}); err != nil {
			t.Fatal(err)
		}
		if err := outcome(t, "the caller", done); err != nil {
			t.Error(err)
		}
	})
}
