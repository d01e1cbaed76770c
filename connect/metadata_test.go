package nearconnect_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
)

const binary = "\x00\xff, binary"

// answer sets a header and a trailer that depend on the request's header.
func answer(ctx context.Context) {
	info, _ := connect.CallInfoForServerContext(ctx)
	asked := info.RequestHeader()
	info.ResponseHeader().Set("Saw", strings.Join(asked.Values("Words"), "+"))
	info.ResponseHeader().SetValues("Saw-Bin", asked.Values("Words-Bin"))
	info.ResponseTrailer().Set("Last", asked.Get("words"))
	info.ResponseTrailer().SetValues("Last-Bin", asked.Values("Words-Bin"))
}

func TestMetadataOfConnectsClients(t *testing.T) {
	check := func(t *testing.T, info *connect.CallInfo) {
		t.Helper()
		wantText(t, "the header", info.ResponseHeader().Get("saw"), "one+two")
		wantText(t, "the trailer", info.ResponseTrailer().Get("Last"), "one")
		for name, values := range map[string][]string{"header": info.ResponseHeader().Values("Saw-Bin"), "trailer": info.ResponseTrailer().Values("Last-Bin")} {
			if len(values) != 1 {
				t.Errorf("the binary %s has the values %q", name, values)
				continue
			}
			b, err := connect.DecodeBinaryHeader(values[0])
			if err != nil || string(b) != binary {
				t.Errorf("the binary %s is %q, and the error %v", name, b, err)
			}
		}
	}
	onEachPath(t, func(t *testing.T, path string) {
		fails := false
		end := func() error {
			if fails {
				return connect.NewError(connect.CodeAborted, "as asked")
			}
			return nil
		}
		c := clientOf(connectTo(t, path, serverOf(echo{
			unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) { answer(ctx); return m, end() },
			sum: func(ctx context.Context, s echopbconnect.EchoSumServerStream) (*echopb.Message, error) {
				answer(ctx)
				m, _ := sumOf(s.Receive)
				return m, end()
			},
			count: func(ctx context.Context, m *echopb.Message, s echopbconnect.EchoCountServerStream) error {
				answer(ctx)
				_ = countTo(m, s.Send)
				return end()
			},
			chat: func(ctx context.Context, s echopbconnect.EchoChatServerStream) error { answer(ctx); return end() },
		})))
		for _, fails = range []bool{false, true} {
			ask := func() (context.Context, *connect.CallInfo) {
				ctx, info := connect.NewClientContext(t.Context())
				info.RequestHeader().Set("Words", "one")
				info.RequestHeader().Add("words", "two")
				info.RequestHeader().Set("Words-Bin", connect.EncodeBinaryHeader([]byte(binary)))
				return ctx, info
			}
			ctx, info := ask()
			if _, err := c.Unary(ctx, &echopb.Message{}); err != nil != fails {
				t.Errorf("Unary returns %v", err)
			}
			check(t, info)
			ctx, info = ask()
			sum, _ := c.Sum(ctx)
			if _, err := sum.CloseAndReceive(); err != nil != fails {
				t.Errorf("Sum returns %v", err)
			}
			check(t, info)
			ctx, info = ask()
			count, err := c.Count(ctx, &echopb.Message{Number: 1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := count.Receive(); err != nil {
				t.Error(err)
			}
			wantText(t, "the header after the first message", info.ResponseHeader().Get("Saw"), "one+two")
			if _, err := count.Receive(); err == io.EOF == fails {
				t.Errorf("Count ends with %v", err)
			}
			check(t, info)
			ctx, info = ask()
			chat, _ := c.Chat(ctx)
			if _, err := chat.Receive(); err == io.EOF == fails {
				t.Errorf("Chat ends with %v", err)
			}
			check(t, info)
		}
	})
}

// TestMetadataBetweenTheWorlds: what gRPC's side calls metadata is Connect's header and trailer.
func TestMetadataBetweenTheWorlds(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		srv := serverOf(echo{
			unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) { answer(ctx); return m, nil },
			chat: func(ctx context.Context, s echopbconnect.EchoChatServerStream) error {
				answer(ctx)
				return chat(s.Receive, s.Send)
			},
		})
		conn := connectTo(t, path, srv)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "words", "one", "words", "two", "words-bin", binary)
		var header, trailer metadata.MD
		check := func() {
			t.Helper()
			for got, want := range map[string]string{
				strings.Join(header["saw"], ","):       "one+two",
				strings.Join(header["saw-bin"], ","):   binary,
				strings.Join(trailer["last"], ","):     "one",
				strings.Join(trailer["last-bin"], ","): binary,
			} {
				wantText(t, "a value", got, want)
			}
		}
		if err := conn.Invoke(ctx, echopb.Echo_Unary_FullMethodName, &echopb.Message{}, &echopb.Message{}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		check()
		s, err := echopb.NewEchoClient(conn).Chat(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(&echopb.Message{})
		header, _ = s.Header()
		_ = s.CloseSend()
		for err == nil {
			_, err = s.Recv()
		}
		trailer = s.Trailer()
		check()
	})
}

