package shm

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
)

// Slots bound how many answers to offers wait for their clients. Each answer holds three
// descriptors of this process, and two more that are on their way to the client.
//
// A correct client answers at once. So while other offers wait for a slot, the oldest answer loses
// its slot and its connection once it has had the slot for longer than grace. In this way, clients
// that do not answer delay the others only a little.
type slots struct {
	grace time.Duration
	free  chan struct{} // a semaphore, with an element for each slot in use

	mu  sync.Mutex
	all []slot // answers that have not been evicted, the oldest first
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

var errSlots = counters.Busy.New("too many other clients set shared memory up")

// acquire waits for a slot, but no longer than timeout. It calls start when it has one, before
// the slot can be evicted.
func (t *slots) acquire(ctx context.Context, conn *net.UnixConn, timeout time.Duration, start func()) error {
	if err := t.waitForFree(ctx, timeout); err != nil {
		return err
	}
	start()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, slot{conn, time.Now()})
	return nil
}

// waitForFree waits until there is a free slot, and takes it.
func (t *slots) waitForFree(ctx context.Context, timeout time.Duration) error {
	select {
	case t.free <- struct{}{}:
		return nil
	default:
	}
	late := time.After(timeout)
	for {
		select {
		case t.free <- struct{}{}: // channels serve waiting senders in order
			return nil
		case <-time.After(t.evictOldest()):
		case <-late:
			return errSlots
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// evictOldest ends the oldest answer if its grace has passed, and returns how long to wait
// before calling it again.
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

// release frees conn's slot.
func (t *slots) release(conn *net.UnixConn) {
	t.mu.Lock()
	t.all = slices.DeleteFunc(t.all, func(u slot) bool { return u.conn == conn })
	t.mu.Unlock()
	<-t.free
}
