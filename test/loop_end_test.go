package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
	"github.com/nearcall/nearcall/loop"
)

func TestCallsToALoopThatIsClosed(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l, end := kind.New()
		srv := nearcall.NewServer()
		testpb.RegisterTestServiceServer(srv.OnLoop(l), &plain{t: t})
		defer srv.Stop()
		conn := srv.Client()
		defer conn.Close()
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		client := testpb.NewTestServiceClient(conn)
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			wantCode(t, err, codes.Unavailable)
		}
	})
}

// Goexit in a handler ends its call. The loop continues.
func TestGoexitOfAHandlerLeavesTheLoop(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		p := &plain{t: t}
		exits := echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			runtime.Goexit()
			return nil, nil
		}}
		srv, l := onLoop(t, kind, exits)
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
	})
}

// If a call's deadline passes while its handler is queued, the handler does not run, whichever client
// makes the call. Stats handlers see its Begin and its End.
func TestACallThatIsLateForItsTurn(t *testing.T) {
	clients := map[string]func(*testing.T, *nearcall.Server) testpb.TestServiceClient{
		"nearcall": func(t *testing.T, srv *nearcall.Server) testpb.TestServiceClient { return clientOf(t, srv, "") },
		"gRPC": func(t *testing.T, srv *nearcall.Server) testpb.TestServiceClient {
			lis := listen(t, "tcp:127.0.0.1:0")
			start(t, srv, lis)
			return dialGRPC(t, lis)
		},
	}
	calls := map[string]func(context.Context, testpb.TestServiceClient) error{
		"unary": func(ctx context.Context, client testpb.TestServiceClient) error { return <-invoke(ctx, client) },
		"stream": func(ctx context.Context, client testpb.TestServiceClient) error {
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	}
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		for name, dial := range clients {
			for what, call := range calls {
				t.Run(name+"/"+what, func(t *testing.T) {
					limit := 20 * time.Millisecond
					for !lateForItsTurn(t, kind, name == "nearcall", dial, func(client testpb.TestServiceClient) {
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						defer cancel()
						wantCode(t, call(ctx, client), codes.DeadlineExceeded)
					}) && limit < 10*time.Second {
						limit *= 2
					}
				})
			}
		}
	})
}

// lateForItsTurn makes a call to a loop that is blocked for longer than its deadline. It returns false
// if the deadline has passed before the call reached the loop. In process, stats handlers are told of a
// call when it has its turn.
func lateForItsTurn(t *testing.T, kind looptest.Kind, inProcess bool, dial func(*testing.T, *nearcall.Server) testpb.TestServiceClient, call func(testpb.TestServiceClient)) (arrived bool) {
	ran := false
	e := &ended{contexts: make(chan context.Context, 2)}
	srv, l := onLoop(t, kind, echo{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			ran = true
			return new(testpb.SimpleResponse), nil
		},
		bidi: func(bidi) error {
			ran = true
			return nil
		},
	}, nearcall.StatsHandler(e))
	client := dial(t, srv)
	_, err := client.EmptyCall(t.Context(), &testpb.Empty{}) // connects
	wantCode(t, err, codes.Unimplemented)
	outcome(t, "the call", e.contexts)
	busy, release := make(chan struct{}), make(chan struct{})
	if err := l.Post(func() { close(busy); <-release }); err != nil {
		t.Fatal(err)
	}
	<-busy
	call(client)
	select {
	case ctx := <-e.contexts:
		<-ctx.Done()
		arrived = true
	default: // it may still arrive, with time left, and then its handler runs
	}
	close(release)
	done := make(chan bool, 1)
	if err := l.Post(func() { done <- ran }); err != nil {
		t.Fatal(err)
	}
	handled := outcome(t, "the loop's next task", done)
	if inProcess {
		arrived = e.begins.Load() == 2
	}
	if handled && arrived {
		t.Error("the handler has run")
	}
	leak.Eventually(t, "each call that has begun ends", func() bool { return e.ends.Load() == e.begins.Load() })
	return arrived
}

// ended counts the calls that a stats handler sees, and passes their contexts on.
type ended struct {
	begins, ends atomic.Int64
	contexts     chan context.Context
}

func (e *ended) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	e.contexts <- ctx
	return ctx
}

func (e *ended) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.Begin:
		e.begins.Add(1)
	case *stats.End:
		e.ends.Add(1)
	}
}

func (e *ended) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e *ended) HandleConn(context.Context, stats.ConnStats)                       {}

// If a caller runs the handler itself, its deadline reaches the handler's context: a
// handler that watches its context does not hold the caller beyond the deadline.
func TestACallersEndReachesTheHandlerThatItRuns(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		srv, _ := onLoop(t, kind, echo{
			unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				<-ctx.Done() // blocks the loop
				return nil, ctx.Err()
			},
			bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
				<-s.Context().Done()
				return nil
			},
		})
		client := clientOf(t, srv, "")
		for name, call := range map[string]func(ctx context.Context) error{
			"unary": func(ctx context.Context) error {
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
				return err
			},
			"stream": func(ctx context.Context) error {
				s, err := client.FullDuplexCall(ctx)
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			wantCode(t, outcome(t, name, done), codes.DeadlineExceeded)
			cancel()
		}
	})
}

