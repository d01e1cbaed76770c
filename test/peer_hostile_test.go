package test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Package internal/mux tests each violation of the protocol. These tests show the
// effect on a server with real sockets and on its other clients.

// A stranger is a peer that writes its frames itself.
type stranger struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	enc  wire.Encoder
	next uint64 // ID of its next call
}

// meet connects to lis without writing anything.
func meet(t *testing.T, lis net.Listener) *stranger {
	t.Helper()
	conn, err := net.Dial(lis.Addr().Network(), lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &stranger{t: t, conn: conn, in: bufio.NewReader(conn), next: 1}
}

// greeting returns the client's first bytes, which grant window to each call and to the
// connection.
func greeting(window int64) []byte {
	return wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: window, Connection: window, Block: wire.MinBlock})
}

// answer reads a client's question, which protocol the server speaks, and answers it.
func (s *stranger) answer() {
	_, _ = io.CopyN(io.Discard, s.in, int64(len(wire.Question)))
	s.write([]byte(wire.Answer))
}

// write ignores errors, because the server might not read everything.
func (s *stranger) write(b ...[]byte) { _, _ = s.conn.Write(slices.Concat(b...)) }

// call returns the frames that open a call, and its ID.
func (s *stranger) call(method string, message []byte, timeout time.Duration, md metadata.MD) ([]byte, uint64) {
	id := s.next
	s.next += 2
	step := &wire.Step{
		Stream: id, Timeout: timeout, Message: message, HasMessage: message != nil,
		Open: &link.CallHeader{Method: "/grpc.testing.TestService/" + method, Profile: &link.Profile{Authority: "localhost"}, Metadata: md},
	}
	b, _ := s.enc.Append(nil, step, 1<<20)
	return b, id
}

// frames calls f for each frame until f returns true or the connection ends. In the
// latter case it returns the reason.
func (s *stranger) frames(f func(wire.Frame) (enough bool)) error {
	line := make([]byte, len(wire.Magic))
	if _, err := io.ReadFull(s.in, line); err != nil {
		return err
	}
	if string(line) != wire.Magic {
		return fmt.Errorf("it begins with %q", line)
	}
	for {
		length := make([]byte, 2)
		if _, err := io.ReadFull(s.in, length); err != nil {
			return err
		}
		b := append(length, make([]byte, binary.LittleEndian.Uint16(length))...)
		if _, err := io.ReadFull(s.in, b[2:]); err != nil {
			return err
		}
		frame, _, err := wire.Next(b)
		if err != nil {
			return err
		}
		if f(frame) {
			return nil
		}
	}
}

// goesOn checks that a server still serves well-behaved clients.
func goesOn(t *testing.T, lis nearcall.Listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := dial(t, lis.Target())
	wantCode(t, <-invoke(ctx, client), codes.OK)
	s, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: payload(1000)})
	n := 0
	for ; err == nil; n++ {
		_, err = s.Recv()
	}
	if n != 101 || err != io.EOF {
		t.Errorf("of 100 replies %d came, and %v", n-1, err)
	}
}

// listenFor serves e over network, to any nearcall client. For "unix" it disables the
// upgrade.
func listenFor(t *testing.T, network string, e echo, opts ...nearcall.ServerOption) nearcall.Listener {
	t.Helper()
	if network == "unix" {
		opts = append(opts, nearcall.DisableSharedMemory())
	}
	lis := listen(t, targetFor(t, network))
	start(t, serve(t, e, opts...), lis)
	return lis
}

type bidi = grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]

// TestMetadataOfManyEntries checks that a handler sees all metadata, each time it asks, and the
// compressors that its caller accepts.
func TestMetadataOfManyEntries(t *testing.T) {
	hold(t)
	md := metadata.MD{"grpc-accept-encoding": {"own"}}
	for i := range 1000 {
		md[fmt.Sprint("key", i)] = []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
	}
	type seen struct {
		md, again metadata.MD
		accepts   []string
	}
	received := make(chan seen, 1)
	lis := listenFor(t, "tcp", echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		var s seen
		s.accepts, _ = nearcall.ClientSupportedCompressors(ctx)
		s.md, _ = metadata.FromIncomingContext(ctx)
		s.again, _ = metadata.FromIncomingContext(ctx)
		received <- s
		return &testpb.SimpleResponse{}, nil
	}})
	client := dial(t, lis.Target())
	for range 3 { // whose keys are new, and known
		wantCode(t, <-invoke(metadata.NewOutgoingContext(t.Context(), md), client), codes.OK)
		got := outcome(t, "the metadata", received)
		for k, want := range md {
			if v := got.md[k]; k != "grpc-accept-encoding" && !slices.Equal(v, want) {
				t.Fatalf("%s is %q, want %q", k, v, want)
			}
		}
		if !maps.EqualFunc(got.md, got.again, slices.Equal[[]string]) {
			t.Errorf("first there are %d keys, then %d", len(got.md), len(got.again))
		}
		if !slices.Contains(got.accepts, "own") {
			t.Errorf("the caller accepts %q", got.accepts)
		}
	}
}

// ConnectionTimeout covers everything that a peer does before it has identified itself, the TLS
// handshake included, even if bytes keep arriving.
func TestPeersThatDoNotSayWhoTheyAreAreDropped(t *testing.T) {
	const timeout = 5 * time.Second
	secure := nearcall.Creds(credentials.NewTLS(newCertificates(t).server(nil)))
	for name, c := range map[string]struct {
		says  string        // byte by byte
		pause time.Duration // before each byte
		opt   nearcall.ServerOption
	}{
		"silent":                   {},
		"slow":                     {says: wire.Magic, pause: time.Second},
		"without a hello":          {says: wire.Magic, pause: timeout / 15},
		"slow HTTP":                {says: "PRI * HTTP", pause: time.Second},
		"HTTP/1.1, half a header":  {says: "POST / HTTP/1.1\r\nHost: loc", pause: timeout / 40},
		"HTTP/2, half of settings": {says: preface + noSettings[:8], pause: timeout / 40},
		"TLS, silent":              {opt: secure},
		"TLS, slow":                {says: "\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", pause: time.Second, opt: secure},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts, most := []nearcall.ServerOption{nearcall.ConnectionTimeout(timeout)}, timeout
				if c.opt != nil {
					opts, most = append(opts, c.opt), 3*timeout // it tries to send an alert
				}
				lis := bufconn.Listen(1 << 10)
				srv := serve(t, echo{}, opts...)
				start(t, srv, lis)
				piped, far := net.Pipe()
				begin, served := time.Now(), serveConn(srv, far)
				var talking sync.WaitGroup
				defer talking.Wait()
				for _, conn := range []net.Conn{piped, dialRaw(t, lis)} {
					defer conn.Close()
					talking.Go(func() {
						for _, b := range []byte(c.says) {
							time.Sleep(c.pause)
							if _, err := conn.Write([]byte{b}); err != nil {
								return
							}
						}
					})
					talking.Go(func() {
						_, _ = io.Copy(io.Discard, conn)
						if d := time.Since(begin); d < timeout || d > most {
							t.Errorf("it was dropped after %v, want %v", d, timeout)
						}
					})
				}
				if err := <-served; err == nil && !strings.HasPrefix(c.says, "POST ") {
					t.Error("ServeConn returns no error")
				}
			})
		})
	}
}
