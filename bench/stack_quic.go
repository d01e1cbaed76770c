package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect/v2/connecthttp"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/certificate"
)

// quicNetwork is QUIC, over UDP.
const quicNetwork = "quic"

// quicRivals returns the rivals of nearcall over QUIC. Except for the limit, they are what
// one would use between hosts that encrypt.
func quicRivals(parked int) []Rival {
	over := func(stack, network string) func(Row) (Conn, error) {
		return overPeer(peerSetup{Stack: stack, Network: network, Parked: parked})
	}
	return []Rival{
		{Name: "nearcall", Dial: over("nearcall", quicNetwork), Flat: true, Note: "over quic:HOST:PORT."},
		{Name: "nearcall-tcp", Dial: over("nearcall", tlsNetwork), Flat: true, Note: "over tcp:HOST:PORT with TLS."},
		{Name: "grpc-go", Dial: over("grpc-go", tlsNetwork), Flat: true, Note: "over TCP with TLS."},
		{Name: "connect-http3", Dial: over("connect-http3", quicNetwork), Note: "Connect v2's own protocol, over HTTP/3 of github.com/quic-go/quic-go/http3; compression is off, as it is elsewhere."},
		{
			Name: "raw", Limit: true, Dial: over("raw-quic", quicNetwork),
			Note: "no RPC: as many bytes there and back on a stream of github.com/quic-go/quic-go, after their length in four bytes. " +
				"Each unary call has its own stream, a bidi echo one for all its messages.",
			Without: []Absence{
				{func(r Row) bool { return r.Kind.Name == ServerStream.Name || r.Kind.Name == ClientStream.Name }, "raw has only unary calls and echoes"},
				{func(r Row) bool { return r.Callers > 1 }, "raw has one caller"},
			},
		},
	}
}

// serveHTTP3 serves with Connect's handlers over HTTP/3.
func serveHTTP3(_, address string, s Services) (string, func(), error) {
	config, err := certificate.Server()
	if err != nil {
		return "", nil, err
	}
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return "", nil, err
	}
	srv := &http3.Server{
		Handler: connectMux(s), TLSConfig: http3.ConfigureTLSConfig(config),
		QUICConfig: &quic.Config{MaxIncomingStreams: 1 << 20}, // for all streams of a row: 100 is the default
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(conn)
	}()
	return conn.LocalAddr().String(), func() {
		_ = srv.Close()
		_ = conn.Close()
		<-ended
	}, nil
}

func dialHTTP3(_, address string, _ Row) (Conn, error) {
	config, err := certificate.Client()
	if err != nil {
		return Conn{}, err
	}
	transport := &http3.Transport{TLSClientConfig: config}
	return connectConn(connecthttp.NewTransport(&http.Client{Transport: transport}, "https://"+address, connectOptions...), func() { _ = transport.Close() }), nil
}

// rawALPN is the application protocol of raw over QUIC.
const rawALPN = "bench-raw"

// quicConfig allows as many streams as QUIC can number: with a lower limit the server sends a
// packet for each stream that ends, to allow another. The rest is quic-go's default.
var quicConfig = &quic.Config{MaxIncomingStreams: 1 << 60}

// A quicStream exchanges messages with a length prefix. It reuses its buffer.
type quicStream struct {
	*quic.Stream
	buf []byte
}

// receive returns the next message with its prefix, which is valid until the next receive.
// last says that the peer has ended the stream with it. After the last message the error is
// io.EOF.
func (s *quicStream) receive() (message []byte, last bool, err error) {
	size := rawHead // until the prefix is there
	for got := 0; ; {
		if got == len(s.buf) {
			s.buf = append(s.buf, make([]byte, max(2<<10, size-got))...)
		}
		n, err := s.Read(s.buf[got:])
		if got += n; got >= rawHead {
			size = rawHead + int(binary.BigEndian.Uint32(s.buf))
		}
		switch {
		case size > maxMessage:
			return nil, false, fmt.Errorf("a message of %d bytes", size)
		case got > size:
			return nil, false, errors.New("a message before it was due")
		case got == size && (err == nil || err == io.EOF) && got > 0:
			return s.buf[:size], err == io.EOF, nil
		case err == io.EOF && got > 0:
			return nil, false, io.ErrUnexpectedEOF
		case err != nil:
			return nil, false, err
		}
	}
}

// echo sends back every message until the stream ends. answer changes it first.
func (s *quicStream) echo(answer func(body []byte)) {
	for {
		message, last, err := s.receive()
		if err == nil {
			answer(message[rawHead:])
			_, err = s.Write(message)
		}
		switch {
		case err != nil && err != io.EOF:
			s.CancelRead(0)
			s.CancelWrite(0)
			return
		case err == io.EOF || last:
			_ = s.Close()
			return
		}
	}
}