// TestMetadataOfServicesOfGRPC: a handler of gRPC in a server of Connect uses package grpc's functions.
func TestMetadataOfServicesOfGRPC(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		var services nearconnect.Services
		answer := func(ctx context.Context) {
			md, _ := metadata.FromIncomingContext(ctx)
			method, _ := grpc.Method(ctx)
			for _, err := range []error{
				grpc.SetHeader(ctx, metadata.Pairs("method", method)),
				grpc.SetHeader(ctx, metadata.Pairs("saw-bin", md["words-bin"][0])),
				grpc.SetTrailer(ctx, metadata.Pairs("last-bin", md["words-bin"][0])),
			} {
				if err != nil {
					t.Error(err)
				}
			}
		}
		echopb.RegisterEchoServer(&services, grpcEcho{
			unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
				answer(ctx)
				return m, nil
			},
			chat: func(s grpc.BidiStreamingServer[echopb.Message, echopb.Message]) error {
				answer(s.Context())
				if err := s.SendHeader(metadata.Pairs("more", "yes")); err != nil {
					t.Error(err)
				}
				if err := s.SendHeader(nil); err == nil {
					t.Error("a second SendHeader returns no error")
				}
				return chat(s.Recv, s.Send)
			},
		})
		srv := nearcall.NewServer()
		nearconnect.Register(srv, nearconnect.NewServer(&services))
		conn := connectTo(t, path, srv)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "words-bin", binary)
		var header, trailer metadata.MD
		if err := conn.Invoke(ctx, echopb.Echo_Unary_FullMethodName, &echopb.Message{}, &echopb.Message{}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(header["method"], []string{echopb.Echo_Unary_FullMethodName}) || !slices.Equal(header["saw-bin"], []string{binary}) || !slices.Equal(trailer["last-bin"], []string{binary}) {
			t.Errorf("the header is %v and the trailer %v", header, trailer)
		}
		s, err := echopb.NewEchoClient(conn).Chat(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if header, err = s.Header(); err != nil || !slices.Equal(header["more"], []string{"yes"}) || !slices.Equal(header["saw-bin"], []string{binary}) {
			t.Errorf("before the first message the header is %v, and the error %v", header, err)
		}
		_ = s.CloseSend()
		if _, err := s.Recv(); err != io.EOF {
			t.Error(err)
		}
	})
}

