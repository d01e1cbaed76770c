package nearconnect_test

import (
	"context"
	"io"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
)

// BenchmarkInProcess compares Connect's generated code over nearcall with the same over Connect's own
// transport in process.
func BenchmarkInProcess(b *testing.B) {
	server := connect.NewServer()
	echopbconnect.RegisterEchoHandler(server, echo{})
	auto, inline := newServer(server), newServer(server, nearcall.HandlerPlacement(nearcall.Inline))
	defer auto.Stop()
	defer inline.Stop()
	cancellable, cancel := context.WithCancel(b.Context())
	defer cancel()
	for _, transport := range []struct {
		name string
		connect.Transport
	}{
		{"nearcall", nearconnect.NewTransport(auto.Client())},
		{"nearcall inline", nearconnect.NewTransport(inline.Client())},
		{"connectinprocess", connectinprocess.New(server)},
	} {
		c := echopbconnect.NewEchoClient(connect.NewClient(transport))
		b.Run("unary/"+transport.name, func(b *testing.B) { benchUnary(b, context.Background(), c) })
		b.Run("unary cancellable/"+transport.name, func(b *testing.B) { benchUnary(b, cancellable, c) })
		b.Run("stream of 100/"+transport.name, func(b *testing.B) { benchCount(b, c) })
		b.Run("bidi echo/"+transport.name, func(b *testing.B) { benchChat(b, c) })
	}
}

func benchUnary(b *testing.B, ctx context.Context, c echopbconnect.EchoClient) {
	b.ReportAllocs()
	m := &echopb.Message{Number: 1, Text: "some thirty-two bytes of payload"}
	for b.Loop() {
		if _, err := c.Unary(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
}

func benchCount(b *testing.B, c echopbconnect.EchoClient) {
	b.ReportAllocs()
	m := &echopb.Message{Number: 100}
	for b.Loop() {
		s, err := c.Count(b.Context(), m)
		for err == nil {
			_, err = s.Receive()
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}

func benchChat(b *testing.B, c echopbconnect.EchoClient) {
	b.ReportAllocs()
	s, err := c.Chat(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	m := &echopb.Message{Number: 1, Text: "some thirty-two bytes of payload"}
	for b.Loop() {
		if err := s.Send(m); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Receive(); err != nil {
			b.Fatal(err)
		}
	}
	_ = s.CloseSend()
	if _, err := s.Receive(); err != io.EOF {
		b.Fatal(err)
	}
}
