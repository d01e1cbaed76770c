package shm

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
)

// A Conn carries bytes between two processes of one machine through shared memory. It is a
// [mux.Conn], a [mux.Prompt] and a [mux.Placer].
type Conn struct {
	mine, theirs side
	data         *waker // woken when bytes were published; the socket of the handshake
	space        *waker // woken when the ring has room again

	// The fields in and out are locks, too. A goroutine that uses the memory of a direction holds
	// its lock, also while it sleeps. Close takes both locks before it unmaps the memory.
	in struct {
		sync.Mutex
		receiver
	}
	out struct {
		sync.Mutex
		sender
	}

	// segmentPaged is how much of this side's segment is allocated, in bytes. Check subtracts it
	// from the pages of the file, and takes the rest for the peer's pages. So it must never be
	// too large, or Check would refuse messages of an honest peer.
	segmentPaged atomic.Int64

	slabs   *arena   // this side's
	fetches fetching // of messages in the peer's slabs
	closing sync.Once
	closed  chan struct{} // once it is closed, the memory may be unmapped: look while in or out is locked

	deadline atomic.Int64 // of Read, as instant returns it; 0 means none
}

// newConn returns the server's or the client's end of the connection in f, and reserves memory for
// it from m. It takes ownership of space, and if it succeeds, of data, too.
func newConn(f *file, server bool, m *Memory, data, space *net.UnixConn) (*Conn, error) {
	c := &Conn{closed: make(chan struct{})}
	var err error
	if c.data, err = newWaker(data); err == nil {
		c.space, err = newWaker(space)
	}
	var mine, theirs side
	if err == nil {
		mine, theirs, err = newSides(f, server, m)
	}
	if err != nil {
		_ = space.Close()
		return nil, err
	}
	c.mine, c.theirs = mine, theirs
	c.slabs = newArena(mine.slabs, mine.memory, ownSlabs{mine})
	c.fetches.slabs, c.fetches.memory = &theirSlabs{theirs}, mine.memory
	c.fetches.there = func() int { return c.slabs.excessPages(f.pages) - int(c.segmentPaged.Load()) }
	c.in.receiver = newReceiver(mine.segment, theirs.segment)
	c.out.sender = newSender(mine.segment, theirs.segment)
	return c, nil
}

// allocateFirst allocates the beginning of this side's segment, the server's or the client's. The
// rest of the ring is allocated as it fills, if the system can do that without the file's lock,
// which a peer can hold.
func (c *Conn) allocateFirst(server bool) error {
	f, s := c.mine.file, c.mine.segment
	at, first := f.layout.segmentAt(server), f.layout.first()
	if !populates() {
		first = len(s)
	}
	allocate := func(from, to int) error {
		err := f.allocate(s[from:to], at+int64(from))
		if err == nil {
			c.segmentPaged.Store(int64(to))
		}
		return err
	}
	if err := allocate(0, first); err != nil {
		return err
	}
	c.out.paged = first - controlIs
	c.out.extend = func(more int) error {
		from := controlIs + c.out.paged
		return allocate(from, from+more)
	}
	return nil
}

func (c *Conn) TryRead(b []byte) (int, error) {
	c.in.Lock()
	defer c.in.Unlock()
	return c.readLocked(b)
}

// readLocked reads the bytes that the peer has published, if any. The caller has locked the field
// in.
func (c *Conn) readLocked(b []byte) (int, error) {
	if link.IsClosed(c.closed) {
		return 0, net.ErrClosed
	}
	n, wanted, err := c.in.read(b)
	if wanted {
		c.space.wake()
	}
	return n, err
}

// Read implements [io.Reader]. If the peer has closed the connection, Read first returns the
// bytes that the peer had sent, and then an error.
func (c *Conn) Read(b []byte) (int, error) {
	c.in.Lock()
	defer c.in.Unlock()
	for vain := 0; ; {
		if d := time.Duration(c.deadline.Load()); d != 0 && instant(time.Now()) >= d { // even if there are bytes, as sockets do
			return 0, os.ErrDeadlineExceeded
		}
		if n, err := c.readLocked(b); n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if err := checkIdleWakes(vain); err != nil {
			return 0, err
		}
		sleeps, err := c.in.startSleeping()
		if err != nil {
			return 0, err
		}
		if !sleeps {
			continue
		}
		wakeUps, err := c.data.wait()
		if link.IsClosed(c.closed) {
			return 0, net.ErrClosed
		}
		if wrong := c.in.wokenBy(wakeUps); wrong != nil {
			return 0, wrong
		}
		if err != nil {
			if n, readErr := c.readLocked(b); n > 0 || readErr != nil {
				return n, readErr
			}
			return 0, err
		}
		vain++
	}
}

