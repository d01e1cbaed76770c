package cpptest

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// statusChecks are about statuses and metadata, and calls that do not have the messages of their method.
var statusChecks = []check{
	{"a status message with every character", func(t *testing.T, c conn) {
		var text strings.Builder
		for i := range 128 {
			text.WriteByte(byte(i))
		}
		text.WriteString("é€😀%41%zz")
		_, err := c.Fail(t.Context(), &echopb.Message{Data: []byte(text.String()), Count: 9})
		wantStatus(t, err, codes.FailedPrecondition, text.String())
	}},
	{"a status message that is empty", func(t *testing.T, c conn) {
		_, err := c.Fail(t.Context(), &echopb.Message{Count: 9})
		wantStatus(t, err, codes.FailedPrecondition, "")
	}},
	{"a status message that is not UTF-8", func(t *testing.T, c conn) {
		_, err := c.Fail(t.Context(), &echopb.Message{Data: []byte("a\xff z"), Count: 5})
		wantStatus(t, err, codes.NotFound, "a\uFFFD z")
		if n := len(status.Convert(err).Proto().GetDetails()); n != 0 {
			t.Errorf("%d details, want none", n)
		}
	}},
	{"a status message of 100 kB", func(t *testing.T, c conn) {
		text := strings.Repeat("é", 50_000)
		_, err := c.Fail(t.Context(), &echopb.Message{Data: []byte(text), Count: 5})
		wantStatus(t, err, codes.NotFound, text)
	}},
	{"trailers only", func(t *testing.T, c conn) {
		s, err := c.Down(with(t.Context(), "x-code", "7", "x-trailer", "t"), &echopb.Message{})
		if err != nil {
			t.Fatal(err)
		}
		if h, err := s.Header(); len(h) > 0 || err != nil {
			t.Errorf("header %v, %v", h, err)
		}
		_, err = s.Recv()
		wantStatus(t, err, codes.PermissionDenied, "ended early")
		wantValues(t, s.Trailer()["x-trailer"], "t")
	}},
	{"a status after messages", func(t *testing.T, c conn) {
		s, err := c.Down(with(t.Context(), "x-code", "10", "x-trailer", "t"), &echopb.Message{Count: 3})
		for range 3 {
			if err == nil {
				_, err = s.Recv()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err = s.Recv()
			wantStatus(t, err, codes.Aborted, "ended early")
		}
		wantValues(t, s.Trailer()["x-trailer"], "t")
	}},
	{"a header with a status and no message", func(t *testing.T, c conn) {
		s, err := c.Down(with(t.Context(), "x-header", "h", "x-code", "10"), &echopb.Message{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := s.Header()
		if err != nil {
			t.Error(err)
		}
		wantValues(t, h["x-header"], "h")
		_, err = s.Recv()
		wantStatus(t, err, codes.Aborted, "ended early")
	}},
	{"a header with the first message", func(t *testing.T, c conn) {
		s := begin(t, c, "x-header", "h", "x-trailer", "t")
		if err := s.Send(&echopb.Message{}); err != nil {
			t.Fatal(err)
		}
		h, err := s.Header()
		if err != nil {
			t.Error(err)
		}
		wantValues(t, h["x-header"], "h")
		if _, err := s.Recv(); err != nil {
			t.Error(err)
		}
		finish(t, s)
		wantValues(t, s.Trailer()["x-trailer"], "t")
	}},
	{"metadata of a stream of requests", func(t *testing.T, c conn) {
		s, err := c.Up(with(t.Context(), "x-header", "h", "x-trailer", "t"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.CloseAndRecv(); err != nil {
			t.Error(err)
		}
		h, err := s.Header()
		if err != nil {
			t.Error(err)
		}
		wantValues(t, h["x-header"], "h")
		wantValues(t, s.Trailer()["x-trailer"], "t")
	}},
	{"metadata with every byte", func(t *testing.T, c conn) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		var h metadata.MD
		if _, err := c.Unary(with(t.Context(), "x-header-bin", string(every), "x-header-bin", ""), &echopb.Message{}, grpc.Header(&h)); err != nil {
			t.Error(err)
		}
		wantValues(t, h["x-header-bin"], string(every), "")
	}},
	{"metadata with every printable character", func(t *testing.T, c conn) {
		var all strings.Builder
		for i := byte(' '); i < 0x7f; i++ {
			all.WriteByte(i)
		}
		var trailer metadata.MD
		if _, err := c.Unary(with(t.Context(), "x-trailer", all.String()), &echopb.Message{}, grpc.Trailer(&trailer)); err != nil {
			t.Error(err)
		}
		wantValues(t, trailer["x-trailer"], all.String())
	}},
	{"metadata with empty values", func(t *testing.T, c conn) {
		var h, trailer metadata.MD
		ctx := with(t.Context(), "x-header", "", "x-header", "a", "x-header", "", "x-trailer", "")
		if _, err := c.Unary(ctx, &echopb.Message{}, grpc.Header(&h), grpc.Trailer(&trailer)); err != nil {
			t.Error(err)
		}
		wantValues(t, h["x-header"], "", "a", "")
		wantValues(t, trailer["x-trailer"], "")
	}},
	{"metadata keys arrive by name", func(t *testing.T, c conn) {
		for _, key := range []string{"a", "0", "x-y_z.9", "trace-bin", "authorization"} {
			r, err := c.Unary(with(t.Context(), "x-see", key, key, "v", key, "w"), &echopb.Message{})
			if got := string(r.GetData()); got != "v;w;" || err != nil {
				t.Errorf("%s: %q, %v", key, got, err)
			}
		}
	}},
	{"metadata, reserved keys", func(t *testing.T, c conn) {
		for _, key := range []string{"te", "grpc-status", "grpc-message", "grpc-encoding", "grpc-timeout"} {
			r, err := c.Unary(with(t.Context(), "x-see", key, key, "v"), &echopb.Message{})
			if got := string(r.GetData()); got != "" || err != nil {
				t.Errorf("%s: %q, %v", key, got, err)
			}
		}
	}},
	{"metadata that is wrong", func(t *testing.T, c conn) {
		for key, value := range map[string]string{"": "v", "a b": "v", "k": "a\nb", "k2": "\x00", "ké": "v"} {
			_, err := c.Unary(metadata.NewOutgoingContext(t.Context(), metadata.MD{key: {value}}), &echopb.Message{})
			if status.Code(err) != codes.Internal {
				t.Errorf("%q, %q: got %v, want Internal", key, value, err)
			}
		}
	}},
	{"metadata of 10000 values of a key", func(t *testing.T, c conn) {
		values := make([]string, 10_000)
		for i := range values {
			values[i] = fmt.Sprint(i)
		}
		var trailer metadata.MD
		if _, err := c.Unary(metadata.NewOutgoingContext(t.Context(), metadata.MD{"x-trailer": values}), &echopb.Message{}, grpc.Trailer(&trailer)); err != nil {
			t.Error(err)
		}
		if strings.Join(trailer["x-trailer"], ";") != strings.Join(values, ";") {
			t.Errorf("%d values came back", len(trailer["x-trailer"]))
		}
	}},
	{"metadata at the limit of the server", func(t *testing.T, c conn) {
		send := func(n int) codes.Code {
			_, err := c.Unary(with(t.Context(), "k", strings.Repeat("h", n)), &echopb.Message{})
			return status.Code(err)
		}
		// What is not metadata has less than 1 kB.
		least := 16<<20 - 1000
		most := sort.Search(1000, func(i int) bool { return send(least+i) != codes.OK }) - 1
		if most < 1 || send(least+most) != codes.OK || send(least+most+1) != codes.Internal {
			t.Errorf("%d bytes: %v, one more: %v", least+most, send(least+most), send(least+most+1))
		}
	}},
	{"a header at the limit of the client", func(t *testing.T, c conn) {
		small := narrow(t, c)
		for above, want := range []codes.Code{codes.OK, codes.Internal} {
			_, err := small.Unary(with(t.Context(), "x-header", strings.Repeat("h", 16384-32-len("x-header")+above)), &echopb.Message{})
			if status.Code(err) != want {
				t.Errorf("%d above the limit: %v", above, err)
			}
		}
	}},
	{"a trailer at the limit of the client", func(t *testing.T, c conn) {
		small := narrow(t, c)
		for above, want := range []codes.Code{codes.OK, codes.Internal} { // the status counts 32 bytes, too
			_, err := small.Unary(with(t.Context(), "x-trailer", strings.Repeat("h", 16384-64-len("x-trailer")+above)), &echopb.Message{})
			if status.Code(err) != want {
				t.Errorf("%d above the limit: %v", above, err)
			}
		}
	}},
	{"methods that nearly exist", func(t *testing.T, c conn) {
		for _, m := range []string{"/nearcall.test.Echo/unary", "/nearcall.test.Echo/Unary/", "/nearcall.test.echo/Unary", "//nearcall.test.Echo/Unary", "/nearcall.test.Echo/"} {
			if err := c.Invoke(t.Context(), m, &echopb.Message{}, &echopb.Message{}); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: got %v, want Unimplemented", m, err)
			}
		}
	}},
	{"a method with a long name", func(t *testing.T, c conn) {
		name := strings.Repeat("n", 1000)
		err := c.Invoke(t.Context(), "/shop."+name+"/Get", &echopb.Message{}, &echopb.Message{})
		wantStatus(t, err, codes.Unimplemented, "unknown service shop."+name[:251]+"...")
	}},
	{"a method with a name that is not ASCII", func(t *testing.T, c conn) {
		err := c.Invoke(t.Context(), "/shöp/Get", &echopb.Message{}, &echopb.Message{})
		wantStatus(t, err, codes.Unimplemented, "unknown service shöp")
		for _, name := range []string{"x" + strings.Repeat("é", 300), "sh\xffp"} { // the 256th byte is the middle of a character
			if err := c.Invoke(t.Context(), "/"+name+"/Get", &echopb.Message{}, &echopb.Message{}); status.Code(err) != codes.Unimplemented {
				t.Errorf("%q: got %v, want Unimplemented", name, err)
			}
		}
	}},
	{"a method with control characters", func(t *testing.T, c conn) {
		if err := c.Invoke(t.Context(), "/shop/G\net", &echopb.Message{}, &echopb.Message{}); status.Code(err) != codes.Internal {
			t.Errorf("got %v, want Internal", err)
		}
		unary(t, c, []byte("after"))
	}},
	{"one reply of a stream to a unary call", func(t *testing.T, c conn) {
		var r echopb.Message
		if err := c.Invoke(t.Context(), "/nearcall.test.Echo/Down", &echopb.Message{Count: 1, Data: []byte("x")}, &r); err != nil || string(r.GetData()) != "x" {
			t.Errorf("%v, %v", &r, err)
		}
	}},
	{"other replies than one to a unary call", func(t *testing.T, c conn) {
		for _, n := range []int32{0, 2, 100} {
			if err := c.Invoke(t.Context(), "/nearcall.test.Echo/Down", &echopb.Message{Count: n}, &echopb.Message{}); status.Code(err) != codes.Internal {
				t.Errorf("%d replies: got %v, want Internal", n, err)
			}
		}
	}},
	{"requests of a stream to a unary method", func(t *testing.T, c conn) {
		for n, want := range []codes.Code{codes.Internal, codes.OK, codes.Internal} {
			s, err := c.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/nearcall.test.Echo/Unary")
			if err != nil {
				t.Fatal(err)
			}
			for range n {
				if err := s.SendMsg(&echopb.Message{}); err != nil && err != io.EOF {
					t.Error(err)
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
			if err := s.RecvMsg(&echopb.Message{}); status.Code(err) != want {
				t.Errorf("%d requests: got %v, want %v", n, err, want)
			}
		}
	}},
}

// narrow returns another client of the same server, which accepts headers and trailers of 16 KiB.
func narrow(t *testing.T, c conn) echopb.EchoClient {
	return echopb.NewEchoClient(dial(t, c.at, c.transport, nearcall.WithMaxHeaderListSize(16384)))
}
