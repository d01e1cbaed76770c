package sniff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Ask finds out which protocol the server of conn speaks. auth is the result of the security
// handshake, or nil. If ALPN has not agreed on nearcall's protocol, it asks the server, which
// takes a round trip. If the server is nearcall's, native is true, and a session can begin over
// conn. Otherwise it is an ordinary gRPC server, and over is the connection for the transport of an
// ordinary gRPC client, which must begin with HTTP/2's preface. If Ask fails, the caller closes
// conn.
//
// grpc-go sets TCP_USER_TIMEOUT on its dialer's connection, if that is a *net.TCPConn. So the
// dialer should return conn, and the credentials' handshake over.
func Ask(ctx context.Context, conn net.Conn, auth credentials.AuthInfo) (over net.Conn, native bool, err error) {
	if Agreed(auth) {
		return conn, true, nil
	}
	late := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	asking := make(chan error, 1)
	first, reply, err := ask(conn, asking)
	if !late() {
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, link.ErrForeign):
		return nil, false, err
	case err != nil:
		return nil, false, fmt.Errorf("the server has not said which protocol it speaks: %w", err)
	case reply == isNative:
		return conn, true, nil
	}
	a := &asked{Begun: Begun{Conn: conn, First: first}, asking: asking, preface: preface}
	if s, ok := conn.(syscall.Conn); ok {
		return withReady(askedSocket{a, s}), false, nil
	}
	return a, false, nil
}

// ask asks which protocol conn's server speaks. first is the part of the reply that was read.
// asking gets the result of writing the question, perhaps later than the reply: an ordinary
// server can write its SETTINGS first, and over a connection without a buffer, such as a
// net.Pipe, it reads nothing until they are read.
func ask(conn net.Conn, asking chan error) (first []byte, r reply, err error) {
	go func() {
		_, err := io.WriteString(conn, wire.Question)
		asking <- err
		if err != nil {
			_ = conn.SetReadDeadline(time.Unix(1, 0))
		}
	}()
	// Both replies that let the connection go on decide with their first 9 bytes. In nearcall's
	// protocol the next bytes are for the session, which may receive descriptors with them.
	first = make([]byte, 0, frameHead)
	for {
		n, err := conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		r, foreign := replyOf(first)
		switch {
		case r == isNative: // the server has read the question
			return first, r, <-asking
		case r != unclearYet:
			return first, r, foreign
		case err == io.EOF, errors.Is(err, syscall.ECONNRESET):
			err = errors.New("it closed the connection")
			if n := len(first); n > 0 {
				err = fmt.Errorf("%w after %q", err, first)
			}
			return first, r, fmt.Errorf("%w; if it expects TLS, use WithTransportCredentials", err)
		case err != nil:
			select {
			case failed := <-asking:
				err = cmp.Or(failed, err)
			default:
			}
			return first, r, err
		}
	}
}

// A reply is a server's answer to the question.
type reply int

const (
	unclearYet reply = iota
	isNative
	isGRPC
	isForeign
)

// replyOf returns the reply that begins with first, of up to 9 bytes. If it is foreign, the error
// says what listens there.
func replyOf(first []byte) (reply, error) {
	const http1 = "HTTP/1."
	what := ""
	switch s := string(first); {
	case s == wire.Answer:
		return isNative, nil
	case len(s) < frameHead && (strings.HasPrefix(wire.Answer, s) || strings.HasPrefix(http1, s) && s != http1 || mayBeSettings(first) || s == "\x15"):
		return unclearYet, nil
	case mayBeSettings(first):
		return isGRPC, nil
	case strings.HasPrefix(wire.Magic, s): // it does not know the question
		what = "a nearcall server listens there that cannot be asked for its protocol, as within a WebSocket; dial a ws: or wss: target"
	case strings.HasPrefix(s, http1):
		what = "an HTTP/1 server listens there, or one that expects TLS; dial the port of a gRPC server, or use WithTransportCredentials"
	case strings.HasPrefix(s, "\x15\x03"): // an alert
		what = "the server expects TLS; use WithTransportCredentials"
	default:
		what = fmt.Sprintf("neither a gRPC server nor a nearcall server listens there: it begins with %q; dial another address", first)
	}
	return isForeign, fmt.Errorf("%w: %s", link.ErrForeign, what)
}

// ErrOnlyGRPC is the reason why a connection to an ordinary gRPC server gets no nearer path.
var ErrOnlyGRPC = counters.GRPCServer.New("the server speaks only gRPC")

// An asked is a connection after its server has answered the question as an ordinary gRPC server.
// The server has got the preface, so asked drops the preface of the client's transport. The
// transport's SETTINGS follow those of the question.
type asked struct {
	Begun
	asking  <-chan error // gets the result of writing the question; nil once it has come
	preface string       // the rest of the preface to drop
}

// NetConn returns the connection below, as NetConn of a *tls.Conn does.
func (a *asked) NetConn() net.Conn { return a.Conn }

// Write implements [net.Conn].
func (a *asked) Write(b []byte) (int, error) {
	if a.asking != nil {
		if err := <-a.asking; err != nil {
			return 0, err
		}
		a.asking = nil
	}
	if a.preface == "" {
		return a.Conn.Write(b)
	}
	n := min(len(a.preface), len(b))
	if string(b[:n]) != a.preface[:n] {
		return 0, fmt.Errorf("the client of an ordinary gRPC server must begin with the preface of HTTP/2, not with %.20q", b)
	}
	a.preface = a.preface[n:]
	if n == len(b) {
		return n, nil
	}
	m, err := a.Conn.Write(b[n:])
	return n + m, err
}

// An askedSocket is an asked connection over a socket.
type askedSocket struct {
	*asked
	syscall.Conn
}
