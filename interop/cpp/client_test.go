package cpptest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// dial returns a client that also serves the tests' service.
func dial(t *testing.T, at, transport string, opts ...nearcall.DialOption) *nearcall.ClientConn {
	own := nearcall.NewServer()
	echopb.RegisterEchoServer(own, &service{})
	opts = append(opts, nearcall.WithServer(own))
	switch transport {
	case "unix":
		opts = append(opts, nearcall.WithDisableSharedMemory())
	case "tcp":
		opts = append(opts, nearcall.WithTransportCredentials(insecure.NewCredentials()))
	case "tls":
		opts = append(opts, nearcall.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: certificates.pool})))
		at = "tcp" + strings.TrimPrefix(at, "tls")
	}
	conn, err := nearcall.NewClient(at, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		own.Stop()
	})
	return conn
}

// conn is what a check uses.
type conn struct {
	*nearcall.ClientConn
	echopb.EchoClient
	at, transport string
}

// check is something that Go's clients rely on in servers in C++.
type check struct {
	name  string
	check func(t *testing.T, c conn)
}

var checks = []check{
	{"unary", func(t *testing.T, c conn) {
		for i := range 1000 {
			unary(t, c, fmt.Append(nil, i))
		}
	}},
	{"peer", func(t *testing.T, c conn) {
		var p peer.Peer
		if _, err := c.Unary(t.Context(), &echopb.Message{}, grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		if got := p.Addr.Network(); got != strings.Replace(c.transport, "tls", "tcp", 1) {
			t.Errorf("the peer's network is %q, not %q", got, c.transport)
		}
	}},
	{"sizes", func(t *testing.T, c conn) {
		for _, n := range []int{0, 1, 4095, 16383, 16384, 32767, 32768, 65530, 65535, 65536, 131072, 300_000, 1 << 20, 4_194_000} {
			unary(t, c, make([]byte, n))
		}
	}},
	{"large replies", func(t *testing.T, c conn) {
		for _, n := range []int32{100_000, 1 << 20, 15 << 20} {
			r, err := c.Unary(t.Context(), &echopb.Message{Count: n}, grpc.MaxCallRecvMsgSize(16<<20))
			if err != nil || len(r.GetData()) != int(n) {
				t.Errorf("a reply of %d bytes: %d bytes, %v", n, len(r.GetData()), err)
			}
		}
	}},
	{"too large", func(t *testing.T, c conn) {
		_, err := c.Unary(t.Context(), &echopb.Message{Data: make([]byte, 5<<20)})
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (5242885 vs. 4194304)")
		_, err = c.Unary(t.Context(), &echopb.Message{Count: 5 << 20})
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message larger than max (5242885 vs. 4194304)")
		unary(t, c, []byte("after"))
	}},
	{"64 callers", func(t *testing.T, c conn) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for k := range 100 {
					unary(t, c, bytes.Repeat([]byte{byte(k)}, i*k))
				}
			})
		}
		wg.Wait()
	}},
	{"1500 calls at a time", func(t *testing.T, c conn) {
		var wg sync.WaitGroup
		for i := range 1500 {
			wg.Go(func() { unary(t, c, fmt.Append(nil, i)) })
		}
		wg.Wait()
	}},
	{"metadata", func(t *testing.T, c conn) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-header", "1", "x-trailer", "3", "x-header", "2",
			"x-header-bin", "\x00,\xff")
		var header, trailer metadata.MD
		if _, err := c.Unary(ctx, &echopb.Message{}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		wantValues(t, header["x-header"], "1", "2")
		wantValues(t, header["x-header-bin"], "\x00,\xff")
		wantValues(t, trailer["x-trailer"], "3")
	}},
	{"much metadata", func(t *testing.T, c conn) {
		big := strings.Repeat("h", 100_000)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-header", big, "x-trailer", big)
		var header, trailer metadata.MD
		if _, err := c.Unary(ctx, &echopb.Message{}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		wantValues(t, header["x-header"], big)
		wantValues(t, trailer["x-trailer"], big)
		many := metadata.MD{}
		for i := range 3000 {
			many.Set(fmt.Sprint("key-", i), "v")
		}
		for range 3 {
			if _, err := c.Unary(metadata.NewOutgoingContext(t.Context(), many), &echopb.Message{}); err != nil {
				t.Error(err)
			}
		}
	}},
	{"too much metadata", func(t *testing.T, c conn) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-header", strings.Repeat("h", 17_000_000))
		_, err := c.Unary(ctx, &echopb.Message{})
		if status.Code(err) != codes.Internal {
			t.Errorf("got %v, want Internal", err)
		}
		unary(t, c, []byte("after"))
	}},
	{"statuses", func(t *testing.T, c conn) {
		var trailer metadata.MD
		for code := int32(1); code <= 17; code++ {
			_, err := c.Fail(t.Context(), &echopb.Message{Data: []byte("not hére"), Count: code}, grpc.Trailer(&trailer))
			wantStatus(t, err, codes.Code(code), "not hére")
			if n := len(status.Convert(err).Proto().GetDetails()); n != 1 {
				t.Errorf("%d details, want 1", n)
			}
			wantValues(t, trailer["x-trailer"], "failed")
		}
	}},
	{"unknown methods", func(t *testing.T, c conn) {
		for method, text := range map[string]string{
			"/nearcall.test.Echo/Nothing": "unknown method Nothing for service nearcall.test.Echo",
			"/shop.Shop/Get":              "unknown service shop.Shop",
			"/nothing":                    `malformed method name: "/nothing"`,
		} {
			err := c.Invoke(t.Context(), method, &echopb.Message{}, &echopb.Message{})
			wantStatus(t, err, codes.Unimplemented, text)
		}
	}},
	{"deadline", func(t *testing.T, c conn) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		_, err := c.Slow(ctx, &echopb.Message{})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		unary(t, c, []byte("after"))
	}},
	{"cancel", func(t *testing.T, c conn) {
		for i := range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := c.Slow(ctx, &echopb.Message{})
				done <- err
			}()
			if i%2 == 0 {
				unary(t, c, []byte("meanwhile"))
			}
			cancel()
			if err := <-done; status.Code(err) != codes.Canceled {
				t.Errorf("got %v, want Canceled", err)
			}
		}
	}},
	{"gzip", func(t *testing.T, c conn) {
		for _, n := range []int{0, 1, 100, 40_000, 1_000_000} {
			r, err := c.Unary(t.Context(), &echopb.Message{Data: make([]byte, n)}, grpc.UseCompressor(gzip.Name))
			if err != nil || len(r.GetData()) != n {
				t.Errorf("%d bytes: %d came back, %v", n, len(r.GetData()), err)
			}
		}
		_, err := c.Unary(t.Context(), &echopb.Message{Data: make([]byte, 5<<20)}, grpc.UseCompressor(gzip.Name))
		wantStatus(t, err, codes.ResourceExhausted, "grpc: received message after decompression larger than max 4194304")
	}},
	{"an encoding that the server does not know", func(t *testing.T, c conn) {
		_, err := c.Unary(t.Context(), &echopb.Message{Data: []byte("x")}, grpc.UseCompressor(plain{}.Name()))
		wantStatus(t, err, codes.Unimplemented, `grpc: Decompressor is not installed for grpc-encoding "plain"`)
	}},
	{"calls back", func(t *testing.T, c conn) {
		for _, n := range []int{4, 100_000, 1 << 20} {
			r, err := c.Back(t.Context(), &echopb.Message{Data: make([]byte, n)})
			if err != nil || len(r.GetData()) != n {
				t.Errorf("%d bytes there and back: %d, %v", n, len(r.GetData()), err)
			}
		}
	}},
	{"down", func(t *testing.T, c conn) {
		for _, n := range []int{0, 1, 5000} {
			down(t, c, n, 30, 0)
		}
	}},
	{"down, large", func(t *testing.T, c conn) { down(t, c, 30, 1_000_000, 0) }},
	{"down, slow reader", func(t *testing.T, c conn) {
		down(t, c, 200, 3000, 10)
		down(t, c, 40, 100_000, 4)
	}},
	{"down, many", func(t *testing.T, c conn) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() { down(t, c, 100, i*100, 0) })
		}
		wg.Wait()
	}},
	{"down, given up", func(t *testing.T, c conn) {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := c.Down(ctx, &echopb.Message{Count: 1_000_000, Data: make([]byte, 100)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		for err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.Canceled {
			t.Errorf("got %v, want Canceled", err)
		}
	}},
	{"up", func(t *testing.T, c conn) { up(t, c, 5000, func(int) int { return 4 }) }},
	{"up, nothing", func(t *testing.T, c conn) { up(t, c, 0, nil) }},
	{"up, unequal sizes", func(t *testing.T, c conn) {
		up(t, c, 400, func(i int) int {
			switch {
			case i%7 == 0:
				return 200_000 + i
			case i%3 == 0:
				return 30_000 + i
			}
			return i
		})
	}},
	{"up, around the window", func(t *testing.T, c conn) {
		for _, n := range []int{65531, 65536, 262_139, 262_144, 262_149, 300_000} {
			up(t, c, 10, func(int) int { return n })
		}
	}},
	{"chat", func(t *testing.T, c conn) {
		s, err := c.Chat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range int32(500) {
			if err := s.Send(&echopb.Message{Count: i}); err != nil {
				t.Fatal(err)
			}
			if m, err := s.Recv(); err != nil || m.GetCount() != i {
				t.Fatalf("%v, %v", m, err)
			}
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("got %v, want io.EOF", err)
		}
	}},
	{"chat, both ways at a time", func(t *testing.T, c conn) {
		for _, size := range []int{10, 2000, 40_000, 300_000} {
			chat(t, c, min(2000, 20_000_000/size), size, 0)
		}
	}},
	{"chat, slow reader", func(t *testing.T, c conn) { chat(t, c, 100, 50_000, 10) }},
	{"chat, cancelled", func(t *testing.T, c conn) {
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := c.Chat(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range i % 5 {
				if err := s.Send(&echopb.Message{Data: make([]byte, i*1000)}); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
		}
		unary(t, c, []byte("after"))
	}},
}

// plain is an encoding that changes nothing.
type plain struct{}

func init() { encoding.RegisterCompressor(plain{}) }

func (plain) Name() string                                 { return "plain" }
func (plain) Compress(w io.Writer) (io.WriteCloser, error) { return closer{w}, nil }
func (plain) Decompress(r io.Reader) (io.Reader, error)    { return r, nil }

type closer struct{ io.Writer }

func (closer) Close() error { return nil }

// TestGoClient runs Go's clients against servers in C++.
func TestGoClient(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			at := startCPP(t, transport)
			cc := dial(t, at, transport)
			for _, c := range slices.Concat(checks, sizeChecks, statusChecks, endingChecks, backChecks, serverChecks) {
				t.Run(c.name, func(t *testing.T) { c.check(t, conn{cc, echopb.NewEchoClient(cc), at, transport}) })
			}
		})
	}
}

