package shm

import (
	"net"
	"sync"
)

// A fetching reads what the peer has put in its slabs, and keeps them while there is
// something to read: also when the connection has ended, as a message that has
// arrived is there to be received.
//
// Slabs are read by a system call, never through a mapping. Reading a page that the
// peer has not written, or has taken away again, then takes no memory, and where
// memory is short it fails with an error instead of a signal that ends the process.
//
// While the peer lives its slabs are its own memory. When the connection has ended
// nobody else may have them any more, so that what is kept of them counts as this
// side's. Where there is no room for that they go at once.
type fetching struct {
	slabs  peerSlabs
	memory *Memory // of this side

	mu     sync.Mutex
	held   int // how many messages are to be read
	closed bool
	kept   int // what was taken of memory when the connection ended
	gone   bool
}

// peerSlabs are how a fetching deals with the system. read and close may be called
// at a time.
type peerSlabs interface {
	read(b []byte, at int) error
	size() int // of what is there of them, in bytes
	close()
}

// hold keeps the slabs until the caller calls release.
func (f *fetching) hold() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return net.ErrClosed
	}
	f.held++
	return nil
}

func (f *fetching) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held--
	if f.closed && f.held == 0 {
		f.letGo()
	}
}

// close takes in that the connection has ended.
func (f *fetching) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.held > 0 {
		if n := f.slabs.size(); f.memory.take(n) {
			f.kept = n
			return
		}
	}
	f.letGo()
}

// letGo gives the slabs back. mu is held.
func (f *fetching) letGo() {
	if f.gone {
		return
	}
	f.gone = true
	f.slabs.close()
	f.memory.give(f.kept)
	f.kept = 0
}
