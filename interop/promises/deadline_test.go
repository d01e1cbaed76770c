package promises

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// deadline: a handler's context ends at the deadline of its call, and the caller gets DeadlineExceeded.
func deadline(t *testing.T, f *face) {
	endsAtDeadline(t, f, func(w *watch) *service { return &service{unary: w.hold} }, func(ctx context.Context, c caller) error {
		_, err := c.unary(ctx, held())
		return err
	})
}

// deadlineInRecv: the deadline ends a handler's wait for a message that its client does not send.
func deadlineInRecv(t *testing.T, f *face) {
	receiving := func(w *watch) *service { return &service{upload: w.receive} }
	endsAtDeadline(t, f, receiving, func(ctx context.Context, c caller) error { return c.upload(ctx)() })
}

// deadlineInSend: the deadline ends a handler's wait for a client that receives nothing.
func deadlineInSend(t *testing.T, f *face) {
	sending := func(w *watch) *service {
		return &service{download: func(out downloads) error {
			return w.run(out.Context(), func() (err error) {
				for err == nil {
					err = out.Send(&pb.StreamingOutputCallResponse{Payload: payload(64 << 10)})
				}
				return err
			})
		}}
	}
	endsAtDeadline(t, f, sending, func(ctx context.Context, c caller) error {
		receive := c.download(ctx)
		<-ctx.Done()
		return receive()
	})
}

// endsAtDeadline makes a call whose handler waits for its end.
func endsAtDeadline(t *testing.T, f *face, serve func(*watch) *service, make func(context.Context, caller) error) {
	inTime(t, func(timeout time.Duration) bool {
		w := newWatch()
		c, l := f.start(t, serve(w)).client()
		return endsAfter(t, f, w, l, timeout, func(ctx context.Context) error { return make(ctx, c) })
	})
}

// endsAfter makes a call with a timeout. If the face can be silenced, the server does not learn from the
// client when the call ends. endsAfter returns false if the call ends before its handler begins.
func endsAfter(t *testing.T, f *face, w *watch, l *line, timeout time.Duration, call func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	var handler context.Context
	select {
	case handler = <-w.begun:
	case err := <-done:
		wantCode(t, "the caller", err, codes.DeadlineExceeded)
		return false
	}
	want := []codes.Code{codes.DeadlineExceeded, codes.Canceled} // the client's own end may come first
	if f.silenced {
		l.silence()
		if ctx.Err() != nil {
			<-done
			return false // too late
		}
		if !f.timers {
			want = want[:1]
		}
	}
	if _, ok := handler.Deadline(); !ok {
		t.Error("the handler's context has no deadline")
	}
	wantCode(t, "the handler", await(t, "the handler ends", w.ended), want...)
	wantCode(t, "the handler's context", handler.Err(), want...)
	wantCode(t, "the caller", await(t, "the call ends", done), codes.DeadlineExceeded)
	return true
}
