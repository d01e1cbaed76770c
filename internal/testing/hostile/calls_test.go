package hostile_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/hostile"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// service echoes, and reports on handlers that wait.
type service struct {
	testpb.UnimplementedTestServiceServer
	waiting chan struct{} // receives when a handler waits for its context
	left    chan error    // receives the context's error
}

func (service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetHeader(ctx, metadata.MD{"h": md["echo"]})
	_ = grpc.SetTrailer(ctx, metadata.MD{"t": md["echo"]})
	if st := in.GetResponseStatus(); st != nil {
		return nil, status.Error(codes.Code(st.Code), st.Message)
	}
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (service) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

func (s service) HalfDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	s.waiting <- struct{}{}
	<-stream.Context().Done()
	s.left <- stream.Context().Err()
	return stream.Context().Err()
}

func (service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for _, p := range in.ResponseParameters {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(int(p.Size))}); err != nil {
			return err
		}
	}
	return nil
}

func payload(n int) *testpb.Payload { return &testpb.Payload{Body: make([]byte, n)} }

// inBubble runs f as a subtest in a synctest bubble.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

type env struct {
	svc service
	testpb.TestServiceClient
	server *nearcall.Server
	conn   *nearcall.ClientConn
}

func start(t *testing.T, o hostile.Options) *env {
	t.Helper()
	e := &env{svc: service{waiting: make(chan struct{}, 100), left: make(chan error, 100)}, server: nearcall.NewServer()}
	testpb.RegisterTestServiceServer(e.server, e.svc)
	lis := hostile.Listen(t.Name(), o)
	served := make(chan error, 1)
	go func() { served <- e.server.Serve(lis) }()
	conn, err := nearcall.NewClient(lis.Target(), options.WithDialer(lis.Dialer()))
	if err != nil {
		t.Fatal(err)
	}
	e.conn = conn
	e.TestServiceClient = testpb.NewTestServiceClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		e.server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return e
}

// echo makes a bidirectional call of n messages and checks what comes back.
func (e *env) echo(ctx context.Context, n int, r *rand.Rand) error {
	s, err := e.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	sizes := make(chan int, n)
	sent := make(chan error, 1)
	go func() {
		defer close(sizes)
		for range n {
			size := r.IntN(3000)
			sizes <- size
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(size)}); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseSend()
	}()
	for {
		in, err := s.Recv()
		if err != nil {
			if serr := <-sent; err == io.EOF && serr != nil {
				return serr
			}
			for range sizes {
			}
			if err == io.EOF {
				return nil
			}
			return err
		}
		if want := <-sizes; len(in.Payload.Body) != want {
			return fmt.Errorf("%d bytes came back, want %d", len(in.Payload.Body), want)
		}
	}
}

var variants = map[string]hostile.Options{
	"faithful":  {},
	"delays":    {Seed: 7, Delay: 20 * time.Microsecond},
	"crumbs":    {Seed: 8, MaxFragment: 100},
	"no credit": {Seed: 9, Window: 1},
}

func TestCallsOfAllKindsAtOnce(t *testing.T) {
	for name, o := range variants {
		inBubble(t, name, func(t *testing.T) {
			e := start(t, o)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var all sync.WaitGroup
			for i := range uint64(8) {
				all.Go(func() {
					r := rand.New(rand.NewPCG(1, i))
					for range 3 {
						e.unary(ctx, t, r.IntN(5000))
						if err := e.echo(ctx, 20, r); err != nil {
							t.Error(err)
						}
						e.down(ctx, t, r)
					}
				})
			}
			all.Wait()
		})
	}
}

func (e *env) unary(ctx context.Context, t *testing.T, size int) {
	t.Helper()
	var header, trailer metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, "echo", "a", "echo", "")
	reply, err := e.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(size)}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || len(reply.GetPayload().GetBody()) != size {
		t.Errorf("a reply of %d bytes and %v, want %d bytes", len(reply.GetPayload().GetBody()), err, size)
	}
	if h, tr := fmt.Sprint(header["h"]), fmt.Sprint(trailer["t"]); h != "[a ]" || tr != "[a ]" {
		t.Errorf("header %q, trailer %q", h, tr)
	}
	_, err = e.UnaryCall(ctx, &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 5, Message: "no"}})
	if status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no" {
		t.Errorf("%v, want NotFound", err)
	}
}

