package nearconnect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectinprocess"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
	"github.com/nearcall/nearcall/internal/testing/needs"
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

// BenchmarkSockets compares Connect's generated code over nearcall's sockets with the same over Connect's own
// transport, without compression.
func BenchmarkSockets(b *testing.B) {
	server := connect.NewServer()
	echopbconnect.RegisterEchoHandler(server, echo{})
	for _, path := range []string{"tcp", "unix"} {
		for _, transport := range []struct {
			name string
			connect.Transport
		}{
			{"nearcall", nearconnect.NewTransport(connectTo(b, path, newServer(server)))},
			{"connecthttp HTTP2", overHTTP(b, path, server, (*http.Protocols).SetUnencryptedHTTP2)},
			{"connecthttp HTTP1", overHTTP(b, path, server, (*http.Protocols).SetHTTP1)},
		} {
			c := echopbconnect.NewEchoClient(connect.NewClient(transport))
			b.Run(path+"/unary/"+transport.name, func(b *testing.B) { benchUnary(b, b.Context(), c) })
			b.Run(path+"/stream of 100/"+transport.name, func(b *testing.B) { benchCount(b, c) })
		}
	}
}

// overHTTP starts server at a socket, for the version of HTTP that version chooses, and returns a transport to it.
func overHTTP(b *testing.B, path string, server *connect.Server, version func(*http.Protocols, bool)) connect.Transport {
	b.Helper()
	address := "127.0.0.1:0"
	if path == "unix" {
		needs.UnixSockets(b)
		address = filepath.Join(b.TempDir(), "s")
	}
	lis, err := net.Listen(path, address)
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server, connecthttp.WithCompressors())
	srv := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	version(srv.Protocols, true)
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	transport := &http.Transport{Protocols: srv.Protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, path, lis.Addr().String())
	}}
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = srv.Close()
		<-served
	})
	return connecthttp.NewTransport(&http.Client{Transport: transport}, "http://echo", connecthttp.WithCompressors())
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
		if !errors.Is(err, io.EOF) {
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
