package cpptest

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// endingChecks are about calls that end before their time.
var endingChecks = []check{
	{"a deadline reaches the handler", func(t *testing.T, c conn) {
		ctx, cancel := context.WithTimeout(with(t.Context(), "x-see", "deadline"), time.Minute)
		defer cancel()
		if r, err := c.Unary(ctx, &echopb.Message{}); err != nil || r.GetCount() < 30_000 || r.GetCount() > 60_001 {
			t.Errorf("%d ms, %v", r.GetCount(), err)
		}
	}},
	{"no deadline reaches the handler", func(t *testing.T, c conn) {
		if n := see(t, c, "deadline").GetCount(); n != 0 {
			t.Errorf("%d ms", n)
		}
	}},
	{"a deadline ends the handler", func(t *testing.T, c conn) {
		_, err := c.Slow(soon(t), &echopb.Message{})
		wantCode(t, err, codes.DeadlineExceeded)
		untilWaiting(t, c, 0)
	}},
	{"a deadline that has passed", func(t *testing.T, c conn) {
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		defer cancel()
		_, err := c.Slow(ctx, &echopb.Message{})
		wantCode(t, err, codes.DeadlineExceeded)
		untilWaiting(t, c, 0)
	}},
	{"a deadline during an upload", func(t *testing.T, c conn) {
		s, err := c.Up(with(soon(t), "x-hold", "1"))
		for err == nil {
			err = s.Send(&echopb.Message{Data: make([]byte, 100_000)})
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		_, err = s.CloseAndRecv()
		wantCode(t, err, codes.DeadlineExceeded)
		untilWaiting(t, c, 0)
	}},
	{"a deadline during a download", func(t *testing.T, c conn) {
		s, err := c.Down(soon(t), &echopb.Message{Data: make([]byte, 10_000), Count: 1 << 30})
		for err == nil {
			_, err = s.Recv()
		}
		wantCode(t, err, codes.DeadlineExceeded)
		unary(t, c, []byte("after"))
	}},
	{"a deadline after the half-close", func(t *testing.T, c conn) {
		s, err := c.Chat(with(soon(t), "x-hold", "1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.CloseSend(); err != nil {
			t.Error(err)
		}
		_, err = s.Recv()
		wantCode(t, err, codes.DeadlineExceeded)
		untilWaiting(t, c, 0)
	}},
	{"100 deadlines at a time", func(t *testing.T, c conn) {
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				_, err := c.Slow(soon(t), &echopb.Message{})
				wantCode(t, err, codes.DeadlineExceeded)
			})
		}
		wg.Wait()
		untilWaiting(t, c, 0)
	}},
	{"cancelled before the call", func(t *testing.T, c conn) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Slow(ctx, &echopb.Message{})
		wantCode(t, err, codes.Canceled)
		untilWaiting(t, c, 0)
	}},
	{"cancelled while the handler runs", func(t *testing.T, c conn) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Slow(ctx, &echopb.Message{})
			done <- err
		}()
		untilWaiting(t, c, 1)
		cancel()
		wantCode(t, <-done, codes.Canceled)
		untilWaiting(t, c, 0)
	}},
	{"cancelled before the header", cancelled(func(t *testing.T, c conn, s chatStream) {}, "x-hold", "1")},
	{"cancelled between messages", cancelled(func(t *testing.T, c conn, s chatStream) {
		for range 10 {
			inTurn(t, s, 10)
		}
	})},
	{"cancelled after the half-close", cancelled(func(t *testing.T, c conn, s chatStream) {
		if err := s.CloseSend(); err != nil {
			t.Error(err)
		}
		untilWaiting(t, c, 1)
	}, "x-hold", "1")},
	{"cancelled with messages on their way", cancelled(func(t *testing.T, c conn, s chatStream) {
		for range 5 {
			if err := s.Send(&echopb.Message{Data: make([]byte, 10_000)}); err != nil {
				t.Error(err)
			}
		}
	}, "x-hold", "1")},
	{"cancelled during a large message", func(t *testing.T, c conn) {
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := c.Up(with(ctx, "x-hold", "1"))
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				var err error
				for err == nil {
					err = s.Send(&echopb.Message{Data: make([]byte, 3<<20)})
				}
				done <- s.RecvMsg(&echopb.Message{})
			}()
			untilWaiting(t, c, 1)
			cancel()
			wantCode(t, <-done, codes.Canceled)
			untilWaiting(t, c, 0)
		}
	}},
	{"cancelled during large replies", func(t *testing.T, c conn) {
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := c.Down(ctx, &echopb.Message{Data: make([]byte, 3<<20), Count: 100})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Error(err)
			}
			cancel()
		}
		unary(t, c, []byte("after"))
	}},
	{"cancelled after the end", func(t *testing.T, c conn) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := c.Down(ctx, &echopb.Message{Count: 1})
		if err == nil {
			_, err = s.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("got %v, want io.EOF", err)
			}
			cancel()
		}
	}},
	{"cancelled beside another call", func(t *testing.T, c conn) {
		ctx, cancel := context.WithCancel(t.Context())
		gone, err := c.Chat(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s := begin(t, c)
		inTurn(t, gone, 1)
		inTurn(t, s, 1)
		cancel()
		_, err = gone.Recv()
		wantCode(t, err, codes.Canceled)
		inTurn(t, s, 1)
		finish(t, s)
	}},
	{"a handler that sends first", func(t *testing.T, c conn) {
		s := begin(t, c, "x-first", "100")
		for i := range int32(100) {
			if m, err := s.Recv(); err != nil || m.GetCount() != i {
				t.Fatalf("%v, %v", m, err)
			}
		}
		finish(t, s)
	}},
	{"a handler that ends before the half-close", func(t *testing.T, c conn) {
		s, err := c.Up(with(t.Context(), "x-after", "3"))
		for err == nil {
			err = s.Send(&echopb.Message{Data: []byte("four")})
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		if r, err := s.CloseAndRecv(); err != nil || r.GetCount() != 12 {
			t.Errorf("%d, %v", r.GetCount(), err)
		}
	}},
	{"a handler that fails before the half-close", func(t *testing.T, c conn) {
		s, err := c.Up(with(t.Context(), "x-after", "0", "x-code", "9", "x-trailer", "t"))
		for err == nil {
			err = s.Send(&echopb.Message{Data: make([]byte, 100_000)})
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		_, err = s.CloseAndRecv()
		wantStatus(t, err, codes.FailedPrecondition, "ended early")
		wantValues(t, s.Trailer()["x-trailer"], "t")
	}},
	{"a chat that its handler ends", func(t *testing.T, c conn) {
		s := begin(t, c, "x-after", "3", "x-code", "11")
		for i := range 3 {
			inTurn(t, s, i)
		}
		_, err := s.Recv()
		wantStatus(t, err, codes.OutOfRange, "ended early")
		if err := s.Send(&echopb.Message{}); err != io.EOF {
			t.Errorf("got %v, want io.EOF", err)
		}
	}},
	{"a half-close that is repeated", func(t *testing.T, c conn) {
		s := begin(t, c)
		inTurn(t, s, 1)
		for range 3 {
			finish(t, s)
		}
	}},
}

// soon returns a context that ends in 50 ms.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// cancelled is a check that cancels a chat after something has been done with it.
func cancelled(do func(t *testing.T, c conn, s chatStream), kv ...string) func(*testing.T, conn) {
	return func(t *testing.T, c conn) {
		ctx, cancel := context.WithCancel(with(t.Context(), kv...))
		s, err := c.Chat(ctx)
		if err != nil {
			t.Fatal(err)
		}
		do(t, c, s)
		cancel()
		_, err = s.Recv()
		wantCode(t, err, codes.Canceled)
		untilWaiting(t, c, 0)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

// backChecks are about calls of the server to its client.
var backChecks = []check{
	{"the server reads a stream of the client", func(t *testing.T, c conn) {
		for _, n := range []int32{0, 1, 1000} {
			back(t, c, "Down", n, 100, n)
		}
		back(t, c, "Down", 20, 200_000, 20)
	}},
	{"the server sends the client a stream", func(t *testing.T, c conn) {
		for _, n := range []int32{0, 1, 1000} {
			back(t, c, "Up", n, 100, 100*n)
		}
		back(t, c, "Up", 20, 200_000, 4_000_000)
	}},
	{"the server chats with the client", func(t *testing.T, c conn) {
		for _, n := range []int32{0, 1, 200} {
			back(t, c, "Chat", n, 100, n)
		}
	}},
	{"the client calls the server that calls it", func(t *testing.T, c conn) {
		r, err := c.Back(with(t.Context(), "x-back", "Back"), &echopb.Message{Data: []byte("twice")})
		if err != nil || string(r.GetData()) != "twice" {
			t.Errorf("%v, %v", r, err)
		}
	}},
	{"the client fails calls of the server", func(t *testing.T, c conn) {
		for code := int32(1); code <= 16; code++ {
			_, err := c.Back(with(t.Context(), "x-back", "Fail"), &echopb.Message{Data: []byte("no"), Count: code})
			wantStatus(t, err, codes.Code(code), "no")
			if n := len(status.Convert(err).Proto().GetDetails()); n != 1 {
				t.Errorf("%d details, want 1", n)
			}
		}
	}},
	{"the server calls back during a stream", func(t *testing.T, c conn) {
		s := begin(t, c)
		for range 50 {
			if err := s.Send(&echopb.Message{}); err != nil {
				t.Fatal(err)
			}
			back(t, c, "Down", 3, 10, 3)
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, s)
	}},
	{"a deadline reaches calls back", func(t *testing.T, c conn) {
		_, err := c.Back(with(soon(t), "x-back", "Slow"), &echopb.Message{})
		wantCode(t, err, codes.DeadlineExceeded)
		back(t, c, "Down", 1, 1, 1)
	}},
	{"64 callers that are called back", func(t *testing.T, c conn) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				switch i % 3 {
				case 0:
					back(t, c, "Down", 20, i, 20)
				case 1:
					back(t, c, "Up", 20, i, int32(20*i))
				case 2:
					back(t, c, "Chat", 20, i, 20)
				}
			})
		}
		wg.Wait()
	}},
}

