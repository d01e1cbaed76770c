package chaos

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// A TCPProxy is a [Proxy] for TCP connections.
type TCPProxy struct {
	t       *testing.T
	seed    uint64
	address string // the proxy's own
	server  string

	mu        sync.Mutex
	lis       net.Listener
	crossings map[*crossing]struct{}
	count     uint64
	closed    bool
	did       map[string]int
	all       sync.WaitGroup
}

// A crossing is a proxied connection.
type crossing struct {
	client, server *net.TCPConn
	gate           sync.RWMutex // locked to stall the connection
}

// NewTCPProxy returns a proxy with the faults of seed.
func NewTCPProxy(t *testing.T, seed uint64) *TCPProxy {
	return &TCPProxy{t: t, seed: seed, crossings: make(map[*crossing]struct{}), did: make(map[string]int)}
}

// Forward implements [Proxy].
func (p *TCPProxy) Forward(server net.Addr) string {
	p.server = server.String()
	if err := p.listen("127.0.0.1:0"); err != nil {
		p.t.Fatal(err)
	}
	return "tcp:" + p.address
}

func (p *TCPProxy) listen(address string) error {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lis, p.address = lis, lis.Addr().String()
	p.all.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.cross(conn.(*net.TCPConn)) })
		}
	})
	return nil
}

// cross forwards the connection client.
func (p *TCPProxy) cross(client *net.TCPConn) {
	conn, err := net.Dial("tcp", p.server)
	if err != nil {
		p.t.Errorf("the proxy: %v", err)
		_ = client.Close()
		return
	}
	x := &crossing{client: client, server: conn.(*net.TCPConn)}
	p.mu.Lock()
	p.did["connections"]++
	p.count++
	count := p.count
	p.crossings[x] = struct{}{}
	if p.closed {
		x.reset()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(x, x.client, x.server, rand.New(rand.NewPCG(p.seed, 2*count))) })
	both.Go(func() { p.pump(x, x.server, x.client, rand.New(rand.NewPCG(p.seed, 2*count+1))) })
	both.Wait()
	p.mu.Lock()
	delete(p.crossings, x)
	p.mu.Unlock()
	_ = x.client.Close()
	_ = x.server.Close()
}

// pump forwards one direction of x: delayed, in pieces, and sometimes truncated.
func (p *TCPProxy) pump(x *crossing, from, to *net.TCPConn, r *rand.Rand) {
	buf := make([]byte, 32<<10)
	for ends := false; ; {
		n, err := from.Read(buf[:1+r.IntN(len(buf))])
		switch {
		case err != nil:
			_ = to.CloseWrite()
			return
		case r.IntN(4) == 0:
			time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond)
		case r.IntN(2000) == 0:
			n, ends = n/2, true
		}
		x.gate.RLock()
		err = p.pass(to, buf[:n], r)
		x.gate.RUnlock()
		if ends { // the rest of n is lost, and the connection is reset
			p.reset(x)
			return
		}
		if err != nil { // to was half-closed or reset
			_, _ = io.Copy(io.Discard, from)
			return
		}
	}
}

func (p *TCPProxy) pass(to *net.TCPConn, b []byte, r *rand.Rand) error {
	if r.IntN(8) == 0 {
		for range 50 {
			n := min(1+r.IntN(7), len(b))
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
	}
	_, err := to.Write(b)
	return err
}

// Upset implements [Proxy]. It injects network faults until over is closed.
func (p *TCPProxy) Upset(over <-chan struct{}) {
	r := rand.New(rand.NewPCG(p.seed, 0))
	for pause(over, r, 150*time.Millisecond) {
		x := p.any()
		if x == nil {
			continue
		}
		switch r.IntN(5) {
		case 0, 1:
			p.note("stalls")
			x.gate.Lock()
			pause(over, r, 100*time.Millisecond)
			x.gate.Unlock()
		case 2:
			p.reset(x)
		case 3:
			p.note("half-closes")
			if r.IntN(2) == 0 {
				_ = x.client.CloseWrite()
			} else {
				_ = x.server.CloseWrite()
			}
		case 4:
			p.note("refusals")
			p.mu.Lock()
			_ = p.lis.Close()
			p.mu.Unlock()
			p.reset(x)
			pause(over, r, 150*time.Millisecond)
			if err := Again(func() error { return p.listen(p.address) }); err != nil {
				p.t.Errorf("the proxy listens no more: %v", err)
				return
			}
		}
	}
}

// Did implements [Proxy].
func (p *TCPProxy) Did() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.did)
}

func (p *TCPProxy) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did[what]++
}

// any returns one of the connections, or nil if there is none.
func (p *TCPProxy) any() *crossing {
	p.mu.Lock()
	defer p.mu.Unlock()
	for x := range p.crossings {
		return x
	}
	return nil
}

func (p *TCPProxy) reset(x *crossing) {
	p.note("resets")
	x.reset()
}

func (x *crossing) reset() {
	for _, c := range []*net.TCPConn{x.client, x.server} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// Close implements [Proxy]. It resets all connections and waits for the proxy's goroutines.
func (p *TCPProxy) Close() {
	p.mu.Lock()
	p.closed = true
	_ = p.lis.Close()
	for x := range p.crossings {
		x.reset()
	}
	p.mu.Unlock()
	p.all.Wait()
}
