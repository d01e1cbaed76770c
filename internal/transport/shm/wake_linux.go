package shm

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/counters"
)

// A waker is a socket by which this side wakes the peer and is woken by it. Each byte is one
// wake-up. End of file means that the peer has closed the socket or died.
type waker struct {
	conn *net.UnixConn
	raw  syscall.RawConn

	// The functions are made once, so that calls allocate no closures.
	onWake func(fd uintptr)
	onWait func(fd uintptr) bool
	got    int   // wake-ups that the last wait has received
	err    error // from the last receive of onWait
}

// A wait receives all wake-ups that have arrived, up to maxWakeUps, so that wake-ups left over from
// earlier sleeps end only one wait. perReceive is how many wake-ups one system call receives.
const (
	perReceive = 512
	maxWakeUps = 8 * perReceive
)

func newWaker(conn *net.UnixConn) (*waker, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &waker{conn: conn, raw: raw}
	one := []byte{1}
	many := make([]byte, perReceive)
	// The peer may share the open file description of the socket and clear its O_NONBLOCK, so
	// each call passes MSG_DONTWAIT.
	b.onWake = func(fd uintptr) {
		// Errors do not matter: if the socket's buffer is full, the bytes in it wake the
		// peer, and a peer that has closed the socket needs no wake-up.
		_ = unix.Sendto(int(fd), one, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
	b.onWait = func(fd uintptr) bool {
		for b.got = 0; b.got < maxWakeUps; {
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

// wake wakes the peer from its current wait, or makes its next one return at once.
func (b *waker) wake() {
	counters.Shm.Wakeups.Add(1)
	_ = b.raw.Control(b.onWake)
}

// wait blocks until the peer sends a wake-up, and returns the number of wake-ups. It returns io.EOF
// when the peer has closed the socket, and the socket's error when the read deadline passes. Only
// one goroutine may wait at a time.
func (b *waker) wait() (int, error) {
	err := b.raw.Read(b.onWait)
	switch {
	case err != nil:
		return 0, err
	case errors.Is(b.err, unix.ECONNRESET):
		return 0, io.EOF // the peer has closed the socket without receiving all wake-ups
	case b.err != nil:
		return 0, b.err
	case b.got == 0:
		return 0, io.EOF
	}
	return b.got, nil
}
