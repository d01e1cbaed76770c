package shm

import (
	"net"
	"sync"
	"time"
)

// A Conn carries bytes to a peer of this machine and back through memory that
// both see. It is a [mux.Conn] and a [mux.Prompt].
type Conn struct {
	mine, theirs segment
	data         *bell // rings for something in the ring; the socket that all began with
	space        *bell // rings for room in the ring

	// in and out are held by whoever uses the memory of that direction, sleep
	// included: Close frees it when both are free.
	in struct {
		sync.Mutex
		receiver
	}
	out struct {
		sync.Mutex
		sender
	}
	closing sync.Once
	closed  chan struct{}
}

func newConn(mine, theirs segment, data, space *net.UnixConn) (*Conn, error) {
	c := &Conn{mine: mine, theirs: theirs, closed: make(chan struct{})}
	var err error
	if c.data, err = newBell(data); err != nil {
		return nil, err
	}
	if c.space, err = newBell(space); err != nil {
		return nil, err
	}
	c.in.receiver = newReceiver(mine, theirs)
	c.out.sender = newSender(mine, theirs)
	return c, nil
}

// isClosed reports whether the memory may be gone. The caller holds in or out.
func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// TryRead implements [mux.Prompt].
func (c *Conn) TryRead(b []byte) (int, error) {
	c.in.Lock()
	defer c.in.Unlock()
	return c.read(b)
}

// read reads what is there. The caller holds in.
func (c *Conn) read(b []byte) (int, error) {
	if c.isClosed() {
		return 0, net.ErrClosed
	}
	n, wanted, err := c.in.take(b)
	if wanted {
		c.space.ring()
	}
	return n, err
}

// Read implements [io.Reader]. What the peer has sent before it was gone is read
// first.
func (c *Conn) Read(b []byte) (int, error) {
	c.in.Lock()
	defer c.in.Unlock()
	for {
		if n, err := c.read(b); n > 0 || err != nil {
			return n, err
		}
		sleeps, err := c.in.dozeOff()
		if err != nil {
			return 0, err
		}
		if !sleeps {
			continue
		}
		err = c.data.wait()
		if c.isClosed() {
			return 0, net.ErrClosed
		}
		c.in.wakeUp()
		if err != nil {
			if n, readErr := c.read(b); n > 0 || readErr != nil {
				return n, readErr
			}
			return 0, err
		}
	}
}

// TryWrite implements [mux.Prompt].
func (c *Conn) TryWrite(b []byte, all [][]byte) (int, error) {
	c.out.Lock()
	defer c.out.Unlock()
	if all == nil {
		return c.write(b)
	}
	return c.write(all...)
}

// write writes what there is room for. The caller holds out.
func (c *Conn) write(all ...[]byte) (n int, err error) {
	if c.isClosed() {
		return 0, net.ErrClosed
	}
	for _, b := range all {
		put, err := c.out.put(b)
		if err != nil {
			return n, err
		}
		n += put
		if put > 0 && c.out.publish() {
			c.data.ring()
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
	for {
		wrote, err := c.write(b[n:])
		if n += wrote; err != nil || n == len(b) {
			return n, err
		}
		waits, err := c.out.fullUp()
		if err != nil {
			return n, err
		}
		if !waits {
			continue
		}
		err = c.space.wait()
		if c.isClosed() {
			return n, net.ErrClosed
		}
		c.out.goOn()
		if err != nil {
			return n, err
		}
	}
}

// SetReadDeadline implements [mux.Conn]. It is a sleeping Read that it ends.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.data.conn.SetReadDeadline(t) }

// CloseWrite lets the peer see the end when it has read what was written.
func (c *Conn) CloseWrite() error { return c.data.conn.CloseWrite() }

// Close ends a Read and a Write that wait, lets the peer know, and frees the
// memory.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		close(c.closed)
		err = c.data.conn.Close()
		_ = c.space.conn.Close()
		c.in.Lock()
		c.out.Lock()
		c.mine.free()
		c.theirs.free()
		c.out.Unlock()
		c.in.Unlock()
	})
	return err
}
