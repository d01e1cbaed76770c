package grpcserver

import (
	"cmp"
	"context"
	"runtime/pprof"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/wait"
)

// loops returns the loop of a method, nil for none. Its methods are the outermost interceptors. All
// that they call, other interceptors included, runs on the loop, while grpc-go's goroutine waits.
type loops func(method string) wait.Loop

func (ls loops) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	l := ls(info.FullMethod)
	if l == nil {
		return handler(ctx, req)
	}
	return run(ctx, l, info.FullMethod, func(ctx context.Context) (any, error) { return handler(ctx, req) })
}

func (ls loops) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	l := ls(info.FullMethod)
	if l == nil {
		return handler(srv, ss)
	}
	_, err := run(ss.Context(), l, info.FullMethod, func(ctx context.Context) (any, error) {
		return nil, handler(srv, &stream{ServerStream: ss, ctx: ctx, loop: l})
	})
	return err
}

// run runs f as a task of l, with a context for tasks, and waits for its result.
func run(ctx context.Context, l wait.Loop, method string, f func(context.Context) (any, error)) (any, error) {
	t := &task{method: method, f: f, call: ctx, over: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(wait.WithLoop(ctx, l))
	defer t.cancel()
	if err := l.Start(false, t); err != nil {
		return nil, status.Errorf(codes.Unavailable, "the method %s runs on a loop that takes no more tasks: %v", method, err)
	}
	<-t.over
	return t.reply, t.err
}

// A task is a call that runs on a loop. Its result is f's result, or an error if the loop
// ends first. It implements [wait.Job].
type task struct {
	method string
	f      func(context.Context) (any, error)
	call   context.Context // grpc-go's
	ctx    context.Context // the task's, derived from it
	cancel context.CancelFunc

	once  sync.Once
	reply any           // written once, before over is closed
	err   error         // likewise
	over  chan struct{} // closed when there is a result
}

func (t *task) end(reply any, err error) {
	t.once.Do(func() {
		t.reply, t.err = reply, err
		close(t.over)
	})
}

func (t *task) Run() {
	// The call may have ended while the loop was busy. The call's context shows this earlier than
	// the task's, which is derived from it.
	if err := cmp.Or(t.call.Err(), t.ctx.Err()); err != nil {
		t.end(nil, status.FromContextError(err).Err())
		return
	}
	labelled := false
	pprof.ForLabels(t.ctx, func(string, string) bool {
		labelled = true
		return false
	})
	if labelled {
		pprof.SetGoroutineLabels(t.ctx)
		defer pprof.SetGoroutineLabels(context.Background())
	}
	// This has an effect only if f panics or calls Goexit; a panic continues.
	defer t.end(nil, status.Error(codes.Internal, "the handler exited without returning"))
	t.end(t.f(t.ctx))
}

// Drop implements [wait.Job]. Cancelled has ended the call.
func (t *task) Drop() {}

// Leave implements [wait.Job]. Cancelled has ended the call.
func (t *task) Leave() {}

func (t *task) Cancelled(why error) {
	t.end(nil, status.Errorf(codes.Unavailable, "the method %s runs on a loop that runs no more: %v", t.method, why))
	t.cancel()
}

// A stream is the stream of a handler that runs on a loop. Methods that block run on a goroutine,
// and the task waits for them without blocking the loop. It implements [grpc.ServerStream].
type stream struct {
	grpc.ServerStream
	ctx  context.Context
	loop wait.Loop
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) SendMsg(m any) error {
	return wait.Outside(s.loop, func() error { return s.ServerStream.SendMsg(m) })
}

func (s *stream) RecvMsg(m any) error {
	return wait.Outside(s.loop, func() error { return s.ServerStream.RecvMsg(m) })
}
