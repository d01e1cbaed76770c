package nearcall_test

import (
	"context"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// onLoop returns a server whose service runs on a loop, and closes both in the end.
func onLoop(t testing.TB, e testpb.TestServiceServer, opts ...nearcall.ServerOption) (*nearcall.Server, *loop.Loop) {
	t.Helper()
	l := loop.New()
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv.On(l), e)
	t.Cleanup(func() {
		srv.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("the loop: %v", err)
		}
	})
	return srv, l
}

// A plain counts without a lock. What it does is done on a loop.
type plain struct {
	testpb.UnimplementedTestServiceServer
	t      testing.TB
	inside int
	n      int
	next   testpb.TestServiceClient // that each call calls, unless nil
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

// Many calls of all kinds change plain fields of a service, whose handlers call
// themselves, over every network. The race detector watches.
func TestHandlersOnALoopNeedNoLock(t *testing.T) {
	for _, network := range append([]string{""}, networks()...) {
		t.Run("network="+network, func(t *testing.T) {
			p := &plain{t: t}
			srv, l := onLoop(t, p)
			var client, own testpb.TestServiceClient
			if network == "" {
				conn := srv.Client()
				t.Cleanup(func() { _ = conn.Close() })
				client, own = testpb.NewTestServiceClient(conn), testpb.NewTestServiceClient(conn)
			} else {
				lis := listen(t, targetFor(t, network))
				start(t, srv, lis)
				client, own = dial(t, lis.Target()), dial(t, lis.Target())
			}
			p.next = own
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
}

// A caller leaves at its deadline, while a handler holds the loop.
func TestADeadlineEndsTheWaitForABusyLoop(t *testing.T) {
	for _, network := range append([]string{""}, networks()...) {
		t.Run("network="+network, func(t *testing.T) {
			release := make(chan struct{})
			busy := echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				<-release // and holds the loop
				return &testpb.SimpleResponse{}, nil
			}}
			srv, _ := onLoop(t, busy)
			var client testpb.TestServiceClient
			if network == "" {
				conn := srv.Client()
				t.Cleanup(func() { _ = conn.Close() })
				client = testpb.NewTestServiceClient(conn)
			} else {
				lis := listen(t, targetFor(t, network))
				start(t, srv, lis)
				client = dial(t, lis.Target())
			}
			t.Cleanup(func() { close(release) })
			for range 2 { // the second waits for its turn
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
				cancel()
				wantCode(t, err, codes.DeadlineExceeded)
			}
		})
	}
}

// A task may call its own loop's service, also with a context that is not its own.
func TestATaskCallsItsOwnLoop(t *testing.T) {
	p := &plain{t: t}
	srv, l := onLoop(t, p)
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
}

func TestCallsToALoopThatIsClosed(t *testing.T) {
	l := loop.New()
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.On(l), &plain{t: t})
	defer srv.Stop()
	conn := srv.Client()
	defer conn.Close()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := testpb.NewTestServiceClient(conn)
	for _, ctx := range []context.Context{t.Context(), context.Background()} {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		wantCode(t, err, codes.Unavailable)
	}
}

// Goexit of a handler ends its call, and the loop goes on.
func TestGoexitOfAHandlerLeavesTheLoop(t *testing.T) {
	p := &plain{t: t}
	exits := echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		runtime.Goexit()
		return nil, nil
	}}
	srv, l := onLoop(t, exits)
	conn := srv.Client()
	defer conn.Close()
	client := testpb.NewTestServiceClient(conn)
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Internal)
	done := make(chan struct{})
	if err := l.Post(func() { p.step(); close(done) }); err != nil {
		t.Fatal(err)
	}
	<-done
}
