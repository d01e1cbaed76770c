package quic

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/registry"
)

// A countedConn counts the bytes that it receives and sends.
type countedConn struct {
	net.PacketConn
	received, sent, retries atomic.Int64
}

func (c *countedConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	c.received.Add(int64(n))
	return n, from, err
}

func (c *countedConn) WriteTo(b []byte, to net.Addr) (int, error) {
	const kind, retry = 0xf0, 0xf0
	if b[0]&kind == retry {
		c.retries.Add(1)
	}
	c.sent.Add(int64(len(b)))
	return c.PacketConn.WriteTo(b, to)
}

// A deafConn loses all that it receives.
type deafConn struct{ net.PacketConn }

func (c deafConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		if _, from, err := c.PacketConn.ReadFrom(b); err != nil {
			return 0, from, err
		}
	}
}

// counted replaces the listener of n, which nobody serves yet, by one that counts.
func (n *network) counted() *countedConn {
	c := &countedConn{PacketConn: n.lis.pc}
	n.lis = newListener(c, "quic:1.0.0.1:1")
	return c
}

// dialDeaf dials with a socket that receives nothing, until limit has passed.
func (n *network) dialDeaf(t *testing.T, limit time.Duration) {
	d := n.dialer(t, &registry.Settings{})
	listen := d.listen
	d.listen = func() (net.PacketConn, error) {
		pc, err := listen()
		return deafConn{pc}, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := d.Dial(ctx); err == nil {
		t.Error("a handshake was complete although the client was deaf")
	}
}

// Anybody can send packets from the address of somebody else, so a server must not answer with
// more than three times as much (RFC 9000, section 8.1).
func TestAmplificationIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		c := n.counted()
		config, _ := testTLS()
		for range 5 { // longer than the server can send at once
			config.Certificates[0].Certificate = append(config.Certificates[0].Certificate, config.Certificates[0].Certificate...)
		}
		serveOn(t, n.lis, service{}, nearcall.Creds(nearcall.NewTLS(config)))
		n.dialDeaf(t, 10*time.Second)
		time.Sleep(time.Minute) // the server gives up
		if in, out := c.received.Load(), c.sent.Load(); in == 0 || out == 0 || out > 3*in {
			t.Errorf("it received %d bytes, and sent %d", in, out)
		} else {
			t.Logf("it received %d bytes, and sent %d", in, out)
		}
	})
}

func TestManyHandshakesMakeNewClientsShowThatTheyReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		c := n.counted()
		config, _ := testTLS()
		serveOn(t, n.lis, service{}, nearcall.Creds(nearcall.NewTLS(config)))
		var deaf sync.WaitGroup
		for i := range unvalidated {
			deaf.Go(func() { n.dialDeaf(t, 5*time.Second) })
			synctest.Wait()
			if got := c.retries.Load(); got != 0 {
				t.Errorf("client %d was asked to show that it receives", i)
			}
		}
		client := n.client(t)
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Errorf("a client among many handshakes: %v", err)
		}
		asked := c.retries.Load() // one for each packet of its first flight
		if asked == 0 {
			t.Error("it was not asked to show that it receives")
		}
		deaf.Wait()
		time.Sleep(time.Minute) // the server gives up
		if _, err := n.client(t).UnaryCall(t.Context(), empty); err != nil {
			t.Errorf("a client afterwards: %v", err)
		}
		if c.retries.Load() != asked {
			t.Error("it was asked to show that it receives")
		}
	})
}