func TestHeadersGoFirst(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		began := make(chan string, 1)
		conn := connectTo(t, path, serverOf(echo{
			chat: func(ctx context.Context, s echopbconnect.EchoChatServerStream) error {
				info, _ := connect.CallInfoForServerContext(ctx)
				began <- info.RequestHeader().Get("Early")
				info.ResponseHeader().Set("Early", "reply")
				if err := s.SendHeaders(); err != nil {
					return err
				}
				info.ResponseHeader().Set("Early", "too late")
				if err := s.SendHeaders(); err != nil {
					return err
				}
				return chat(s.Receive, s.Send)
			},
		}))

		// Connect's client: the handler begins although nothing was sent.
		ctx, info := connect.NewClientContext(t.Context())
		s, err := clientOf(conn).Chat(ctx)
		if err != nil {
			t.Fatal(err)
		}
		info.RequestHeader().Set("Early", "request") // only SendHeaders reads it
		for range 2 {
			if err := s.SendHeaders(); err != nil {
				t.Fatal(err)
			}
		}
		wantText(t, "the header", <-began, "request")
		_ = s.Send(&echopb.Message{})
		if _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		wantText(t, "the reply's header", info.ResponseHeader().Get("Early"), "reply")
		_ = s.Close()

		// gRPC's client: the handler's header arrives although nothing was sent.
		g, err := echopb.NewEchoClient(conn).Chat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-began
		if md, err := g.Header(); err != nil || !slices.Equal(md["early"], []string{"reply"}) {
			t.Errorf("the header is %v, and the error %v", md, err)
		}
		_ = g.CloseSend()
		if _, err := g.Recv(); err != io.EOF {
			t.Error(err)
		}
	})
}

func TestCallInfo(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		var seen connect.CallInfo
		note := func(ctx context.Context) {
			info, _ := connect.CallInfoForServerContext(ctx)
			seen = *info
		}
		c := clientOf(connectTo(t, path, serverOf(echo{
			unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) { note(ctx); return m, nil },
			count: func(ctx context.Context, m *echopb.Message, s echopbconnect.EchoCountServerStream) error {
				note(ctx)
				return countTo(m, s.Send)
			},
		})))
		check := func(info *connect.CallInfo) {
			t.Helper()
			for name, i := range map[string]*connect.CallInfo{"caller": info, "handler": &seen} {
				wantText(t, "the "+name+"'s protocol", i.Protocol, nearconnect.ProtocolName)
				wantText(t, "the "+name+"'s codec", i.Codec, "proto")
				wantText(t, "the "+name+"'s encoding", i.RequestEncoding, "identity")
				if known := i.PeerAddr != ""; known != (path != "inproc") && (name == "caller" || path == "tcp") {
					t.Errorf("the %s's peer is %q", name, i.PeerAddr)
				}
			}
			wantText(t, "the handler's procedure", seen.Spec.Procedure, info.Spec.Procedure)
			if agent := seen.RequestHeader().Get("User-Agent"); strings.HasPrefix(agent, "nearcall/") == (path == "inproc") {
				t.Errorf("the user agent is %q", agent)
			}
		}
		ctx, info := connect.NewClientContext(t.Context())
		if _, err := c.Unary(ctx, &echopb.Message{}); err != nil {
			t.Fatal(err)
		}
		check(info)
		s, err := c.Count(ctx, &echopb.Message{Number: 1})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Receive()
		check(info)
		_ = s.Close()
	})
}

func TestABinaryHeaderMustBeBase64(t *testing.T) {
	c := clientOf(connectTo(t, "inproc", serverOf(echo{})))
	ctx, info := connect.NewClientContext(t.Context())
	info.RequestHeader().Set("Wrong-Bin", "*")
	_, err := c.Unary(ctx, &echopb.Message{})
	wantCode(t, err, connect.CodeInternal)
	_, err = c.Count(ctx, &echopb.Message{})
	wantCode(t, err, connect.CodeInternal)
}

// TestMetadataOfGRPCGoesAlong: what a program puts into the context with package metadata is sent, too.
func TestMetadataOfGRPCGoesAlong(t *testing.T) {
	var got *connect.Header
	c := clientOf(connectTo(t, "inproc", serverOf(echo{unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
		info, _ := connect.CallInfoForServerContext(ctx)
		got = info.RequestHeader()
		return m, nil
	}})))
	ctx, info := connect.NewClientContext(metadata.AppendToOutgoingContext(t.Context(), "by-grpc", "1", "both", "1"))
	info.RequestHeader().Set("By-Connect", "2")
	info.RequestHeader().Set("Both", "2")
	if _, err := c.Unary(ctx, &echopb.Message{}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"By-Grpc": "1", "By-Connect": "2", "Both": "1 2"} {
		wantText(t, key, strings.Join(got.Values(key), " "), want)
	}
}