// Tasks that receive from one stream concurrently, or wait for its header, yield the
// loop.
func TestTasksThatReceiveTogetherLeaveTheLoop(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l := newLoop(t, kind)
		release := make(chan struct{})
		client := inProcess(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			<-release
			for range 2 {
				if err := s.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
					return err
				}
			}
			return nil
		}}, nil)
		const tasks = 3
		done := make(chan error, tasks)
		received := make(chan struct{}) // closed when the tasks have received their messages
		ended := make(chan struct{})
		if err := l.Go(func(ctx context.Context) {
			defer close(ended)
			s, err := client.FullDuplexCall(ctx)
			if err != nil {
				done <- err
				return
			}
			recv := func(context.Context) {
				_, err := s.Recv()
				done <- err
			}
			for _, task := range []func(context.Context){recv, recv, func(context.Context) {
				_, err := s.Header()
				done <- err
			}} {
				_ = l.Go(task)
			}
			_ = loop.Sleep(ctx, time.Millisecond) // returns when the loop is free again
			close(release)
			_, _ = loop.Await(ctx, func(resume func(struct{}, error)) {
				go func() {
					<-received // receiving earlier could take a message meant for the tasks
					resume(struct{}{}, nil)
				}()
			})
			_, _ = s.Recv() // the end of the stream, which frees it
		}); err != nil {
			t.Fatal(err)
		}
		for range tasks {
			if err := outcome(t, "a task", done); err != nil {
				t.Error(err)
			}
		}
		close(received)
		<-ended
	})
}

// If a task's context is done when the task begins to wait, the end of the context also
// wakes others, such as a task that receives from the same stream.
func TestATaskThatWaitsWithAContextThatHasEnded(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l := newLoop(t, kind)
		client := inProcess(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			_ = l.Go(func(context.Context) { _, _ = s.Recv() })
			_ = loop.Sleep(s.Context(), 0) // the task blocks in Recv now
			_, err := loop.Await(s.Context(), func(func(int, error)) { time.Sleep(30 * time.Millisecond) })
			return err
		}}, l)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			done <- err
		}()
		if err := outcome(t, "the stream", done); err == nil {
			t.Error("it ends without an error")
		}
	})
}

// Close cancels calls that run within a task, too.
func TestCloseEndsACallThatRunsWithinATask(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l, end := kind.New()
		in, out := make(chan struct{}), make(chan error, 1)
		client := inProcess(t, echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			close(in)
			err := loop.Sleep(ctx, time.Hour)
			out <- err
			return nil, err
		}}, l)
		if err := l.Go(func(context.Context) { _, _ = client.UnaryCall(context.Background(), &testpb.SimpleRequest{}) }); err != nil {
			t.Fatal(err)
		}
		<-in
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := l.Close(ctx); err != context.DeadlineExceeded {
			t.Errorf("Close: %v", err)
		}
		if err := outcome(t, "the call", out); err != context.Canceled {
			t.Errorf("its context ends with %v", err)
		}
		_ = end(t.Context())
	})
}

// Calls to a loop whose host has ended fail, the first of them detects that, and their
// server does not wait for them.
func TestCallsToALoopWhoseHostIsGone(t *testing.T) {
	gone := fmt.Errorf("the host is gone: %w", context.Canceled) // calls must not end with its Canceled
	l := loop.NewHosted(func(func()) error { return gone })
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.OnLoop(l), &plain{t: t})
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

// If the goroutine of a host was locked to its thread and the host ends, its suspended
// tasks can never continue. A server does not wait for them.
func TestAServerDoesNotWaitForAHostThatIsGone(t *testing.T) {
	looptest.Abandon(t, func() {
		h := looptest.NewBoundHost()
		srv := nearcall.NewServer()
		running := make(chan struct{})
		testpb.RegisterTestServiceServer(srv.OnLoop(h.Loop), echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			close(running)
			return nil, loop.Sleep(ctx, time.Hour)
		}})
		client := testpb.NewTestServiceClient(srv.Client())
		done := make(chan error, 1)
		go func() {
			_, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{})
			done <- err
		}()
		<-running
		h.Settle()
		h.Leave()
		h.Tell()
		wantCode(t, outcome(t, "the call", done), codes.Unavailable)
		go func() {
			srv.GracefulStop()
			_ = h.Close(context.Background())
			done <- nil
		}()
		_ = outcome(t, "GracefulStop", done)
	})
}

// asItIs is a compressor that changes nothing.
type asItIs struct{}

func (asItIs) Name() string                                 { return "as-it-is" }
func (asItIs) Compress(w io.Writer) (io.WriteCloser, error) { return unclosed{w}, nil }
func (asItIs) Decompress(r io.Reader) (io.Reader, error)    { return r, nil }

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

func init() { encoding.RegisterCompressor(asItIs{}) }

// If the host ends while a connection's writer wakes a task, that task's call ends. The
// connection stays.
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

// hostGoesWhileWritten reports whether the stream was ever full. On a busy machine it
// might not be.
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
	testpb.RegisterTestServiceServer(srv.OnLoop(l), echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		for range 5_000 { // until the stream is full and the writer wakes the handler
			if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(10)}); err != nil {
				return err
			}
		}
		return nil
	}})
	client := clientOf(t, srv, network)
	done := make(chan error, 1)
	go func() {
		// A sender writes others than compressed messages itself, before the stream is full.
		s, err := client.FullDuplexCall(context.Background(), grpc.UseCompressor(asItIs{}.Name()))
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