func unary(t *testing.T, c conn, data []byte) {
	t.Helper()
	r, err := c.Unary(t.Context(), &echopb.Message{Data: data})
	if err != nil || !bytes.Equal(r.GetData(), data) {
		t.Errorf("%d bytes: %d came back, %v", len(data), len(r.GetData()), err)
	}
}

func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if s := status.Convert(err); s.Code() != code || s.Message() != text {
		t.Errorf("got %v: %q, want %v: %q", s.Code(), s.Message(), code, text)
	}
}

func wantValues(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %.100q, want %.100q", got, want)
	}
}

// down receives n messages, and waits after each of the first `slow`.
func down(t *testing.T, c conn, n, size, slow int) {
	t.Helper()
	s, err := c.Down(t.Context(), &echopb.Message{Count: int32(n), Data: make([]byte, size)})
	if err != nil {
		t.Error(err)
		return
	}
	for i := 0; ; i++ {
		m, err := s.Recv()
		if err != nil {
			if i != n || err != io.EOF {
				t.Errorf("%d of %d messages of %d bytes came, then %v", i, n, size, err)
			}
			return
		}
		if int(m.GetCount()) != i || len(m.GetData()) != size {
			t.Errorf("message %d is number %d, with %d bytes", i, m.GetCount(), len(m.GetData()))
		}
		if i < slow {
			time.Sleep(time.Millisecond)
		}
	}
}

func up(t *testing.T, c conn, n int, size func(int) int) {
	t.Helper()
	s, err := c.Up(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for i := range n {
		all += size(i)
		if err := s.Send(&echopb.Message{Data: make([]byte, size(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.CloseAndRecv(); err != nil || int(r.GetCount()) != all {
		t.Errorf("%d of %d bytes arrived, %v", r.GetCount(), all, err)
	}
}

// chat sends n messages and receives them at the same time.
func chat(t *testing.T, c conn, n, size, slow int) {
	t.Helper()
	s, err := c.Chat(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := s.Send(&echopb.Message{Data: make([]byte, size+i%17), Count: int32(i)}); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseSend()
	}()
	for i := 0; ; i++ {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) && i == n {
			break
		}
		if err != nil || int(m.GetCount()) != i {
			t.Fatalf("message %d of %d: %d, %v", i, n, m.GetCount(), err)
		}
		if i < slow {
			time.Sleep(time.Millisecond)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
