package shm

import (
	"net"
	"sync"
)

// holds count who uses memory. It is freed when it was closed and nobody does.
type holds struct {
	drop func() // frees it

	mu     sync.Mutex
	n      int
	closed bool
}

// hold lets the caller use the memory until it calls release.
func (h *holds) hold() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return net.ErrClosed
	}
	h.n++
	return nil
}

func (h *holds) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	h.free()
}

// close lets nobody else use the memory.
func (h *holds) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.free()
}

// free frees the memory if it is not used. mu is held.
func (h *holds) free() {
	if h.closed && h.n == 0 && h.drop != nil {
		h.drop()
		h.drop = nil
	}
}
