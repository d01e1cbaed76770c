package sniff

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// This file refuses peers that speak another protocol. Servers that do not take HTTP/2
// clients, and shm: listeners, refuse them.
const (
	ours = "this is a nearcall server, which takes only nearcall's own clients here: dial it with github.com/nearcall/nearcall; " +
		"for ordinary gRPC clients serve a tcp: or unix: listener, whose OtherClients has GRPCClients"
	notHTTP1 = "this is a nearcall server, which does not speak HTTP/1: call it with github.com/nearcall/nearcall, " +
		"or with a gRPC client if its OtherClients has GRPCClients"
)

const (
	callTimeout = 10 * time.Second // how long calls of an HTTP/2 client are refused one by one
	maxRefused  = 100              // how many calls of one connection are refused
	refusing    = 5 * time.Second  // how long the refusal may take to be written
	lingering   = time.Second      // how long the peer may take to read it
	plenty      = 1 << 20          // how many more bytes of a refused peer are read
)

// Refuse closes a connection whose client speaks another protocol. Before that it tells the client,
// in that protocol, what the server is.
func Refuse(conn net.Conn, p Protocol, first []byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(refusing))
	switch p {
	case HTTP2:
		refuseHTTP2(conn, first)
	case HTTP1:
		body := notHTTP1 + "\n"
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	default:
		// TLS clients report that the server does not speak TLS, and nearcall clients recognise
		// the line.
		_, _ = io.WriteString(conn, wire.Magic)
	}
	hangUp(conn)
}

// RefuseNative closes a connection whose client knows nearcall's protocol, after telling it why.
func RefuseNative(conn net.Conn, code wire.ByeCode, why string) {
	_ = conn.SetWriteDeadline(time.Now().Add(refusing))
	hello := wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	_, _ = conn.Write(wire.AppendBye(hello, code, why))
	hangUp(conn)
}

// RefuseHandshake closes a connection that failed the security handshake.
func RefuseHandshake(conn net.Conn, err error) {
	if c, ok := conn.(*tls.Conn); ok { // it writes nothing more after a failed handshake
		conn = c.NetConn()
	}
	if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && IsPlain(header) {
		// A nearcall client without credentials. crypto/tls sends it nothing, so send an
		// alert, handshake_failure, which the client understands.
		_ = conn.SetWriteDeadline(time.Now().Add(refusing))
		_, _ = conn.Write([]byte{0x15, 3, 1, 0, 2, 2, 40})
	}
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() {
		_ = conn.Close()
		return
	}
	hangUp(conn)
}

// IsPlain reports whether a client begins like one of nearcall's without TLS: with the protocol's
// line, or with the question. Ordinary gRPC clients begin with the same bytes as the latter.
func IsPlain(header tls.RecordHeaderError) bool {
	first := string(header.RecordHeader[:])
	return strings.HasPrefix(wire.Magic, first) || strings.HasPrefix(wire.Question, first)
}

// hangUp closes a connection after the peer has had time to read the last bytes. Many
// systems discard what was written if a socket is closed with unread bytes.
func hangUp(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingering))
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, plenty))
	_ = conn.Close()
}

// Types and flags of HTTP/2 frames.
const (
	frameHeaders      = 1
	framePriority     = 2
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9

	flagEnd      = 1    // END_STREAM, or ACK of SETTINGS and PING
	flagHeaders  = 4    // END_HEADERS
	flagPadded   = 8    // of HEADERS
	flagPriority = 0x20 // of HEADERS

	settingSize = 6 // of SETTINGS, in bytes
	pingSize    = 8 // of PING

	noError       = 0
	protocolBroke = 1 // PROTOCOL_ERROR
)

// refuseHTTP2 fails calls of a gRPC client with a status that says why, for the time callTimeout or
// until it has refused maxRefused calls, and then sends GOAWAY. A GOAWAY alone would not be enough:
// clients would retry the call on one connection after the other, and never show the text of the
// GOAWAY. A GOAWAY after the first call would not be enough either: that call may be a health
// check, and the client would connect again at once, without backoff, before it makes its own call.
func refuseHTTP2(conn net.Conn, first []byte) {
	_ = conn.SetReadDeadline(time.Now().Add(callTimeout))
	if _, err := conn.Write(frame(nil, frameSettings, 0, 0, "")); err != nil {
		return
	}
	answers := &answering{conn: conn}
	in := bufio.NewReader(io.LimitReader(io.MultiReader(bytes.NewReader(first[len(preface):]), answers), plenty))
	var last uint32
	for n := range maxRefused {
		stream := nextCall(in)
		if stream == 0 {
			break
		}
		last = stream
		if n == 0 {
			answers.out = frame(answers.out, frameSettings, flagEnd, 0, "")
		}
		answers.out = frame(answers.out, frameHeaders, flagEnd|flagHeaders, stream, refusal)
	}
	answers.out = appendGoAway(answers.out, last, protocolBroke, ours)
	_ = answers.flush()
}

// RefuseRequests closes a connection of HTTP/2 of which no request was processed. It tells the
// client, which can make its requests again elsewhere.
func RefuseRequests(conn net.Conn, why string) {
	_ = conn.SetWriteDeadline(time.Now().Add(refusing))
	_, _ = conn.Write(appendGoAway(frame(nil, frameSettings, 0, 0, ""), 0, noError, why))
	hangUp(conn)
}

// answering reads from conn. Before each read it writes the content of the field out, so that
// one system call answers all calls that arrive together.
type answering struct {
	conn net.Conn
	out  []byte
}

func (a *answering) Read(b []byte) (int, error) {
	if err := a.flush(); err != nil {
		return 0, err
	}
	return a.conn.Read(b)
}

func (a *answering) flush() error {
	if len(a.out) == 0 {
		return nil
	}
	_ = a.conn.SetWriteDeadline(time.Now().Add(refusing))
	_, err := a.conn.Write(a.out)
	a.out = a.out[:0]
	return err
}

// appendGoAway appends a GOAWAY after which no stream above last is processed.
func appendGoAway(b []byte, last, code uint32, text string) []byte {
	body := binary.BigEndian.AppendUint32(nil, last)
	body = binary.BigEndian.AppendUint32(body, code)
	return frame(b, frameGoAway, 0, 0, string(body)+text)
}

// frame appends an HTTP/2 frame.
func frame(b []byte, kind, flags byte, stream uint32, body string) []byte {
	b = append(b, byte(len(body)>>16), byte(len(body)>>8), byte(len(body)), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, body...)
}

// nextCall returns the number of the next stream that r opens, or 0 if r ends before that. It takes
// a bufio.Reader because a peer can send frames of 9 bytes, each of which would cost a system call.
func nextCall(r *bufio.Reader) uint32 {
	var head [9]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0
		}
		n := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		if _, err := r.Discard(n); err != nil {
			return 0
		}
		if head[3] == frameHeaders {
			return binary.BigEndian.Uint32(head[5:]) &^ (1 << 31)
		}
	}
}

// refusal is a trailers-only response with the status Unimplemented, encoded with HPACK.
var refusal = func() string {
	text := func(s string) string {
		if len(s) < 127 {
			return string(rune(len(s))) + s
		}
		return string(binary.AppendUvarint([]byte{127}, uint64(len(s)-127))) + s
	}
	plain := func(name, value string) string { return "\x00" + text(name) + text(value) }
	return "\x88" + // :status: 200
		plain("content-type", "application/grpc") + plain("grpc-status", "12") + plain("grpc-message", ours)
}()