// back has the server call a method of the client, and checks the count that comes back.
func back(t *testing.T, c conn, method string, n int32, size int, want int32) {
	t.Helper()
	r, err := c.Back(with(t.Context(), "x-back", method), &echopb.Message{Data: make([]byte, size), Count: n})
	if err != nil || r.GetCount() != want {
		t.Errorf("%s with %d messages: %d, %v", method, n, r.GetCount(), err)
	}
}

// serverChecks are about servers that come and go.
var serverChecks = []check{
	{"a server that starts late", func(t *testing.T, c conn) {
		at := later(t, c.transport)
		other := echopb.NewEchoClient(dial(t, at, c.transport))
		_, err := other.Unary(t.Context(), &echopb.Message{})
		wantCode(t, err, codes.Unavailable)
		done := make(chan error, 1)
		go func() {
			_, err := other.Unary(t.Context(), &echopb.Message{}, grpc.WaitForReady(true))
			done <- err
		}()
		cmd, _ := serveCPP(t, at)
		if err := <-done; err != nil {
			t.Error(err)
		}
		stopCPP(t, cmd)
	}},
	{"a server that starts again", func(t *testing.T, c conn) {
		at := later(t, c.transport)
		other := echopb.NewEchoClient(dial(t, at, c.transport))
		for range 2 {
			cmd, _ := serveCPP(t, at)
			for range 10 {
				if _, err := other.Unary(t.Context(), &echopb.Message{}, grpc.WaitForReady(true)); err != nil {
					t.Error(err)
				}
			}
			stopCPP(t, cmd)
		}
	}},
	{"a server that stops gracefully", func(t *testing.T, c conn) {
		at := later(t, c.transport)
		cmd, _ := serveCPP(t, at)
		cc := dial(t, at, c.transport)
		other := conn{cc, echopb.NewEchoClient(cc), at, c.transport}
		chat := begin(t, other)
		inTurn(t, chat, 10)
		up, err := other.Up(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		down, err := other.Down(t.Context(), &echopb.Message{Data: make([]byte, 10_000), Count: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if err := up.Send(&echopb.Message{Data: []byte("four")}); err != nil {
			t.Fatal(err)
		}
		if _, err := down.Recv(); err != nil {
			t.Fatal(err)
		}
		slow := make(chan error, 1)
		go func() {
			_, err := other.Slow(soon(t), &echopb.Message{})
			slow <- err
		}()
		stopped := make(chan struct{})
		go func() {
			stopCPP(t, cmd)
			close(stopped)
		}()
		for range 999 {
			if _, err := down.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := down.Recv(); err != io.EOF {
			t.Errorf("got %v, want io.EOF", err)
		}
		if r, err := up.CloseAndRecv(); err != nil || r.GetCount() != 4 {
			t.Errorf("%d, %v", r.GetCount(), err)
		}
		inTurn(t, chat, 100_000)
		finish(t, chat)
		if code := status.Code(<-slow); code != codes.DeadlineExceeded && code != codes.Unavailable { // it may come too late for the server
			t.Errorf("the slow call: %v", code)
		}
		<-stopped
	}},
	{"a server that dies", func(t *testing.T, c conn) {
		at := later(t, c.transport)
		cmd, _ := serveCPP(t, at)
		cc := dial(t, at, c.transport)
		other := conn{cc, echopb.NewEchoClient(cc), at, c.transport}
		s := begin(t, other)
		inTurn(t, s, 10)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Recv()
		wantCode(t, err, codes.Unavailable)
		_ = cmd.Wait() // says that it was killed
		_, err = other.Unary(t.Context(), &echopb.Message{})
		wantCode(t, err, codes.Unavailable)
	}},
}
