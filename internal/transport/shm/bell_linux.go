package shm

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/counters"
)

// A bell is a socket by which this side wakes the peer and is woken by it. Each byte is one ring.
// End of file means that the peer has closed the socket or died.
type bell struct {
	conn *net.UnixConn
	raw  syscall.RawConn

	// The functions are made once, so that calls allocate no closures.
	onRing func(fd uintptr)
	onWait func(fd uintptr) bool
	got    int   // rings that the last wait has received
	err    error // from the last receive of onWait
}

// A wait receives all rings that have arrived, up to maxHeard, so that rings left over from
// earlier sleeps end only one wait. hearing is how many rings one system call receives.
const (
	hearing  = 512
	maxHeard = 8 * hearing
)

func newBell(conn *net.UnixConn) (*bell, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &bell{conn: conn, raw: raw}
	one := []byte{1}
	many := make([]byte, hearing)
	// The peer may share the open file description of the socket and clear its O_NONBLOCK, so
	// each call passes MSG_DONTWAIT.
	b.onRing = func(fd uintptr) {
		// Errors do not matter: if the socket's buffer is full, the bytes in it wake the
		// peer, and a peer that has gone needs no wake-up.
		_ = unix.Sendto(int(fd), one, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
	b.onWait = func(fd uintptr) bool {
		for b.got = 0; b.got < maxHeard; {
			n, _, err := unix.Recvfrom(int(fd), many, unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case b.got > 0 && err != nil: // the socket is empty; if it has failed, the next read returns the error again
				b.err = nil
				return true
			case err != nil:
				b.err = err
				return !errors.Is(err, unix.EAGAIN)
			}
			b.err = nil
			if b.got += n; n < len(many) {
				break
			}
		}
		return true
	}
	return b, nil
}

// ring wakes the peer from its current wait, or makes its next one return at once.
func (b *bell) ring() {
	counters.Shm.Wakeups.Add(1)
	_ = b.raw.Control(b.onRing)
}

// wait blocks until the peer rings, and returns the number of rings. It returns io.EOF when
// the peer has gone, and the socket's error when the read deadline passes. Only one
// goroutine may wait at a time.
func (b *bell) wait() (int, error) {
	err := b.raw.Read(b.onWait)
	switch {
	case err != nil:
		return 0, err
	case errors.Is(b.err, unix.ECONNRESET):
		return 0, io.EOF // the peer has gone without receiving all rings
	case b.err != nil:
		return 0, b.err
	case b.got == 0:
		return 0, io.EOF
	}
	return b.got, nil
}
