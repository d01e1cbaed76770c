package sock

import (
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

// ours is what peers of other protocols are told.
const ours = "this is a nearcall server, which speaks nearcall's own protocol here: dial it with github.com/nearcall/nearcall, and run a grpc.Server beside it for other clients"

const (
	callTimeout = 10 * time.Second // with an HTTP/2 client that makes no call
	lingering   = time.Second      // for what was written to arrive
	plenty      = 1 << 20          // what a peer that is refused may still send, in bytes
)

// refuse tells a peer of another protocol, in its own, whom it met, and closes
// the connection.
func refuse(conn net.Conn, p protocol, first []byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(lingering))
	switch p {
	case http2:
		refuseHTTP2(conn, first)
	case http1:
		body := ours + "\n"
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	default:
		// TLS clients report that this is no TLS, and nearcall's know it.
		_, _ = io.WriteString(conn, wire.Magic)
	}
	hangUp(conn)
}

// refuseSocket tells a client of this protocol that its connection would be a
// socket, where that is not wanted.
func refuseSocket(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(lingering))
	hello := wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	_, _ = conn.Write(wire.AppendBye(hello, wire.ByeClosed, "this server takes calls over shared memory only: dial shm:PATH, from a process of the same user"))
	hangUp(conn)
}

// refuseHandshake closes a connection whose credentials refused it.
func refuseHandshake(conn net.Conn, err error) {
	if c, ok := conn.(*tls.Conn); ok { // which writes nothing any more
		conn = c.NetConn()
	}
	var header tls.RecordHeaderError
	if errors.As(err, &header) && strings.HasPrefix(wire.Magic, string(header.RecordHeader[:])) {
		// A client without credentials: crypto/tls says nothing to it, and it
		// understands an alert, handshake_failure.
		_ = conn.SetWriteDeadline(time.Now().Add(lingering))
		_, _ = conn.Write([]byte{0x15, 3, 1, 0, 2, 2, 40})
	}
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() {
		_ = conn.Close()
		return
	}
	hangUp(conn)
}

// hangUp closes a connection once the peer had a chance to read what was
// written: closed with bytes unread, many systems would throw it away.
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
	frameHeaders  = 1
	frameSettings = 4
	frameGoAway   = 7
	flagEnd       = 1 // of a stream, and ACK of SETTINGS
	flagHeaders   = 4 // all of them are in the frame
	protocolBroke = 1 // an error code
)

// refuseHTTP2 fails the first call of a gRPC client with a status that says why,
// and sends it away. A GOAWAY alone would not do: clients make the call again,
// on one connection after the other, and nobody sees the text.
func refuseHTTP2(conn net.Conn, first []byte) {
	_ = conn.SetReadDeadline(time.Now().Add(callTimeout))
	if _, err := conn.Write(frame(nil, frameSettings, 0, 0, "")); err != nil {
		return
	}
	var out []byte
	stream := firstCall(io.LimitReader(io.MultiReader(bytes.NewReader(first[len(preface):]), conn), plenty))
	if stream > 0 {
		out = frame(out, frameSettings, flagEnd, 0, "")
		out = frame(out, frameHeaders, flagEnd|flagHeaders, stream, unimplemented())
	}
	away := binary.BigEndian.AppendUint32(nil, stream)
	away = binary.BigEndian.AppendUint32(away, protocolBroke)
	out = frame(out, frameGoAway, 0, 0, string(away)+ours)
	_ = conn.SetWriteDeadline(time.Now().Add(lingering))
	_, _ = conn.Write(out)
}

// frame appends an HTTP/2 frame.
func frame(b []byte, kind, flags byte, stream uint32, body string) []byte {
	b = append(b, byte(len(body)>>16), byte(len(body)>>8), byte(len(body)), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, body...)
}

// firstCall returns the number of the first stream that r opens, 0 where there
// is none.
func firstCall(r io.Reader) uint32 {
	var head [9]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0
		}
		if head[3] == frameHeaders {
			return binary.BigEndian.Uint32(head[5:]) &^ (1 << 31)
		}
		n := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, r, n); err != nil {
			return 0
		}
	}
}

// unimplemented is a response that consists of its trailer, as HPACK has it.
func unimplemented() string {
	text := func(s string) string {
		if len(s) < 127 {
			return string(rune(len(s))) + s
		}
		return string(binary.AppendUvarint([]byte{127}, uint64(len(s)-127))) + s
	}
	plain := func(name, value string) string { return "\x00" + text(name) + text(value) }
	return "\x88" + // :status: 200
		plain("content-type", "application/grpc") + plain("grpc-status", "12") + plain("grpc-message", ours)
}
