package http1

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// A client of HTTP/2 may make requests until it has read GOAWAY, and package http answers those that
// arrive before it writes GOAWAY, and no later ones. So a server that refused calls earlier would lose
// some. A connection has drained when GOAWAY was written and no request is being answered: each
// request that package http will ever answer has become a call then.

// settling is how long Drain waits for a connection. One on which a call runs for longer has
// drained as well, unless the processor was busy for all that time.
const settling = time.Second

// Drain tells the clients of HTTP/2 connections, with GOAWAY, to make no more requests, and waits
// until those that they have made are calls.
func (s *Server) Drain() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // do not wait
	_ = s.http2.Shutdown(ctx)
	s.mu.Lock()
	var open []*conn2
	for c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	deadline := time.After(settling)
	for _, c := range open {
		select {
		case <-c.drain.over:
		case <-deadline:
			return
		}
	}
}

// draining is how far a connection of HTTP/2 has drained.
type draining struct {
	over chan struct{} // closed when the connection has drained or is closed

	mu     sync.Mutex
	header []byte         // of the frame that is being written, as far as it was
	rest   int            // bytes of the frame that were not written
	goAway bool           // GOAWAY was written
	state  http.ConnState // idle if no request is being answered
	isOver bool
}

// changed records the connection's state.
func (d *draining) changed(state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != http.StateClosed {
		d.state = state
	}
	d.endLocked()
}

// wrote looks for GOAWAY in what is written to the connection.
func (d *draining) wrote(b []byte) {
	const (
		size   = 9 // of a frame's header
		goAway = 7
	)
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(b) > 0 && !d.goAway {
		if d.rest > 0 {
			n := min(d.rest, len(b))
			d.rest -= n
			b = b[n:]
			continue
		}
		n := min(size-len(d.header), len(b))
		d.header = append(d.header, b[:n]...)
		b = b[n:]
		if h := d.header; len(h) == size {
			d.rest, d.goAway = int(h[0])<<16|int(h[1])<<8|int(h[2]), h[3] == goAway
			d.header = h[:0]
		}
	}
	d.endLocked()
}

func (d *draining) endLocked() {
	if !d.isOver && (d.state == http.StateClosed || d.goAway && d.state == http.StateIdle) {
		d.isOver = true
		close(d.over)
	}
}
