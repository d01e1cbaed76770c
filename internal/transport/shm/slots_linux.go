package shm

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// Turns bound how many answers to offers wait for their clients. Each of them has
// three descriptors of this process, and two more are in the client's socket.
//
// A client that means well answers at once. So when others wait, whoever has had
// its turn for longer than the grace gives it up, the oldest first: clients that do
// not answer hold up nobody for long.
type slots struct {
	grace time.Duration
	free  chan struct{} // has a token for each turn

	mu  sync.Mutex
	all []slot // those that have not been given up, the oldest first
}

type slot struct {
	conn  *net.UnixConn
	since time.Time
}

const (
	maxHandshakes = 256
	slotGrace     = 100 * time.Millisecond
)

func newSlots(n int) slots { return slots{grace: slotGrace, free: make(chan struct{}, n)} }

var errSlots = errors.New("too many other clients set shared memory up")

// acquire waits for a turn, for so long at most. start is called when the turn comes,
// before anybody can end it.
func (t *slots) acquire(ctx context.Context, conn *net.UnixConn, most time.Duration, start func()) error {
	if err := t.waitForFree(ctx, most); err != nil {
		return err
	}
	start()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, slot{conn, time.Now()})
	return nil
}

// waitForFree waits for room for a turn.
func (t *slots) waitForFree(ctx context.Context, most time.Duration) error {
	select {
	case t.free <- struct{}{}:
		return nil
	default:
	}
	late := time.After(most)
	for {
		select {
		case t.free <- struct{}{}: // in the order of those that wait
			return nil
		case <-time.After(t.evictOldest()):
		case <-late:
			return errSlots
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// evictOldest ends the oldest turn, if it has had its time, and returns how long it takes
// until another may be ended.
func (t *slots) evictOldest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == 0 {
		return t.grace
	}
	if left := time.Until(t.all[0].since.Add(t.grace)); left > 0 {
		return left
	}
	_ = t.all[0].conn.SetDeadline(time.Unix(1, 0))
	t.all = slices.Delete(t.all, 0, 1)
	return t.grace
}

// release ends conn's turn.
func (t *slots) release(conn *net.UnixConn) {
	t.mu.Lock()
	t.all = slices.DeleteFunc(t.all, func(u slot) bool { return u.conn == conn })
	t.mu.Unlock()
	<-t.free
}
