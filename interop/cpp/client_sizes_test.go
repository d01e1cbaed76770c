package cpptest

import (
	"context"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// full is what data needs for a message to have 4 MiB, the limit of both sides.
const full = 4<<20 - 5

var borders = []int{0, 1, 4095, 4096, 32767, 32768, 65535, 65536, 65537, 262_143, 262_144, 262_145, 1 << 20, full}

// sizeChecks send messages around each limit and window, also to sides that do not read.
var sizeChecks = []check{
	{"a request at the limit", func(t *testing.T, c conn) { unary(t, c, make([]byte, full)) }},
	{"a request one above the limit", func(t *testing.T, c conn) {
		_, err := c.Unary(t.Context(), &echopb.Message{Data: make([]byte, full+1)})
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (4194305 vs. 4194304)")
	}},
	{"a reply at the limit", func(t *testing.T, c conn) {
		if r, err := c.Unary(t.Context(), &echopb.Message{Count: full}); err != nil || len(r.GetData()) != full {
			t.Errorf("%d bytes, %v", len(r.GetData()), err)
		}
	}},
	{"a reply one above the limit", func(t *testing.T, c conn) {
		_, err := c.Unary(t.Context(), &echopb.Message{Count: full + 1})
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (4194305 vs. 4194304)")
	}},
	{"a reply at the limit of its call", func(t *testing.T, c conn) {
		if _, err := c.Unary(t.Context(), &echopb.Message{Count: 100}, grpc.MaxCallRecvMsgSize(102)); err != nil {
			t.Error(err)
		}
		_, err := c.Unary(t.Context(), &echopb.Message{Count: 101}, grpc.MaxCallRecvMsgSize(102))
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (103 vs. 102)")
	}},
	{"chat at the limit", func(t *testing.T, c conn) {
		s := begin(t, c)
		inTurn(t, s, full)
		if err := s.Send(&echopb.Message{Data: make([]byte, full+1)}); err != nil && err != io.EOF {
			t.Error(err)
		}
		_, err := s.Recv()
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (4194305 vs. 4194304)")
	}},
	{"gzip at the limit", func(t *testing.T, c conn) {
		q := &echopb.Message{Data: make([]byte, full-11), Count: -1}
		if r, err := c.Unary(t.Context(), q, grpc.UseCompressor(gzip.Name)); err != nil || r.GetCount() != full-11 {
			t.Errorf("%d bytes, %v", r.GetCount(), err)
		}
		q.Data = make([]byte, full-10)
		_, err := c.Unary(t.Context(), q, grpc.UseCompressor(gzip.Name))
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message after decompression larger than max 4194304")
	}},
	{"gzip of what does not compress", func(t *testing.T, c conn) {
		noise := make([]byte, 300_000)
		for i := range noise {
			noise[i] = byte(rand.Uint32())
		}
		r, err := c.Unary(t.Context(), &echopb.Message{Data: noise}, grpc.UseCompressor(gzip.Name))
		if err != nil || string(r.GetData()) != string(noise) {
			t.Errorf("%d bytes came back, %v", len(r.GetData()), err)
		}
	}},
	{"gzip, streams", func(t *testing.T, c conn) {
		s, err := c.Chat(t.Context(), grpc.UseCompressor(gzip.Name))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			inTurn(t, s, i*5000)
		}
		finish(t, s)
	}},
	{"chat around all borders", func(t *testing.T, c conn) {
		s := begin(t, c)
		for _, border := range borders {
			for _, less := range []int{0, 2, 3, 4, 5, 9} {
				inTurn(t, s, max(border-less, 0))
			}
		}
		finish(t, s)
	}},
	{"down around all borders", func(t *testing.T, c conn) {
		for _, n := range borders {
			down(t, c, 3, min(n, full-2), 0) // the number takes two bytes
		}
	}},
	{"up around all borders", func(t *testing.T, c conn) { up(t, c, len(borders), func(i int) int { return borders[i] }) }},
	{"up, empty messages", func(t *testing.T, c conn) { up(t, c, 20_000, func(int) int { return 0 }) }},
	{"up, to a handler that does not read", func(t *testing.T, c conn) {
		s, err := c.Up(with(t.Context(), "x-hold", "1"))
		if err != nil {
			t.Fatal(err)
		}
		const n, size = 2000, 10_000
		var sent atomic.Int32
		done := make(chan error, 1)
		go func() {
			for range n {
				if err := s.Send(&echopb.Message{Data: make([]byte, size)}); err != nil {
					done <- err
					return
				}
				sent.Add(1)
			}
			done <- nil
		}()
		untilWaiting(t, c, 1)
		for range 100 {
			unary(t, c, []byte("beside"))
		}
		if sent.Load() > n/2 {
			t.Errorf("%d messages were sent before any was read", sent.Load())
		}
		see(t, c, "release")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r, err := s.CloseAndRecv(); err != nil || r.GetCount() != n*size {
			t.Errorf("%d bytes arrived, %v", r.GetCount(), err)
		}
	}},
	{"down, beside a stream that is not read", func(t *testing.T, c conn) {
		s, err := c.Down(t.Context(), &echopb.Message{Data: make([]byte, 50_000), Count: 200})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			down(t, c, 100, 50_000, 0)
		}
		for range 200 {
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("got %v, want io.EOF", err)
		}
	}},
	{"a limit of what is sent", func(t *testing.T, c conn) {
		_, err := c.Unary(t.Context(), &echopb.Message{Data: make([]byte, 100)}, grpc.MaxCallSendMsgSize(101))
		wantStatus(t, err, codes.ResourceExhausted, "trying to send message larger than max (102 vs. 101)")
		if _, err := c.Unary(t.Context(), &echopb.Message{Data: make([]byte, 100)}, grpc.MaxCallSendMsgSize(102)); err != nil {
			t.Error(err)
		}
	}},
}

// with returns a context with metadata.
func with(ctx context.Context, kv ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, kv...)
}

// see asks what the server sees: see x-see of the service.
func see(t *testing.T, c conn, key string, opts ...grpc.CallOption) *echopb.Message {
	t.Helper()
	r, err := c.Unary(with(t.Context(), "x-see", key), &echopb.Message{}, opts...)
	if err != nil {
		t.Error(err)
	}
	return r
}

// untilWaiting asks until n handlers wait.
func untilWaiting(t *testing.T, c conn, n int32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		got := see(t, c, "waiting").GetCount()
		if got == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d handlers wait, not %d", got, n)
		}
	}
}

type chatStream = grpc.BidiStreamingClient[echopb.Message, echopb.Message]

// begin begins a chat with metadata.
func begin(t *testing.T, c conn, kv ...string) chatStream {
	t.Helper()
	s, err := c.Chat(with(t.Context(), kv...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// inTurn sends a message and receives the answer.
func inTurn(t *testing.T, s chatStream, size int) {
	t.Helper()
	if err := s.Send(&echopb.Message{Data: make([]byte, size)}); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || len(m.GetData()) != size {
		t.Fatalf("%d of %d bytes came back, %v", len(m.GetData()), size, err)
	}
}

// finish ends a chat.
func finish(t *testing.T, s chatStream) {
	t.Helper()
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
}
