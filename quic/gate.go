package quic

import (
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/ipv4"
)

// A gate knows whether a packet of the server has arrived on a client's new connection.
//
// With the server's first packets quic-go replaces the limits that it remembers of an earlier
// connection, and it reads them without a lock when a stream is opened and when the connection is
// asked for its state (its issue 4303). So both must happen before the first packet reaches
// quic-go, or after the handshake. A function that runs in before has returned when the gate's
// socket returns the first packet, and none runs in before after that.
type gate struct {
	passed atomic.Bool // a packet has arrived; written under mu
	mu     sync.Mutex
}

// before runs f and returns true if no packet has arrived.
func (g *gate) before(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.passed.Load() {
		return false
	}
	f()
	return true
}

// pass is called when a packet has arrived.
func (g *gate) pass() {
	if g.passed.Load() {
		return
	}
	g.mu.Lock()
	g.passed.Store(true)
	g.mu.Unlock()
}

// watch returns pc as a socket whose packets pass the gate.
func (g *gate) watch(pc net.PacketConn) net.PacketConn {
	if u, ok := pc.(*net.UDPConn); ok {
		return &gatedUDP{UDPConn: u, batches: ipv4.NewPacketConn(u), gate: g}
	}
	return gatedConn{pc, g}
}

type gatedConn struct {
	net.PacketConn
	gate *gate
}

func (c gatedConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	c.gate.pass()
	return n, from, err
}

// A gatedUDP has the methods by which quic-go reads a UDP socket, on the different systems.
type gatedUDP struct {
	*net.UDPConn
	batches *ipv4.PacketConn
	gate    *gate
}

func (c *gatedUDP) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.UDPConn.ReadFrom(b)
	c.gate.pass()
	return n, from, err
}

func (c *gatedUDP) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, from *net.UDPAddr, err error) {
	n, oobn, flags, from, err = c.UDPConn.ReadMsgUDP(b, oob)
	c.gate.pass()
	return n, oobn, flags, from, err
}

func (c *gatedUDP) ReadBatch(m []ipv4.Message, flags int) (int, error) {
	n, err := c.batches.ReadBatch(m, flags)
	c.gate.pass()
	return n, err
}
