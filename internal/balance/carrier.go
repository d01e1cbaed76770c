package balance

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/relay"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// A carrier is the connection that grpc-go's transport gets for a SubConn with a session. It plays a
// server of HTTP/2 that answers SETTINGS and PINGs, and ends when the session takes no more calls.
// When grpc-go opens a stream, such as a health check, a grpc.Server goes on, which passes calls on to
// the session.
type carrier struct {
	session link.Session
	end     func() // called once when grpc-go closes the connection
	closed  chan struct{}
	wake    chan struct{} // capacity 1; tells Read of out and server

	mu       sync.Mutex
	isClosed bool
	in       []byte   // what grpc-go has written and was not handled; it begins with a frame
	begun    bool     // the preface was read
	settings []byte   // the payloads of grpc-go's SETTINGS
	updates  []byte   // its WINDOW_UPDATE frames
	out      []byte   // what grpc-go has not read yet
	server   net.Conn // leads to a grpc.Server, after the first stream was opened
}

// pipeBuffer is the size of buffers for what grpc-go and a carrier's server say to each other. It is
// small, because each SubConn can have a server, and its calls are.
const pipeBuffer = 2 << 10

const (
	preface   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHead = 9 // the head of a frame, in bytes

	frameHeaders      = 1
	frameSettings     = 4
	framePing         = 6
	frameWindowUpdate = 8
	flagAck           = 1
)

func newCarrier(s link.Session, end func()) *carrier {
	return &carrier{session: s, end: end, closed: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// frame appends a frame of stream 0.
func frame(b []byte, kind, flags byte, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags, 0, 0, 0, 0)
	return append(b, payload...)
}

// Read implements [net.Conn].
func (c *carrier) Read(b []byte) (int, error) {
	if err := c.ready(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	n := copy(b, c.out)
	c.out = c.out[n:]
	server := c.server
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	return server.Read(b)
}

// ready waits until there is something to read, or a server from which to read.
func (c *carrier) ready() error {
	for {
		c.mu.Lock()
		ready := len(c.out) > 0 || c.server != nil
		c.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-c.wake:
		case <-c.session.Done():
			return io.EOF
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

// Write implements [net.Conn].
func (c *carrier) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	if server := c.server; server != nil {
		c.mu.Unlock()
		return server.Write(b)
	}
	defer c.mu.Unlock()
	c.in = append(c.in, b...)
	c.answerLocked()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return len(b), nil
}

// answerLocked handles the frames that grpc-go has written.
func (c *carrier) answerLocked() {
	if !c.begun {
		if len(c.in) < len(preface) {
			return
		}
		c.begun, c.in = true, c.in[len(preface):]
		c.out = frame(c.out, frameSettings, 0, nil)
	}
	for len(c.in) >= frameHead {
		n := frameHead + int(binary.BigEndian.Uint32(c.in)>>8)
		if len(c.in) < n {
			return
		}
		payload, ack := c.in[frameHead:n], c.in[4]&flagAck != 0
		switch kind := c.in[3]; {
		case kind == frameHeaders:
			c.serveLocked()
			return
		case kind == frameSettings && !ack:
			c.settings = append(c.settings, payload...)
			c.out = frame(c.out, frameSettings, flagAck, nil)
		case kind == framePing && !ack:
			c.out = frame(c.out, framePing, flagAck, payload)
		case kind == frameWindowUpdate:
			c.updates = append(c.updates, c.in[:n]...)
		}
		c.in = c.in[n:]
	}
}

// serveLocked lets a grpc.Server go on. That gets what grpc-go has sent so far. The server's
// SETTINGS are not the first ones that grpc-go gets, which HTTP/2 allows. When the session is done the
// server says so with GOAWAY, and calls that run can finish.
func (c *carrier) serveLocked() {
	first := frame([]byte(preface), frameSettings, 0, c.settings)
	first = append(append(first, c.updates...), c.in...)
	near, far := net.Pipe()
	c.server, c.in, c.updates = near, nil, nil
	b := &bridge{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	b.conns <- &bridged{Conn: far, first: first}
	accept := func(context.Context) (link.Acceptor, error) {
		return &relay.Acceptor{To: c.session, Go: func(f func()) { go f() }}, nil
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(grpcgo.Handler(accept)), grpc.ForceServerCodecV2(grpcgo.Codec()),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxHeaderListSize(math.MaxInt32),
		grpc.ReadBufferSize(pipeBuffer), grpc.WriteBufferSize(pipeBuffer),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}))
	go func() { _ = server.Serve(b) }()
	go func() {
		select {
		case <-c.session.Done():
			go server.GracefulStop()
			<-c.closed
		case <-c.closed:
		}
		_ = near.Close()
		server.Stop()
	}()
}

// Close implements [net.Conn].
func (c *carrier) Close() error {
	c.mu.Lock()
	over := c.isClosed
	c.isClosed = true
	c.mu.Unlock()
	if !over {
		close(c.closed)
		c.end()
	}
	return nil
}

// LocalAddr implements [net.Conn].
func (c *carrier) LocalAddr() net.Addr { return c.session.Peer().LocalAddr }

// RemoteAddr implements [net.Conn].
func (c *carrier) RemoteAddr() net.Addr { return c.session.Peer().Addr }

// SetDeadline implements [net.Conn]. Deadlines have no effect: Write does not wait, and grpc-go closes
// the connection to end a Read.
func (*carrier) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements [net.Conn].
func (*carrier) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements [net.Conn].
func (*carrier) SetWriteDeadline(time.Time) error { return nil }

// A bridge is the listener of a carrier's grpc.Server. It has one connection.
type bridge struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept implements [net.Listener].
func (b *bridge) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (b *bridge) Close() error {
	b.once.Do(func() {
		close(b.closed)
		select {
		case c := <-b.conns: // the server was stopped before it began
			_ = c.Close()
		default:
		}
	})
	return nil
}

// Addr implements [net.Listener].
func (*bridge) Addr() net.Addr { return bridgeAddr{} }

// bridgeAddr is the address of a bridge, which nobody dials.
type bridgeAddr struct{}

// Network implements [net.Addr].
func (bridgeAddr) Network() string { return "nearcall" }

// String implements [net.Addr].
func (bridgeAddr) String() string { return "nearcall" }

// bridged is the server's end of a connection. Read returns first before what arrives.
type bridged struct {
	net.Conn
	first []byte
}

// Read implements [net.Conn].
func (b *bridged) Read(to []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(to, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(to)
}