func (c *Conn) TryWrite(all ...[]byte) (int, error) {
	c.out.Lock()
	defer c.out.Unlock()
	return c.writeLocked(all...)
}

// writeLocked writes as much as the ring has room for. The caller has locked the field out.
func (c *Conn) writeLocked(all ...[]byte) (n int, err error) {
	if link.IsClosed(c.closed) {
		return 0, net.ErrClosed
	}
	for _, b := range all {
		put, err := c.out.put(b)
		if err != nil {
			return n, err
		}
		n += put
		if put > 0 && c.out.publish() {
			c.data.wake()
		}
		if put < len(b) {
			break
		}
	}
	return n, nil
}

// Write implements [io.Writer].
func (c *Conn) Write(b []byte) (n int, err error) {
	c.out.Lock()
	defer c.out.Unlock()
	for vain := 0; ; {
		wrote, err := c.writeLocked(b[n:])
		if n += wrote; err != nil || n == len(b) {
			return n, err
		}
		if wrote > 0 {
			vain = 0
		}
		if err := checkIdleWakes(vain); err != nil {
			return n, err
		}
		waits, err := c.out.startWaiting()
		if err != nil {
			return n, err
		}
		if !waits {
			continue
		}
		wakeUps, err := c.space.wait()
		if link.IsClosed(c.closed) {
			return n, net.ErrClosed
		}
		vain++
		if wrong := c.out.wokenBy(wakeUps); wrong != nil {
			return n, wrong
		}
		if err == io.EOF {
			err = syscall.EPIPE
		}
		if err != nil {
			return n, err
		}
	}
}

func (c *Conn) Place(n int) (b []byte, at int, ok bool) {
	b, at, ok = c.slabs.allocate(n)
	if ok {
		counters.Shm.LargeMessages.Add(1)
	} else {
		counters.Shm.NoRoom.Add(1)
	}
	return b, at, ok
}

func (c *Conn) Placed(at int)                           { c.slabs.sendAll(at) }
func (c *Conn) Draft(n int) (b []byte, at int, ok bool) { return c.slabs.allocate(n) }
func (c *Conn) Done(at int)                             { c.slabs.done(at) }
func (c *Conn) Returned(at int) error                   { return c.slabs.free(at) }
func (c *Conn) Check(at int) error                      { return c.fetches.check(at) }
func (c *Conn) Fetch(b []byte, at int) error            { return c.fetches.fetch(b, at) }
func (c *Conn) Release(at int)                          { c.fetches.release(at) }

func (c *Conn) PlaceOf(b []byte) (at int, ok bool) {
	if at, ok = c.slabs.send(b); ok {
		counters.Shm.LargeMessages.Add(1)
	}
	return at, ok
}

func (c *Conn) Hold(at, n int) error {
	if all := c.theirs.file.layout.slabs; at < 0 || n <= 0 || n > all || at > all-n {
		return fmt.Errorf("%w: its message of %d bytes at %d is outside of its memory", errBroken, n, at)
	}
	return c.fetches.hold(at, n)
}

var start = time.Now()

// instant returns t as the time since the process started. A time out of range becomes the
// closest one in range, which nanoseconds since 1970 would not.
func instant(t time.Time) time.Duration { return t.Sub(start) }

func (c *Conn) SetReadDeadline(t time.Time) error {
	var d time.Duration
	if !t.IsZero() {
		d = cmp.Or(instant(t), 1)
	}
	c.deadline.Store(int64(d))
	return c.data.conn.SetReadDeadline(t)
}

// CloseWrite lets the peer see end of file once it has read what was written.
func (c *Conn) CloseWrite() error { return c.data.conn.CloseWrite() }

// closeAfterError closes an unused connection, but leaves the data socket open.
func (c *Conn) closeAfterError() {
	_ = c.space.conn.Close()
	c.mine.free()
	c.theirs.free()
}

// Close ends a blocked Read and Write, tells the peer, and frees the memory.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		close(c.closed)
		err = c.data.conn.Close()
		_ = c.space.conn.Close()
		c.slabs.close()
		c.in.Lock()
		c.out.Lock()
		c.mine.freeSegment()
		c.theirs.freeSegment()
		c.out.Unlock()
		c.in.Unlock()
		c.fetches.close() // last, so that messages can be kept in the memory that the others have released
		counters.Shm.Connections.Add(-1)
	})
	return err
}
