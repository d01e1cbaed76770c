package grpcinside

import (
	"encoding/binary"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
)

// A sessionConn is the connection that grpc-go's transport gets for a SubConn with a session. It plays
// a server of HTTP/2 that answers SETTINGS and PINGs, and ends when the session takes no more calls.
// If grpc-go opens a stream (a health check, say), or does anything else that a sessionConn does not
// answer, the sessionConn starts a grpc.Server that relays to the session. It implements [net.Conn].
type sessionConn struct {
	session link.Session
	serve   func(...grpc.ServerOption) *grpc.Server
	end     func() // called once when grpc-go closes the connection
	closed  chan struct{}
	wake    chan struct{} // capacity 1; tells Read of out and server

	mu       sync.Mutex
	isClosed bool
	in       []byte   // bytes from grpc-go that were not handled; they begin with a frame
	begun    bool     // the preface was read
	settings []byte   // the payloads of grpc-go's SETTINGS
	updates  []byte   // its WINDOW_UPDATE frames
	out      []byte   // bytes that grpc-go has not read yet
	server   net.Conn // leads to a grpc.Server, after the first stream was opened
}

// pipeBuffer is the size of buffers for what grpc-go and a sessionConn's server say to each other. It
// is small, because each SubConn can have a server, and its calls are.
const pipeBuffer = 2 << 10

const (
	preface   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHead = 9 // the head of a frame, in bytes

	frameSettings     = 4
	framePing         = 6
	frameWindowUpdate = 8
	flagAck           = 1
)

// NewSessionConn returns a connection for a SubConn with the session s. serve makes a server with more
// options, which relays calls to s. end is called once when the connection is closed. It has a method ReadOnReady.
func NewSessionConn(s link.Session, serve func(...grpc.ServerOption) *grpc.Server, end func()) net.Conn {
	return &sessionConn{session: s, serve: serve, end: end, closed: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// frame appends a frame of stream 0.
func frame(b []byte, kind, flags byte, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags, 0, 0, 0, 0)
	return append(b, payload...)
}

func (c *sessionConn) Read(b []byte) (int, error) {
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

// ReadOnReady reads up to size bytes into a buffer of the pool, once there are any. grpc-go's transport
// reads through a buffer of 32 KiB. With this method it has one only while there is something to read,
// so that clients of many servers need less memory. A server's pipe cannot tell, so its buffer is small.
func (c *sessionConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if err := c.ready(); err != nil {
		return nil, 0, err
	}
	b := pool.Get(min(size, pipeBuffer))
	n, err := c.Read(*b)
	if n == 0 {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err
}

// ready waits until there is something to read, or a server from which to read.
func (c *sessionConn) ready() error {
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

func (c *sessionConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	if server := c.server; server != nil {
		c.mu.Unlock()
		return server.Write(b)
	}
	c.in = append(c.in, b...)
	first := c.answerLocked()
	server := c.server
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	if server != nil {
		if _, err := server.Write(first); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// answerLocked handles the frames that grpc-go has written. At the first other one it starts the
// server, and returns what the server must be sent first.
func (c *sessionConn) answerLocked() (first []byte) {
	if !c.begun {
		if !Frames.Found() {
			return c.serveLocked()
		}
		if len(c.in) < len(preface) {
			return nil
		}
		c.begun, c.in = true, c.in[len(preface):]
		c.out = frame(c.out, frameSettings, 0, nil)
	}
	for len(c.in) >= frameHead {
		n := frameHead + int(binary.BigEndian.Uint32(c.in)>>8)
		if len(c.in) < n {
			return nil
		}
		payload, ack := c.in[frameHead:n], c.in[4]&flagAck != 0
		switch kind := c.in[3]; {
		case kind == frameSettings && !ack:
			c.settings = append(c.settings, payload...)
			c.out = frame(c.out, frameSettings, flagAck, nil)
		case kind == framePing && !ack:
			c.out = frame(c.out, framePing, flagAck, payload)
		case kind == frameWindowUpdate:
			c.updates = append(c.updates, c.in[:n]...)
		case !ack:
			return c.serveLocked()
		}
		c.in = c.in[n:]
	}
	return nil
}

// serveLocked starts a grpc.Server, and returns what grpc-go has sent so far. The server's SETTINGS are
// not the first ones that grpc-go gets, which HTTP/2 allows. When the session is done the server says
// so with GOAWAY, and calls that run can finish.
func (c *sessionConn) serveLocked() (first []byte) {
	server := c.serve(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxHeaderListSize(math.MaxInt32),
		grpc.ReadBufferSize(pipeBuffer), grpc.WriteBufferSize(pipeBuffer),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}))
	listener := bufconn.Listen(pipeBuffer)
	go func() { _ = server.Serve(listener) }()
	near, _ := listener.Dial() // it fails only after the server has stopped
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
	first = c.in
	if c.begun {
		first = append(append(frame([]byte(preface), frameSettings, 0, c.settings), c.updates...), c.in...)
	}
	c.server, c.in, c.updates = near, nil, nil
	return first
}

func (c *sessionConn) Close() error {
	c.mu.Lock()
	first := !c.isClosed
	c.isClosed = true
	c.mu.Unlock()
	if first {
		close(c.closed)
		c.end()
	}
	return nil
}

func (c *sessionConn) LocalAddr() net.Addr  { return c.session.Peer().LocalAddr }
func (c *sessionConn) RemoteAddr() net.Addr { return c.session.Peer().Addr }

// Deadlines have no effect: grpc-go closes the connection to end a Read or Write.

func (*sessionConn) SetDeadline(time.Time) error      { return nil }
func (*sessionConn) SetReadDeadline(time.Time) error  { return nil }
func (*sessionConn) SetWriteDeadline(time.Time) error { return nil }
