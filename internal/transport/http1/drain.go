package http1

import (
	"net/http"
	"sync"
	"time"
)

// A client of HTTP/2 may make requests until it has read GOAWAY, and package http answers those
// that arrive before it writes its own GOAWAY, and no later ones. So a server that refused calls
// earlier would lose some. A connection has drained when GOAWAY was written and no request is being
// answered: each request that package http will ever answer has become a call then.

// drainTimeout is how long Drain waits for a connection. One on which a call runs for longer has
// drained as well, unless the processor was busy for all that time.
const drainTimeout = time.Second

// Drain tells the clients of HTTP/2 connections, with GOAWAY, to make no more requests, and waits
// until those that they have made are calls.
func (s *Server) Drain() {
	open := s.end()
	for _, c := range open {
		go c.leave("graceful_stop") // it could wait for a client that reads nothing, until Close
	}
	deadline := time.After(drainTimeout)
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
	goAway bool           // package http has written GOAWAY
	state  http.ConnState // active while requests are being answered
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

// idle reports whether no request is being answered.
func (d *draining) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state != http.StateActive
}

// goesAway records that package http has written GOAWAY.
func (d *draining) goesAway() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.goAway = true
	d.endLocked()
}

func (d *draining) endLocked() {
	if !d.isOver && (d.state == http.StateClosed || d.goAway && d.state == http.StateIdle) {
		d.isOver = true
		close(d.over)
	}
}
