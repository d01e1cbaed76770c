package shm

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A bell is a socket that one side rings, by a byte, and the other waits for.
// Its end says that the peer is gone.
type bell struct {
	conn *net.UnixConn
	raw  syscall.RawConn

	// The functions are made once, so that no call makes a closure.
	onRing func(fd uintptr)
	onWait func(fd uintptr) bool
	got    int   // how many rings onWait has heard
	err    error // of onWait
}

// A side hears all rings that have arrived, up to maxHeard, so that those left
// over from earlier sleeps wake it once. hearing is how many it takes at a time.
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
	// A peer may have the socket's own description, and have made it block:
	// MSG_DONTWAIT is of each call.
	b.onRing = func(fd uintptr) {
		// One that cannot be rung for bytes that wait there rings already, and
		// that of a peer that is gone need not be.
		_ = unix.Sendto(int(fd), one, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
	b.onWait = func(fd uintptr) bool {
		for b.got = 0; b.got < maxHeard; {
			n, _, err := unix.Recvfrom(int(fd), many, unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case b.got > 0 && err != nil: // nothing more now, or an error that comes again
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

// ring wakes the peer where it waits, or lets its next wait end at once.
func (b *bell) ring() {
	counters.bells.Add(1)
	_ = b.raw.Control(b.onRing)
}

// wait waits until the peer rings, and returns how often it has. Its error is
// io.EOF when the peer is gone, and that of a deadline. One goroutine may wait at a
// time.
func (b *bell) wait() (int, error) {
	err := b.raw.Read(b.onWait)
	switch {
	case err != nil:
		return 0, err
	case errors.Is(b.err, unix.ECONNRESET):
		return 0, io.EOF // it is gone with rings that it did not hear
	case b.err != nil:
		return 0, b.err
	case b.got == 0:
		return 0, io.EOF
	}
	return b.got, nil
}
