package call

import (
	"container/list"
	"context"

	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// At the limit of running handlers a call waits for room. Usually its session's reader
// waits, and so the peer: see serverConn.add. But if handlers call the peer, or the session
// is a client's, handlers may wait for replies that this reader reads. Then each call waits
// on its own goroutine, as each does that such a goroutine has read. These are not more than the session's limit of open calls: a
// call that is reset stops waiting.
//
// Invariant: while a call waits, as many handlers run as the limit allows, or room was
// given to a call that has not taken it yet.

// A waitingCall is a place in the queue for room.
type waitingCall struct {
	given  chan struct{} // closed, and out of the queue, when there is room
	queued *list.Element
}

// giveRoom lets the first waiting call run. workers.mu is held.
func (c *serverConn) giveRoom() {
	if first := c.waiting.Front(); first != nil {
		close(c.waiting.Remove(first).(*waitingCall).given)
	}
}

// giveAllRoom makes all waiting calls look again, because new calls are refused. workers.mu
// is held.
func (c *serverConn) giveAllRoom() {
	for c.waiting.Len() > 0 {
		c.giveRoom()
	}
}

// startLater starts c when there is room, or ends it if its context ends or the connection
// refuses new calls before that. It waits for that itself if the session reads c on a goroutine
// of its own; then it is start, and may run c on the goroutine that l lends. Called with
// workers.mu held, which it releases.
func (w *workers) startLater(c *serverCall, l link.Lender) error {
	place := &waitingCall{given: make(chan struct{})}
	place.queued = c.conn.waiting.PushBack(place)
	c.conn.undecided++
	w.mu.Unlock()
	if c.conn.peer.Parallel {
		return w.startAt(place, c, l)
	}
	go func() {
		if err := w.startAt(place, c, nil); err != nil {
			c.abort(err)
			c.cancel(context.Canceled)
		}
	}()
	return nil
}

// startAt waits at place, and then starts c.
func (w *workers) startAt(place *waitingCall, c *serverCall, l link.Lender) error {
	defer w.decided(c.conn)
	select {
	case <-place.given:
		return w.start(c, l)
	case <-c.Done():
	}
	w.mu.Lock()
	select {
	case <-place.given:
		c.conn.giveRoom() // it is for another call
	default:
		c.conn.waiting.Remove(place.queued)
	}
	w.mu.Unlock()
	c.finish(status.FromContextError(c.Err()))
	return nil
}

// decided records that a call of c that waited runs, has ended or was refused.
func (w *workers) decided(c *serverConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.undecided--
	c.closeIfDrained()
}
