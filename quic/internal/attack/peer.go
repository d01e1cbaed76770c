//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/attack"
	"github.com/nearcall/nearcall/internal/wire"
)

// A peer is the attacker's end of a connection. It speaks QUIC with quic-go, and writes whatever
// frames an attack needs.
type peer struct {
	conn    *q.Conn
	control *q.SendStream
}

// A socket counts what it sends.
type socket struct {
	net.PacketConn
	a *attack.Attacker
}

// WriteTo implements [net.PacketConn].
func (s socket) WriteTo(b []byte, to net.Addr) (int, error) {
	n, err := s.PacketConn.WriteTo(b, to)
	s.a.Sent.Add(int64(n))
	return n, err
}

// open opens a socket that counts what it sends.
func open(a *attack.Attacker) (socket, error) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err == nil {
		a.Hold(pc)
	}
	return socket{pc, a}, err
}

// server returns the server's address.
func server(a *attack.Attacker) (*net.UDPAddr, error) {
	_, address, _ := strings.Cut(a.Target(), ":")
	return net.ResolveUDPAddr("udp", address)
}

// Most attacks dial from transport, so that thousands of connections share one socket.
var transport struct {
	sync.Mutex
	*q.Transport
}

// shared returns the transport.
func shared(a *attack.Attacker) (*q.Transport, error) {
	transport.Lock()
	defer transport.Unlock()
	if transport.Transport == nil {
		s, err := open(a)
		if err != nil {
			return nil, err
		}
		transport.Transport = &q.Transport{Conn: s}
	}
	return transport.Transport, nil
}

// settings returns what an attacker says in its handshake. It gives window bytes of credit for each
// call, and connection for all.
func settings(window, connection uint64) *q.Config {
	return &q.Config{
		InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: connection, MaxConnectionReceiveWindow: connection,
		MaxIdleTimeout: 10 * time.Minute, MaxIncomingUniStreams: 1,
	}
}

var clientTLS = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"nearcall/1"}}

// dial makes the handshake of QUIC, and sends nothing more.
func dial(a *attack.Attacker, c *q.Config) (*peer, error) {
	tr, err := shared(a)
	if err != nil {
		return nil, err
	}
	to, err := server(a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), a.Until)
	defer cancel()
	conn, err := tr.Dial(ctx, to, clientTLS, c)
	if err != nil {
		return nil, err
	}
	a.Hold(conn)
	return &peer{conn: conn}, nil
}

// enter dials and greets.
func enter(a *attack.Attacker, c *q.Config) (*peer, error) {
	p, err := dial(a, c)
	if err != nil {
		return nil, err
	}
	return p, p.greet()
}

// greet opens the control stream and sends HELLO.
func (p *peer) greet() error {
	control, err := p.conn.OpenUniStream()
	if err != nil {
		return err
	}
	p.control = control
	_, err = control.Write(wire.AppendHello(nil, &wire.Hello{
		Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock,
	}))
	return err
}

// call opens a call, waiting while the server lets no more be opened, and sends b on it.
func (p *peer) call(a *attack.Attacker, b []byte) (*q.Stream, error) {
	ctx, cancel := context.WithDeadline(context.Background(), a.Until)
	defer cancel()
	st, err := p.conn.OpenStreamSync(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded // the server lets no more be opened
	}
	if err != nil {
		return nil, err
	}
	_ = st.SetDeadline(a.Until)
	_, err = st.Write(b)
	return st, err
}

// methods is the prefix of the service's methods.
const methods = "/grpc.testing.TestService/"

var profile = link.Profile{Authority: "localhost", UserAgent: "attack"}

// head returns the frames that begin a call.
func head(method string, md metadata.MD) []byte {
	return frames(&wire.Step{Open: &link.CallHeader{Method: methods + method, Profile: &profile, Metadata: md}})
}

// request returns the frames of a call with an empty message.
func request(method string) []byte {
	return frames(&wire.Step{
		Open:       &link.CallHeader{Method: methods + method, Profile: &profile},
		HasMessage: true, HalfClose: true,
	})
}

// frames returns the frames of a step.
func frames(step *wire.Step) (b []byte) {
	step.Stream = 1
	e := wire.Encoder{Literal: true}
	for !step.Done() {
		b, _ = e.Append(b, step, 1<<40)
	}
	return b
}

// frame appends a frame without any checks.
func frame(b []byte, kind wire.Kind, body ...byte) []byte {
	n := len(body) + 2
	return append(append(b, byte(n), byte(n>>8), byte(kind), 1), body...)
}

// probe implements [attack.Program].
func probe(a *attack.Attacker) error {
	p, err := enter(a, settings(1<<20, 1<<20))
	if err != nil {
		return err
	}
	defer func() { _ = p.conn.CloseWithError(0, "") }()
	st, err := p.call(a, request("EmptyCall"))
	if err != nil {
		return err
	}
	b, err := io.ReadAll(st)
	if err != nil {
		return fmt.Errorf("an ordinary call by the attacker's own means: %w", err)
	}
	var d wire.Decoder
	for len(b) > 0 {
		f, n, err := wire.Next(b)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		got, err := d.Stream(f, nil, false)
		if err != nil {
			return err
		}
		if got.End != nil {
			return got.End.Status.Err()
		}
		b = b[n:]
	}
	return fmt.Errorf("an ordinary call by the attacker's own means has no end: %q", b)
}
