package mux

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// A line is a side of a connection in memory, for synctest bubbles. Like a socket it holds a
// limited number of bytes in each direction, has nonblocking reads and writes, and takes and gives
// as much of them as it likes. In a bubble a test that deadlocks over it fails at once.
type line struct {
	in, out *half
	delays  *delays
}

// newLine returns both sides of a line that holds so many bytes in each direction.
func newLine(t *testing.T, room int, d *delays) (client, server *line) {
	t.Cleanup(func() { time.Sleep(time.Second) }) // a timer's write may still pause when its session has gone
	up, down := newHalf(room), newHalf(room)
	return &line{in: down, out: up, delays: d}, &line{in: up, out: down, delays: d}
}

// A half is one direction.
type half struct {
	mu       sync.Mutex
	change   sync.Cond
	b        bytes.Buffer
	room     int
	closed   bool        // for writing
	broken   bool        // the reader's side was closed
	deadline *time.Timer // of Read
	late     bool        // it has passed
}

func newHalf(room int) *half {
	h := &half{room: room}
	h.change.L = &h.mu
	return h
}

// delays let other goroutines run at random moments. The pauses take time of the bubble only.
type delays struct {
	mu sync.Mutex
	r  *rand.Rand // nil for no delays
}

func (d *delays) pause() {
	time.Sleep(time.Microsecond) // a spin lasts, too
	if d.r == nil {
		return
	}
	d.mu.Lock()
	var pause time.Duration
	switch d.r.IntN(16) {
	case 0:
		pause = time.Duration(d.r.IntN(100)) * time.Microsecond
	case 1:
		pause = time.Duration(d.r.IntN(8000)) * time.Microsecond // around idleTime
	}
	d.mu.Unlock()
	time.Sleep(pause)
}

// take moves what is there into b, or reports that there will be nothing. mu is held.
func (h *half) take(b []byte) (int, error) {
	switch {
	case h.broken:
		return 0, net.ErrClosed
	case h.b.Len() == 0 && h.closed:
		return 0, io.EOF
	}
	n, _ := h.b.Read(b)
	h.change.Broadcast()
	return n, nil
}

// put adds as much of b as there is room for. mu is held.
func (h *half) put(b []byte) (int, error) {
	switch {
	case h.closed:
		return 0, net.ErrClosed
	case h.broken:
		return 0, io.ErrClosedPipe
	}
	n := min(len(b), h.room-h.b.Len())
	h.b.Write(b[:n])
	h.change.Broadcast()
	return n, nil
}

func (c *line) TryRead(b []byte) (int, error) {
	c.delays.pause()
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.b.Len() == 0 && !h.closed && !h.broken {
		return 0, nil
	}
	return h.take(b)
}

func (c *line) Read(b []byte) (int, error) {
	c.delays.pause()
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.b.Len() == 0 && !h.closed && !h.broken {
		if h.late {
			return 0, os.ErrDeadlineExceeded
		}
		h.change.Wait()
	}
	if h.late {
		return 0, os.ErrDeadlineExceeded
	}
	return h.take(b)
}

func (c *line) TryWrite(all ...[]byte) (n int, err error) {
	c.delays.pause()
	h := c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range all {
		var wrote int
		wrote, err = h.put(b)
		if n += wrote; wrote < len(b) || err != nil {
			break
		}
	}
	return n, err
}

func (c *line) Write(b []byte) (n int, err error) {
	c.delays.pause()
	h := c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		var wrote int
		wrote, err = h.put(b[n:])
		if n += wrote; n == len(b) || err != nil {
			return n, err
		}
		h.change.Wait()
	}
}

func (c *line) SetReadDeadline(t time.Time) error {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deadline != nil {
		h.deadline.Stop()
		h.deadline = nil
	}
	h.late = false
	switch d := time.Until(t); {
	case t.IsZero():
	case d <= 0:
		h.late = true
		h.change.Broadcast()
	default:
		var own *time.Timer
		own = time.AfterFunc(d, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.deadline == own {
				h.late = true
				h.change.Broadcast()
			}
		})
		h.deadline = own
	}
	return nil
}

func (c *line) CloseWrite() error {
	c.out.set(func(h *half) { h.closed = true })
	return nil
}

func (c *line) Close() error {
	c.out.set(func(h *half) { h.closed = true })
	c.in.set(func(h *half) { h.broken = true })
	return c.SetReadDeadline(time.Time{})
}

func (h *half) set(f func(*half)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
	h.change.Broadcast()
}

// A veiled line is one without nonblocking reads and writes, like TLS.
type veiled struct{ *line }

func (veiled) TryRead()  {}
func (veiled) TryWrite() {}