func (e *env) down(ctx context.Context, t *testing.T, r *rand.Rand) {
	t.Helper()
	in := &testpb.StreamingOutputCallRequest{}
	for range 30 {
		in.ResponseParameters = append(in.ResponseParameters, &testpb.ResponseParameters{Size: int32(r.IntN(9000))})
	}
	s, err := e.StreamingOutputCall(ctx, in)
	if err != nil {
		t.Error(err)
		return
	}
	for _, p := range in.ResponseParameters {
		m, err := s.Recv()
		if err != nil || len(m.Payload.Body) != int(p.Size) {
			t.Errorf("%d bytes and %v, want %d bytes", len(m.GetPayload().GetBody()), err, p.Size)
			return
		}
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("%v, want EOF", err)
	}
}

func TestLargeMessage(t *testing.T) {
	e := start(t, hostile.Options{})
	const size = 3 << 20
	reply, err := e.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(size)})
	if err != nil || len(reply.Payload.Body) != size {
		t.Fatal(err)
	}
	_, err = e.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(5 << 20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("%v, want ResourceExhausted", err)
	}
}

func TestHangUpsBecomeUnavailable(t *testing.T) {
	for seed := range uint64(20) {
		o := hostile.Options{Seed: seed, HangUp: 0.02, Delay: 10 * time.Microsecond}
		if seed%2 == 0 {
			o.HangUp, o.HangUpAfter = 0, 1+int(seed)*5
		}
		inBubble(t, fmt.Sprint(seed), func(t *testing.T) {
			e := start(t, o)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var all sync.WaitGroup
			for i := range uint64(4) {
				all.Go(func() {
					r := rand.New(rand.NewPCG(2, i))
					for range 20 {
						if err := e.echo(ctx, 5, r); err != nil && err != io.EOF && status.Code(err) != codes.Unavailable {
							t.Errorf("echo: %v, want Unavailable", err)
						}
						if _, err := e.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil && status.Code(err) != codes.Unavailable {
							t.Errorf("unary: %v, want Unavailable", err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

func TestHandlerLearnsWhyItsCallerLeft(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(e *env, cancel func())
		code  codes.Code
		want  error
	}{
		"cancel":   {func(_ *env, cancel func()) { cancel() }, codes.Canceled, context.Canceled},
		"deadline": {func(*env, func()) { time.Sleep(time.Hour) }, codes.DeadlineExceeded, context.DeadlineExceeded},
		"close":    {func(e *env, _ func()) { _ = e.conn.Close() }, codes.Canceled, context.Canceled},
		"stop":     {func(e *env, _ func()) { e.server.Stop() }, codes.Unavailable, context.Canceled},
	} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t, hostile.Options{Delay: time.Millisecond})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			s, err := e.HalfDuplexCall(ctx)
			if err != nil {
				t.Fatal(err)
			}
			<-e.svc.waiting
			c.leave(e, cancel)
			if _, err := s.Recv(); status.Code(err) != c.code {
				t.Errorf("the caller gets %v, want %v", err, c.code)
			}
			if got := <-e.svc.left; got != c.want {
				t.Errorf("the handler's context ends with %v, want %v", got, c.want)
			}
		})
	}
}

func TestGracefulStopLosesNoStatus(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, hostile.Options{Seed: seed, Delay: time.Millisecond, MaxFragment: 50})
			s, err := e.FullDuplexCall(t.Context())
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
			go func() { e.server.GracefulStop(); close(stopped) }()
			synctest.Wait()
			for range 3 {
				if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(3000)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if m, err := s.Recv(); err != nil || len(m.Payload.Body) != 3000 {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Fatalf("seed %d: %v, want EOF", seed, err)
			}
			<-stopped
			if _, err := e.UnaryCall(t.Context(), &testpb.SimpleRequest{}); status.Code(err) != codes.Unavailable {
				t.Fatalf("%v, want Unavailable", err)
			}
		})
	}
}
