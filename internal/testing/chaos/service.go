package chaos

import (
	"context"
	"hash/crc32"
	"io"
	"runtime"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/loop"
)

// chaosService acts according to the plans of its calls.
type chaosService struct {
	testpb.UnimplementedTestServiceServer
	chaos *chaos
	book  *book
}

func (s *chaosService) actor(ctx context.Context, setTrailer func(metadata.MD)) *actor {
	a := &actor{chaos: s.chaos, book: s.book, ctx: ctx}
	get := func(key string) string {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) == 1 {
			return v[0]
		}
		s.chaos.errorf("the metadata of a call arrived without its %s", key)
		return "0"
	}
	a.tag, _ = strconv.ParseUint(get("tag"), 16, 64)
	a.act, _ = strconv.Atoi(get("act"))
	a.at, _ = strconv.Atoi(get("at"))
	setTrailer(metadata.Pairs("tag", tagText(a.tag)))
	a.book.begin(a.tag)
	return a
}

func (s *chaosService) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	a := s.actor(ctx, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
	defer a.stray(func() { _ = grpc.SendHeader(ctx, metadata.Pairs("late", "1")) })()
	a.check(in.Payload, 0)
	if err := a.do(0); err != nil {
		return nil, err
	}
	a.check(in.Payload, 0) // the caller must not be able to change it
	out := Message(a.tag, 0, len(in.Payload.Body), Reply)
	scribble(in.Payload)
	return &testpb.SimpleResponse{Payload: out}, nil
}

func (s *chaosService) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, ss grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	a := s.actor(ss.Context(), ss.SetTrailer)
	defer a.stray(func() { _ = ss.SendMsg(&testpb.StreamingOutputCallResponse{}) })()
	for i, p := range in.ResponseParameters {
		if err := a.do(i); err != nil {
			return err
		}
		m := Message(a.tag, i, int(p.Size), Reply)
		if err := ss.Send(&testpb.StreamingOutputCallResponse{Payload: m}); err != nil {
			return err
		}
		scribble(m)
	}
	a.check(in.Payload, 0)
	return nil
}

func (s *chaosService) StreamingInputCall(ss grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	a := s.actor(ss.Context(), ss.SetTrailer)
	defer a.stray(func() { _, _ = ss.Recv() })()
	sum := uint32(0)
	for i := 0; ; i++ {
		m, err := ss.Recv()
		if err == io.EOF {
			return ss.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(sum)})
		}
		if err != nil {
			return err
		}
		a.check(m.Payload, i)
		sum = crc32.Update(sum, crc32.IEEETable, m.Payload.Body)
		if err := a.do(i); err != nil {
			return err
		}
	}
}

func (s *chaosService) FullDuplexCall(ss grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return s.echo(ss, true)
}

func (s *chaosService) HalfDuplexCall(ss grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return s.echo(ss, false)
}

// echo answers each message, at once or all at the end.
func (s *chaosService) echo(ss grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse], atOnce bool) error {
	a := s.actor(ss.Context(), ss.SetTrailer)
	defer a.stray(func() { _, _ = ss.Recv() })()
	var sizes []int
	answer := func(i int) error {
		m := Message(a.tag, i, sizes[i], Reply)
		err := ss.Send(&testpb.StreamingOutputCallResponse{Payload: m})
		scribble(m)
		return err
	}
	for i := 0; ; i++ {
		m, err := ss.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		a.check(m.Payload, i)
		sizes = append(sizes, len(m.Payload.Body))
		if err := a.do(i); err != nil {
			return err
		}
		if atOnce {
			if err := answer(i); err != nil {
				return err
			}
		}
	}
	for i := range sizes {
		if atOnce {
			break
		}
		if err := answer(i); err != nil {
			return err
		}
	}
	return nil
}

// An actor is the handler's side of a plan.
type actor struct {
	chaos   *chaos
	book    *book
	ctx     context.Context
	tag     uint64
	act, at int
}

// check reports a request that differs from what the call sent.
func (a *actor) check(p *testpb.Payload, i int) {
	if err := Check(p, a.tag, i, len(p.GetBody()), Request); err != nil {
		a.chaos.errorf("a handler received: %v", err)
	}
}

// do performs the action planned for message i, if there is one.
func (a *actor) do(i int) error {
	a.book.step(a.tag)
	if i != a.at {
		return nil
	}
	switch a.act {
	case doNap:
		_ = loop.Sleep(a.ctx, time.Duration(a.tag%300_000))
	case doDerive:
		ctx, cancel := context.WithTimeout(a.ctx, time.Hour)
		defer cancel()
		stop := context.AfterFunc(ctx, func() {})
		inner, give := context.WithCancelCause(ctx)
		give(io.EOF)
		<-inner.Done()
		stop()
	case doKill:
		if cancel, ok := a.chaos.cancels.Load(a.tag); ok {
			cancel.(context.CancelFunc)()
		}
	case doFail:
		return status.Error(codes.FailedPrecondition, tagText(a.tag))
	case doPanic:
		panic(tagText(a.tag))
	case doGoexit:
		runtime.Goexit()
	case doWait:
		if a.book != nil {
			return a.book.wait(a.ctx)
		}
		<-a.ctx.Done()
		return a.ctx.Err()
	case doTask:
		if a.book != nil {
			a.book.task(a.ctx, a.tag)
		}
	}
	return nil
}

// stray leaves a goroutine behind that calls goOn after the handler has returned and
// its context is done. The handler calls returned when it returns. On a loop every
// second stray is a task.
func (a *actor) stray(goOn func()) (returned func()) {
	if a.act != doStray {
		return func() { a.book.end(a.tag) }
	}
	if a.book != nil && a.tag%2 == 0 {
		return a.book.stray(a, goOn)
	}
	end := make(chan struct{})
	go func() {
		<-end
		<-a.ctx.Done()
		goOn()
	}()
	return func() {
		a.book.end(a.tag)
		close(end)
	}
}