// serveRawQUIC sends back every message of each stream. It ignores the services.
func serveRawQUIC(_, address string, _ Services) (string, func(), error) {
	return serveRawQUICAs(address, func([]byte) {})
}

// serveRawQUICAs is serveRawQUIC, but answer changes each message first.
func serveRawQUICAs(address string, answer func(body []byte)) (string, func(), error) {
	config, err := certificate.Server()
	if err != nil {
		return "", nil, err
	}
	config.NextProtos = []string{rawALPN}
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		return "", nil, err
	}
	transport := &quic.Transport{Conn: socket}
	lis, err := transport.Listen(config, quicConfig)
	if err != nil {
		return "", nil, errors.Join(err, socket.Close())
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := lis.Accept(context.Background())
			if err != nil {
				return
			}
			all.Go(func() { echoStreams(conn, &all, answer) })
		}
	})
	return socket.LocalAddr().String(), func() {
		_ = transport.Close()
		_ = socket.Close()
		all.Wait()
	}, nil
}

// echoStreams serves the streams of a connection on goroutines that all waits for.
func echoStreams(conn *quic.Conn, all *sync.WaitGroup, answer func(body []byte)) {
	var bufs sync.Pool // of *quicStream, for their buffers
	for {
		stream, err := conn.AcceptStream(context.Background())
		if err != nil {
			return
		}
		all.Go(func() {
			s, ok := bufs.Get().(*quicStream)
			if !ok {
				s = new(quicStream)
			}
			s.Stream = stream
			s.echo(answer)
			s.Stream = nil
			bufs.Put(s)
		})
	}
}

// rawQUICClient has a stream for each unary call.
type rawQUICClient struct {
	*rawClient
	conn *quic.Conn
}

func dialRawQUIC(_, address string, _ Row) (Conn, error) {
	config, err := certificate.Client()
	if err != nil {
		return Conn{}, err
	}
	config.NextProtos = []string{rawALPN}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := quic.DialAddr(ctx, address, config, quicConfig)
	if err != nil {
		return Conn{}, err
	}
	var kept quicStream // for its buffer
	c := rawQUICClient{&rawClient{swap: func(sent []byte) ([]byte, error) {
		if kept.Stream, err = conn.OpenStream(); err != nil {
			return nil, err
		}
		return kept.swap(sent)
	}}, conn}
	return Conn{Test: c, Records: c, Close: func() { _ = conn.CloseWithError(0, "") }}, nil
}

// swap sends the stream's only message, and returns the reply.
func (s *quicStream) swap(sent []byte) ([]byte, error) {
	if _, err := s.Write(sent); err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	reply, last, err := s.receive()
	if err == nil && !last {
		if _, err := s.Read(make([]byte, 1)); err != io.EOF {
			return nil, fmt.Errorf("the stream did not end after the reply: %w", err)
		}
	}
	return reply, err
}

// FullDuplexCall returns a stream of messages with as many bytes.
func (c rawQUICClient) FullDuplexCall(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse], error) {
	stream, err := c.conn.OpenStream()
	if err != nil {
		return nil, err
	}
	return &rawQUICEcho{on: quicStream{Stream: stream}}, nil
}

// rawQUICEcho adapts a stream to the interface of gRPC's generated code. It encodes a message
// once for all times that it is sent.
type rawQUICEcho struct {
	grpc.ClientStream // nil: only the methods below exist
	on                quicStream
	message           *testpb.StreamingOutputCallRequest
	sent              []byte
}

func (e *rawQUICEcho) Send(m *testpb.StreamingOutputCallRequest) (err error) {
	if e.message != m {
		e.message = m
		if e.sent, err = prefixed(e.sent, m); err != nil {
			return err
		}
	}
	_, err = e.on.Write(e.sent)
	return err
}

// Recv leaves the comparison to the caller, as rawClient does. The payload is the end of the
// message.
func (e *rawQUICEcho) Recv() (*testpb.StreamingOutputCallResponse, error) {
	got, _, err := e.on.receive()
	if err != nil {
		return nil, err
	}
	if len(got) != len(e.sent) {
		return nil, check("bytes in the echo", len(got), len(e.sent))
	}
	return &testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: got[len(got)-len(e.message.GetPayload().GetBody()):]}}, nil
}

func (e *rawQUICEcho) CloseSend() error { return e.on.Close() }
