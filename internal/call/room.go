package call

import (
	"context"

	"google.golang.org/grpc/status"
)

// At the limit of running handlers a call waits for room. Usually its session's reader
// waits, and so the peer: see serverConn.add. But if handlers call the peer, or the session
// is a client's, handlers may wait for replies that this reader reads. Then each call waits
// on a goroutine of its own. These are not more than the session's limit of open calls: a
// call that is reset stops waiting.
//
// Invariant: while a call waits, as many handlers run as the limit allows, or room was
// given to a call that has not taken it yet.

// A waitingCall is a place in the queue for room.
type waitingCall struct{ given chan struct{} } // closed, and out of the queue, when there is room

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
// refuses new calls before that. Called with workers.mu held, which it releases.
func (w *workers) startLater(c *serverCall) {
	place := &waitingCall{make(chan struct{})}
	queued := c.conn.waiting.PushBack(place)
	c.conn.undecided++
	w.mu.Unlock()
	go func() {
		defer w.decided(c.conn)
		select {
		case <-place.given:
		case <-c.Done():
			w.mu.Lock()
			select {
			case <-place.given:
				c.conn.giveRoom() // it is for another call
			default:
				c.conn.waiting.Remove(queued)
			}
			w.mu.Unlock()
			c.finish(status.FromContextError(c.Err()))
			return
		}
		if err := w.start(c, nil); err != nil {
			c.abort(err)
			c.cancel(context.Canceled)
		}
	}()
}

// decided records that a call of c that waited runs, has ended or was refused.
func (w *workers) decided(c *serverConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.undecided--
	c.closeIfDrained()
}
