//go:build linux

package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offerLine is the start of a client's offer of shared memory, and of the answer.
const offerLine = "nearcall/1 shm\n"

// Offsets of the words and of the ring in a segment: see docs/shm.md.
const (
	atTail   = 128
	atHead   = 256
	atAsleep = 384
	atWants  = 512
	controls = 4096
)

// errDeclined is wrapped by the errors of a server that declines shared memory.
var errDeclined = errors.New("the server declines")

// A ring is the client's end of a connection over shared memory. It is as simple as
// possible: a writer polls for room instead of waiting for a wake-up.
type ring struct {
	data          *net.UnixConn
	room          int // the room socket
	memory        int // the memfd
	slabsAt       int64
	slabs         int64
	mine, theirs  []byte // segments
	sent, taken   uint64
	woken, roomed uint64 // the peer's last sleep, and its last wait for room, that this side has sent a wake-up for
	until         time.Time
}

func (r *ring) word(segment []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&segment[at]))
}

// publish stores v in w, before anything else is loaded. A store alone does not have that
// effect under the race detector, outside of Go's own memory.
func publish(w *atomic.Uint64, v uint64) { w.Swap(v) }

// dialRing connects over shared memory.
func dialRing(target string, until time.Time) (*ring, error) {
	conn, err := dialSocket(target, until)
	if err != nil {
		return nil, err
	}
	data := conn.(*net.UnixConn)
	if err := offer(data); err != nil {
		return nil, err
	}
	r := &ring{data: data, until: until}
	if err := r.open(); err != nil {
		_ = data.Close()
		return nil, err
	}
	_, err = data.Write([]byte{'+'})
	return r, err
}

// offer makes the offer of a client that speaks version 1 and has no features.
func offer(data *net.UnixConn) error {
	_, err := data.Write(append([]byte(offerLine), 2, 1, 0))
	return err
}

// open reads the answer, and maps the segments.
func (r *ring) open() error {
	b, oob := make([]byte, 300), make([]byte, 256)
	n, oobn, _, _, err := r.data.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	verdict := len(offerLine)
	if n < verdict+2 {
		return fmt.Errorf("the answer to the offer is %q", b[:n])
	}
	if b[verdict] != '+' {
		return fmt.Errorf("%w: %q", errDeclined, b[verdict+2:n])
	}
	var terms [4]uint64 // version, features, ring, slabs
	for rest, i := b[verdict+2:n], 0; i < len(terms); i++ {
		v, k := binary.Uvarint(rest)
		if k <= 0 {
			return fmt.Errorf("the answer to the offer is %q", b[:n])
		}
		terms[i], rest = v, rest[k:]
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d messages came with the answer: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		return fmt.Errorf("%d descriptors came with the answer: %w", len(fds), err)
	}
	r.memory, r.room = fds[0], fds[1]
	return r.mapAll(int64(terms[2]), int64(terms[3]))
}

func (r *ring) mapAll(ring, slabs int64) (err error) {
	const unit = 64 << 10
	segment := controls + ring
	part := (segment + unit - 1) / unit * unit
	r.slabs, r.slabsAt = slabs, 2*part+slabs
	if r.theirs, err = unix.Mmap(r.memory, 0, int(segment), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	r.mine, err = unix.Mmap(r.memory, part, int(segment), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return os.NewSyscallError("mmap", err)
}

// Write puts b in the ring. It waits for room until r.until.
func (r *ring) Write(b []byte) (n int, err error) {
	ring := r.mine[controls:]
	for n < len(b) {
		room := len(ring) - int(r.sent-r.word(r.theirs, atHead).Load())
		if room == 0 {
			if time.Now().After(r.until) {
				return n, os.ErrDeadlineExceeded
			}
			if err := r.wake(); err != nil {
				return n, err
			}
			time.Sleep(100 * time.Microsecond)
			continue
		}
		at := int(r.sent & uint64(len(ring)-1))
		k := copy(ring[at:], b[n:min(len(b), n+room)])
		n, r.sent = n+k, r.sent+uint64(k)
		publish(r.word(r.mine, atTail), r.sent)
	}
	return n, r.wake()
}

// wake sends a wake-up over the data socket to a peer that sleeps, once for each sleep.
func (r *ring) wake() error {
	asleep := r.word(r.theirs, atAsleep).Load()
	if asleep&1 == 0 || asleep == r.woken {
		return nil
	}
	r.woken = asleep
	raw, err := r.data.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Write(func(fd uintptr) bool {
		sent = unix.Send(int(fd), []byte{1}, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return true
	}); err != nil {
		return err
	}
	if errors.Is(sent, unix.EAGAIN) {
		return nil
	}
	return sent
}

// Read reads from the peer's ring, and waits for a wake-up if it is empty.
func (r *ring) Read(b []byte) (int, error) {
	ring := r.theirs[controls:]
	for ended := false; ; {
		if n := int(r.word(r.theirs, atTail).Load() - r.taken); n > 0 {
			at := int(r.taken & uint64(len(ring)-1))
			k := copy(b, ring[at:min(len(ring), at+n)])
			r.taken += uint64(k)
			publish(r.word(r.mine, atHead), r.taken)
			if wants := r.word(r.theirs, atWants).Load(); wants&1 != 0 && wants != r.roomed {
				r.roomed = wants
				_ = unix.Send(r.room, []byte{1}, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			}
			return k, nil
		}
		if ended {
			return 0, io.EOF
		}
		asleep := r.word(r.mine, atAsleep)
		asleep.Add(1)
		if r.word(r.theirs, atTail).Load() == r.taken {
			var wakeUps [64]byte
			_, err := r.data.Read(wakeUps[:])
			ended = err != nil
		}
		asleep.Add(1)
	}
}

// Close closes the descriptors. It leaves the memory mapped, as a reader may still use it;
// that is unmapped when the process exits.
func (r *ring) Close() error {
	return errors.Join(r.data.Close(), syscall.Close(r.room), syscall.Close(r.memory))
}

// fill allocates the first n bytes of the client's slabs by writing to them.
func (r *ring) fill(n int64) error {
	m, err := unix.Mmap(r.memory, r.slabsAt, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	clear(m)
	return os.NewSyscallError("munmap", unix.Munmap(m))
}
