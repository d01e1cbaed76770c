package promises

import (
	"testing"

	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

// stop: Stop cancels the handlers, and the callers get Unavailable, as do later ones.
func stop(t *testing.T, f *face) {
	h := newWatch()
	w := f.start(t, &service{unary: h.hold})
	c, _ := w.client()
	running := call(t.Context(), c, held())
	handler := await(t, "the handler begins", h.begun)
	w.srv.Stop()
	await(t, "the handler's context ends", handler.Done())
	wantCode(t, "the handler", await(t, "the handler ends", h.ended), codes.Canceled)
	wantCode(t, "the caller", await(t, "the call ends", running), codes.Unavailable)
	wantCode(t, "a later caller", await(t, "the call ends", call(t.Context(), c, held())), codes.Unavailable)
}

// gracefulStop: GracefulStop lets calls that run end, refuses new ones with Unavailable, and then
// returns.
func gracefulStop(t *testing.T, f *face) {
	h := newWatch()
	w := f.start(t, &service{unary: h.hold})
	c, _ := w.client()
	running := call(t.Context(), c, held())
	handler := await(t, "the handler begins", h.begun)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.srv.GracefulStop()
	}()
	leak.Eventually(t, "a new call is refused", func() bool {
		_, err := c.unary(t.Context(), new(pb.SimpleRequest))
		if err != nil {
			wantCode(t, "a new call", err, codes.Unavailable)
		}
		return err != nil
	})
	select {
	case <-stopped:
		t.Error("GracefulStop does not wait for a handler")
	case <-handler.Done():
		t.Error("the handler is cancelled")
	default:
	}
	close(h.release)
	wantCode(t, "the call that runs", await(t, "the call ends", running), codes.OK)
	await(t, "GracefulStop returns", stopped)
}
