package quic

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	q "github.com/quic-go/quic-go"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/wire"
)

// fuzzLimit is how long an input may take. It is far below QUIC's own time limits, and so finds
// whatever waits for them.
const fuzzLimit = 10 * time.Second

// call returns the frames of a call of method with a message.
func call(method string, message []byte) []byte {
	return framesOf(&wire.Step{
		Open:       &link.CallHeader{Method: "/grpc.testing.TestService/" + method, Profile: &link.Profile{}},
		HasMessage: true, Message: message, HalfClose: true,
	})
}

func framesOf(step *wire.Step) (b []byte) {
	e := wire.Encoder{Literal: true}
	for step.Stream = 1; !step.Done(); {
		b, _ = e.Append(b, step, math.MaxInt)
	}
	return b
}

// sessionTo returns the client's session of a new connection to target.
func sessionTo(t testing.TB, target string) *session {
	_, config := testTLS()
	made, err := newDialer(target, strings.TrimPrefix(target, "quic:"), &registry.Settings{Config: clientOptions(), TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	s, err := made.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.(*session)
}

// FuzzCall sends a server what a call must not be. The call ends, the answer has the form of one,
// and other calls go on.
func FuzzCall(f *testing.F) {
	f.Add(call("UnaryCall", nil), uint16(0))
	f.Add(call("UnaryCall", []byte{10, 3, 18, 1, 'x'}), uint16(7))
	f.Add(call("FullDuplexCall", []byte{26, 3, 18, 1, 'x'}), uint16(3))
	f.Add(append(head(false), frame(wire.KindPart, 1, "x")...), uint16(1))
	f.Add(append(head(false), wire.AppendReset(nil, 1, wire.ResetCancelled, "why")...), uint16(0))
	_, target := serve(f, service{stream: func(st testpb.TestService_FullDuplexCallServer) error {
		for {
			in, err := st.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := st.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
				return err
			}
		}
	}})
	s := sessionTo(f, target)
	f.Cleanup(func() { _ = s.Close(context.Canceled) })
	answer := func(t *testing.T, sent []byte, cut uint16) []byte {
		ctx, cancel := context.WithTimeout(t.Context(), fuzzLimit)
		defer cancel()
		qs, err := s.conn.OpenStreamSync(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = qs.SetDeadline(time.Now().Add(fuzzLimit))
		at := min(int(cut), len(sent))
		_, _ = qs.Write(sent[:at])
		_, _ = qs.Write(sent[at:])
		_ = qs.Close()
		b, err := io.ReadAll(qs)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Fatalf("the call does not end; it was answered %q", b)
		}
		return b
	}
	f.Fuzz(func(t *testing.T, sent []byte, cut uint16) {
		var d wire.Decoder
		d.Block = 1 << 30
		var parts []byte
		for b := answer(t, sent, cut); len(b) > 0; {
			frame, n, err := wire.Next(b)
			if err != nil || n == 0 {
				t.Fatalf("the answer ends with %q: %v", b, err)
			}
			b = b[n:]
			switch {
			case frame.Kind == wire.KindPart:
				parts = append(parts, frame.Body...)
			case frame.Kind.Stream():
				if _, err := d.Stream(frame, parts, false); err != nil {
					t.Fatalf("the answer has %+v: %v", frame, err)
				}
				parts = nil
			}
		}
		if b := answer(t, call("UnaryCall", nil), 0); len(b) == 0 {
			t.Fatalf("a call afterwards is not answered: %v", context.Cause(s.conn.Context()))
		}
	})
}

// FuzzControl sends a server what a control stream must not be, and ends it. Then the server ends
// the connection.
func FuzzControl(f *testing.F) {
	hello := wire.AppendHello(nil, &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	f.Add(hello, uint16(0))
	f.Add(append(bytes.Clone(hello), hello...), uint16(9))
	f.Add(wire.AppendDrain(bytes.Clone(hello), 3), uint16(9))
	f.Add(hello[:len(hello)-1], uint16(3))
	_, target := serve(f, service{})
	to, err := net.ResolveUDPAddr("udp", strings.TrimPrefix(target, "quic:"))
	if err != nil {
		f.Fatal(err)
	}
	pc, err := net.ListenUDP("udp", nil)
	if err != nil {
		f.Fatal(err)
	}
	tr := &q.Transport{Conn: pc}
	f.Cleanup(func() { _, _ = tr.Close(), pc.Close() })
	_, config := testTLS()
	config = secured(config)
	f.Fuzz(func(t *testing.T, sent []byte, cut uint16) {
		conn, err := tr.Dial(t.Context(), to, config, &q.Config{MaxIncomingUniStreams: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseWithError(0, "") }()
		control, err := conn.OpenUniStream()
		if err != nil {
			t.Fatal(err)
		}
		at := min(int(cut), len(sent))
		_, _ = control.Write(sent[:at])
		_, _ = control.Write(sent[at:])
		_ = control.Close()
		select {
		case <-conn.Context().Done():
		case <-time.After(fuzzLimit):
			t.Fatal("the server does not end the connection")
		}
	})
}

// FuzzReply answers a client's calls with what a reply must not be. The calls end, and not
// because of their deadline.
func FuzzReply(f *testing.F) {
	end := wire.Step{End: &link.End{}, HasMessage: true, Message: []byte{10, 3, 18, 1, 'x'}}
	f.Add(framesOf(&end))
	f.Add(framesOf(&wire.Step{End: &link.End{}}))
	f.Add(wire.AppendReset(nil, 1, wire.ResetUnprocessed, "no"))
	f.Add(frame(wire.KindPart, 1, "x"))
	server, _ := testTLS()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		f.Fatal(err)
	}
	tr := &q.Transport{Conn: pc}
	lis, err := tr.Listen(secured(server), &q.Config{MaxIncomingUniStreams: 1, MaxIncomingStreams: 1000})
	if err != nil {
		f.Fatal(err)
	}
	replies := make(chan []byte, 1)
	go answerWith(lis, replies)
	_, config := testTLS()
	conn, err := nearcall.NewClient("quic:"+pc.LocalAddr().String(), nearcall.WithTransportCredentials(nearcall.NewTLS(config)))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _, _, _, _ = conn.Close(), lis.Close(), tr.Close(), pc.Close() })
	client := testpb.NewTestServiceClient(conn)
	f.Fuzz(func(t *testing.T, reply []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), fuzzLimit)
		defer cancel()
		<-replies
		replies <- reply
		if _, err := client.UnaryCall(ctx, empty); ctx.Err() != nil {
			t.Fatalf("a unary call: %v", err)
		}
		st, err := client.FullDuplexCall(ctx)
		for err == nil {
			_, err = st.Recv()
		}
		if ctx.Err() != nil {
			t.Errorf("a stream: %v", err)
		}
	})
}

// answerWith answers each call of each connection with the reply that is in replies.
func answerWith(lis *q.Listener, replies chan []byte) {
	replies <- nil
	hello := wire.AppendHello(nil, &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	for {
		conn, err := lis.Accept(context.Background())
		if err != nil {
			return
		}
		if control, err := conn.OpenUniStream(); err == nil {
			_, _ = control.Write(hello)
		}
		go func() {
			for {
				qs, err := conn.AcceptStream(context.Background())
				if err != nil {
					return
				}
				reply := <-replies
				replies <- reply
				_, _ = qs.Write(reply)
				_ = qs.Close()
				qs.CancelRead(0)
			}
		}()
	}
}
