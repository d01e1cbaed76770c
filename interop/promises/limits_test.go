package promises

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall"
)

// concurrentStreams: a caller beyond MaxConcurrentStreams waits. If it gives up, its handler does not
// run.
func concurrentStreams(t *testing.T, f *face) {
	w := newWatch()
	c, l := f.start(t, &service{unary: w.hold}, nearcall.MaxConcurrentStreams(1)).client()
	if _, err := c.unary(t.Context(), new(pb.SimpleRequest)); err != nil { // the client learns the limit
		t.Fatal(err)
	}
	first := call(t.Context(), c, held())
	await(t, "the handler begins", w.begun)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantCode(t, "a call beyond the limit", await(t, "the call ends", call(short, c, held())), codes.DeadlineExceeded)
	next := call(t.Context(), c, held())
	close(w.release)
	wantCode(t, "the first call", await(t, "the call ends", first), codes.OK)
	wantCode(t, "a call that waits", await(t, "the call ends", next), codes.OK)
	if n := len(w.ended); n != 2 {
		t.Errorf("%d handlers have run, want 2", n)
	}
	if begun, _ := l.counts(); begun > 1 {
		t.Errorf("the client has made %d connections", begun)
	}
}

// headerLimit: a call whose header is larger than MaxHeaderListSize fails, and its handler does not
// run.
func headerLimit(t *testing.T, f *face) {
	w := newWatch()
	c, _ := f.start(t, &service{unary: w.hold}, nearcall.MaxHeaderListSize(20<<10)).client()
	with := func(n int) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "k", strings.Repeat("v", n))
	}
	close(w.release)
	for range 2 { // at first the client might not know the limit
		_, err := c.unary(with(30<<10), held())
		// Internal, if the protocol is gRPC's. Others have the code that connect-go makes of HTTP's 431, or of
		// package http's error.
		wantCode(t, "a header beyond the limit", err, codes.Internal, codes.Unknown, codes.Unavailable)
		_, err = c.unary(with(10<<10), held())
		wantCode(t, "a header within the limit", err, codes.OK)
	}
	if n := len(w.ended); n != 2 {
		t.Errorf("%d handlers have run, want 2", n)
	}
}

// messageLimits: messages beyond MaxRecvMsgSize and MaxSendMsgSize fail their calls with
// ResourceExhausted.
func messageLimits(t *testing.T, f *face) {
	c, _ := f.start(t, new(service), nearcall.MaxRecvMsgSize(1000), nearcall.MaxSendMsgSize(2000)).client()
	for _, m := range []struct {
		what           string
		request, reply int
		want           codes.Code
	}{
		{"a request beyond the limit", 1100, 0, codes.ResourceExhausted},
		{"a reply beyond the limit", 0, 2100, codes.ResourceExhausted},
		{"messages within the limits", 500, 1200, codes.OK}, // also in JSON,
	} {
		_, err := c.unary(t.Context(), &pb.SimpleRequest{Payload: payload(m.request), ResponseSize: int32(m.reply)})
		wantCode(t, m.what, err, m.want)
	}
}
