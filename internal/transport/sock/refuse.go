package sock

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/wire"
)

// notHTTP1 is what the listener tells clients of HTTP/1 that nobody takes.
const notHTTP1 = "this is a nearcall server, which does not speak HTTP/1: call it with github.com/nearcall/nearcall, " +
	"or with a gRPC client if its OtherClients has GRPCClients"

const (
	refusing  = 5 * time.Second // how long the refusal may take to be written
	lingering = time.Second     // how long the peer may take to read it
	plenty    = 1 << 20         // how many more bytes of a refused peer are read
)

// refuse closes a connection that speaks another protocol, after telling the peer, in that
// protocol, what it has reached.
func refuse(conn net.Conn, p protocol) {
	_ = conn.SetWriteDeadline(time.Now().Add(refusing))
	if p == http1 {
		body := notHTTP1 + "\n"
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	} else {
		// TLS clients report that the server does not speak TLS, and nearcall clients recognise
		// the line.
		_, _ = io.WriteString(conn, wire.Magic)
	}
	hangUp(conn)
}

// refuseNative closes a connection whose client knows nearcall's protocol, after telling it why.
func refuseNative(conn net.Conn, code wire.ByeCode, why string) {
	_ = conn.SetWriteDeadline(time.Now().Add(refusing))
	hello := wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	_, _ = conn.Write(wire.AppendBye(hello, code, why))
	hangUp(conn)
}

// refuseHandshake closes a connection that failed the security handshake.
func refuseHandshake(conn net.Conn, err error) {
	if c, ok := conn.(*tls.Conn); ok { // it writes nothing more after a failed handshake
		conn = c.NetConn()
	}
	var header tls.RecordHeaderError
	if errors.As(err, &header) && isPlain(header) {
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

// isPlain reports whether a client begins like one of nearcall's without TLS: with the protocol's
// line, or with the question. Ordinary gRPC clients begin with the same bytes as the latter.
func isPlain(header tls.RecordHeaderError) bool {
	first := string(header.RecordHeader[:])
	return strings.HasPrefix(wire.Magic, first) || strings.HasPrefix(wire.Question, first)
}

// A server logs one line for a connection that fails or is refused, at the level at which grpc-go
// logs a failed handshake. Like grpc-go, it does not log a client that connects and closes, because
// load balancers and probes do that. What peers say is quoted, so that they cannot forge lines.

var logger = grpclog.Component("nearcall")

// peerName returns the address of conn's peer. A client of a unix socket has no address, but the
// system can often tell its process.
func peerName(conn net.Conn) string {
	local, remote := conn.LocalAddr(), conn.RemoteAddr()
	if local != nil && local.Network() == "unix" {
		if p, ok := processOf(conn); ok {
			return fmt.Sprintf("process %d of user %d at %v", p.PID, p.UID, local)
		}
		return fmt.Sprintf("a client at %v", local)
	}
	return fmt.Sprint(remote)
}

// logFailed logs that conn's client failed during step.
func logFailed(conn net.Conn, step string, err error) {
	if err == io.EOF || errors.Is(err, net.ErrClosed) {
		return // it has left, or this side has closed the listener
	}
	logger.Infof("%s with %s failed: %q%s", step, peerName(conn), err, remedy(err))
}

// remedy returns what to do about a failed security handshake, as far as err tells.
func remedy(err error) string {
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &header) && isPlain(header) && header.RecordHeader[0] == wire.Magic[0]:
		return "; it is a nearcall client without TLS: give it WithTransportCredentials"
	case errors.As(err, &header):
		return "; it does not use TLS"
	case strings.Contains(err.Error(), "application protocol"), strings.Contains(err.Error(), "ALPN"):
		return "; clients and NextProtos of the server's TLS configuration must agree on h2 or http/1.1: see nearcall.NewTLS"
	case strings.Contains(err.Error(), "remote error: tls"):
		return "; the client refuses the server's certificate or TLS version"
	}
	return ""
}

// logRefused logs that a client of another protocol, or without shared memory, is refused.
func (l *Listener) logRefused(conn net.Conn, p protocol, first []byte) {
	const near = ", and the listener takes nearcall's clients over shared memory only: use a tcp: or unix: listener"
	why := fmt.Sprintf("it does not speak a protocol of this server; it began with %.20q", first)
	switch upgraded := l.Options.RequireUpgrade; {
	case p == native:
		why = "the listener takes shared memory only: dial shm:PATH, from a process of the same user"
	case p == clientHello:
		why = "it uses TLS, for which the server needs Creds"
	case p == http2 && upgraded:
		why = "it is an ordinary gRPC client" + near
	case p == http1 && upgraded:
		why = "it is a client of HTTP/1" + near
	case p == http2:
		why = "it is an ordinary gRPC client, which needs OtherClients with GRPCClients"
	case p == http1:
		why = "it is a client of HTTP/1, which needs OtherClients with WebClients"
	}
	logger.Infof("refused %s: %s", peerName(conn), why)
}

// logDeclined logs that a connection with peer stays a socket.
func logDeclined(peer string, why error) {
	logger.Infof("no shared memory with %s, which stays a unix socket: %q", peer, why)
}

// hangUp closes a connection after the peer had time to read what was written. Many systems
// discard what was written if a socket is closed with unread bytes.
func hangUp(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingering))
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, plenty))
	_ = conn.Close()
}

// RefuseRequests closes a connection of HTTP/2 whose client has made no request, or none that was
// processed. It tells the client, which can make its requests again elsewhere.
func RefuseRequests(conn net.Conn, why string) {
	_ = conn.SetWriteDeadline(time.Now().Add(refusing))
	_, _ = conn.Write(AppendGoAway(AppendFrame(nil, FrameSettings, 0, nil), 0, NoError, why))
	hangUp(conn)
}
