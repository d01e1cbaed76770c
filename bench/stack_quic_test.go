package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/quic-go/quic-go"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/certificate"
)

// rawOverQUIC returns a client of raw over QUIC and its connection.
func rawOverQUIC(t *testing.T) (Conn, *quic.Conn) {
	t.Helper()
	at, stop, err := serveRawQUIC(quicNetwork, "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	conn, err := dialRawQUIC(quicNetwork, at, Row{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn, conn.Test.(rawQUICClient).conn
}

// TestARawCallIsAPacketEachWay checks that the limit of small calls is one: that a request
// and its end share a packet, and that nothing else is sent for a call.
func TestARawCallIsAPacketEachWay(t *testing.T) {
	client, conn := rawOverQUIC(t)
	in := &testpb.SimpleRequest{Payload: payload(32)}
	calls := func(n int) {
		for range n {
			if _, err := client.Test.UnaryCall(context.Background(), in); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls(50)
	before := conn.ConnectionStats()
	const n = 500
	calls(n)
	after := conn.ConnectionStats()
	sent, received := after.PacketsSent-before.PacketsSent, after.PacketsReceived-before.PacketsReceived
	if most := uint64(n + n/2); sent < n || sent > most || received < n || received > most { // some are acknowledgements, on a busy machine
		t.Errorf("%d calls have sent %d packets and received %d", n, sent, received)
	}
}

// TestMessagesOnAQUICStream checks what a stream's message must look like.
func TestMessagesOnAQUICStream(t *testing.T) {
	_, conn := rawOverQUIC(t)
	long := append([]byte{0, 0, 0x80, 0}, make([]byte, 0x8000)...)
	for name, c := range map[string]struct {
		sent []byte
		ok   bool
	}{
		"empty message":   {[]byte{0, 0, 0, 0}, true},
		"small":           {[]byte{0, 0, 0, 1, 'x'}, true},
		"beyond a buffer": {long, true},
		"cut prefix":      {[]byte{0, 0}, false},
		"cut message":     {[]byte{0, 0, 0, 9, 'x'}, false},
		"too much":        {[]byte{0, 0, 0, 1, 'x', 'y'}, false},
		"too long":        {[]byte{0xff, 0, 0, 0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := conn.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, failed := s.Write(c.sent)
			failed = errors.Join(failed, s.Close()) // the server might refuse the message before
			got, err := io.ReadAll(s)
			if c.ok && (err != nil || failed != nil || !bytes.Equal(got, c.sent)) {
				t.Errorf("the echo is %d bytes, %v, want %d; sending failed with %v", len(got), err, len(c.sent), failed)
			}
			if !c.ok && err == nil {
				t.Errorf("it was taken, and answered with %q", got)
			}
		})
	}
}

func TestOnlyClientsThatKnowTheCertificateConnect(t *testing.T) {
	at, stop, err := serveRawQUIC(quicNetwork, "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	config, err := certificate.Client()
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName, config.NextProtos = "other.test", []string{rawALPN}
	_, err = quic.DialAddr(t.Context(), at, config, quicConfig)
	if _, ok := errors.AsType[*quic.TransportError](err); !ok {
		t.Errorf("got %v", err)
	}
}
