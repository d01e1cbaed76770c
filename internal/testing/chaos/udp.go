package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A UDPProxy is a [Proxy] for datagrams. It loses, delays, repeats, reorders and garbles them, and
// changes the address that the server sees for a client, as a NAT does.
type UDPProxy struct {
	t      *testing.T
	seed   uint64
	server *net.UDPAddr
	own    *net.UDPConn // clients send to it
	calm   atomic.Bool  // no more faults
	closed chan struct{}

	mu    sync.Mutex
	flows map[netip.AddrPort]*flow // by client
	did   map[string]int
	all   sync.WaitGroup // goroutines, and datagrams under way
}

// A flow is what one client and the server send each other.
type flow struct {
	client  netip.AddrPort
	silent  atomic.Bool                 // loses everything
	outward atomic.Pointer[net.UDPConn] // connected to the server
}

// NewUDPProxy returns a proxy with the faults of seed.
func NewUDPProxy(t *testing.T, seed uint64) *UDPProxy {
	return &UDPProxy{t: t, seed: seed, closed: make(chan struct{}), flows: make(map[netip.AddrPort]*flow), did: make(map[string]int)}
}

// Forward implements [Proxy]. The target is one of QUIC.
func (p *UDPProxy) Forward(server net.Addr) string {
	p.server = server.(*net.UDPAddr)
	own, err := net.ListenUDP("udp", &net.UDPAddr{IP: p.server.IP})
	if err != nil {
		p.t.Fatal(err)
	}
	p.own = own
	p.all.Go(p.outward)
	return "quic:" + own.LocalAddr().String()
}

// maxDatagram is the size of the largest datagram, in bytes.
const maxDatagram = 64 << 10

// outward forwards what clients send.
func (p *UDPProxy) outward() {
	r := rand.New(rand.NewPCG(p.seed, 1))
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := p.own.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // a client that has gone
		}
		f, err := p.flowOf(from)
		if err != nil {
			p.t.Errorf("the proxy: %v", err)
			return
		}
		p.pass(r, f, buf[:n], func(b []byte) { _, _ = f.outward.Load().Write(b) })
	}
}

// flowOf returns the flow of a client, which it begins with the client's first datagram.
func (p *UDPProxy) flowOf(client netip.AddrPort) (*flow, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flows[client]; f != nil {
		return f, nil
	}
	f := &flow{client: client}
	if err := p.openLocked(f); err != nil {
		return nil, err
	}
	p.did["clients"]++
	p.flows[client] = f
	return f, nil
}

// openLocked gives f another socket towards the server, and so another address. mu is held.
func (p *UDPProxy) openLocked(f *flow) error {
	c, err := net.DialUDP("udp", nil, p.server)
	if err != nil {
		return err
	}
	if old := f.outward.Swap(c); old != nil {
		_ = old.Close()
	}
	p.did["sockets"]++
	r := rand.New(rand.NewPCG(p.seed, uint64(p.did["sockets"])+1))
	p.all.Go(func() { p.inward(r, f, c) })
	return nil
}

// inward forwards what the server sends to a socket of f.
func (p *UDPProxy) inward(r *rand.Rand, f *flow, c *net.UDPConn) {
	buf := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // the server does not listen at the moment
		}
		p.pass(r, f, buf[:n], func(b []byte) { _, _ = p.own.WriteToUDPAddrPort(b, f.client) })
	}
}

// pass sends a datagram, or does something else to it.
func (p *UDPProxy) pass(r *rand.Rand, f *flow, b []byte, send func([]byte)) {
	if p.calm.Load() {
		send(b)
		return
	}
	n := r.IntN(1000)
	switch {
	case f.silent.Load():
		p.note("lost in silence")
	case n < 20:
		p.note("lost")
	case n < 60: // those behind it overtake it
		p.note("delayed")
		p.later(time.Duration(r.IntN(20_000))*time.Microsecond, slices.Clone(b), send)
	case n < 70:
		p.note("repeated")
		send(b)
		send(b)
	case n < 75:
		p.note("garbled")
		b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
		send(b)
	case n < 80:
		p.note("cut")
		send(b[:r.IntN(len(b))])
	default:
		send(b)
	}
}

// later sends b after d.
func (p *UDPProxy) later(d time.Duration, b []byte, send func([]byte)) {
	p.all.Go(func() {
		select {
		case <-p.closed:
		case <-time.After(d):
			send(b)
		}
	})
}

// rebindEvery is the least time between two rebindings. quic-go validates three addresses of a client
// at most, and forgets those that it could not validate after 5 seconds. If addresses change faster,
// the connection is lost.
const rebindEvery = 2 * time.Second

// Upset implements [Proxy]. Once over is closed there are no more faults, because endings on both
// sides can wait for a lost datagram for longer than a run.
func (p *UDPProxy) Upset(over <-chan struct{}) {
	defer p.calm.Store(true)
	r := rand.New(rand.NewPCG(p.seed, 0))
	noise := make([]byte, 1500)
	rebound := time.Now()
	for pause(over, r, 150*time.Millisecond) {
		f := p.any(r)
		if f == nil {
			continue
		}
		switch r.IntN(3) {
		case 0:
			p.note("silences")
			f.silent.Store(true)
			pause(over, r, 200*time.Millisecond)
			f.silent.Store(false)
		case 1:
			if time.Since(rebound) < rebindEvery {
				continue
			}
			rebound = time.Now()
			p.note("rebindings")
			p.mu.Lock()
			err := p.openLocked(f)
			p.mu.Unlock()
			if err != nil {
				p.t.Errorf("the proxy: %v", err)
				return
			}
		case 2:
			p.note("noise")
			for i := range noise {
				noise[i] = byte(r.Uint32())
			}
			b := noise[:r.IntN(len(noise))]
			_, _ = f.outward.Load().Write(b)
			_, _ = p.own.WriteToUDPAddrPort(b, f.client)
		}
	}
}

// any returns one of the flows, or nil if there is none.
func (p *UDPProxy) any(r *rand.Rand) *flow {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flows) == 0 {
		return nil
	}
	n := r.IntN(len(p.flows))
	for _, f := range p.flows {
		if n == 0 {
			return f
		}
		n--
	}
	return nil
}

// Did implements [Proxy].
func (p *UDPProxy) Did() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.did)
}

func (p *UDPProxy) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did[what]++
}

// Close implements [Proxy]. It waits for the proxy's goroutines.
func (p *UDPProxy) Close() {
	close(p.closed)
	_ = p.own.Close()
	p.mu.Lock()
	for _, f := range p.flows {
		_ = f.outward.Load().Close()
	}
	p.mu.Unlock()
	p.all.Wait()
}
