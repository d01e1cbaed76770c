package promises

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
)

// cancellation: a caller that cancels ends its handler's context, and what the handler waits for, and
// gets Canceled.
func cancellation(t *testing.T, f *face) {
	w := newWatch()
	c, _ := f.start(t, &service{unary: w.hold, upload: w.receive}).client()
	for name, call := range map[string]func(context.Context) error{
		"unary": func(ctx context.Context) error {
			_, err := c.unary(ctx, held())
			return err
		},
		"stream": func(ctx context.Context) error { return c.upload(ctx)() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		handler := await(t, "the handler begins", w.begun)
		cancel()
		wantCode(t, name+", the caller", await(t, "the call ends", done), codes.Canceled)
		wantCode(t, name+", the handler", await(t, "the handler ends", w.ended), codes.Canceled)
		await(t, "the handler's context ends", handler.Done())
		if err := handler.Err(); err != context.Canceled {
			t.Errorf("%s: the handler's context ends with %v", name, err)
		}
	}
}
