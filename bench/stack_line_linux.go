package main

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() { stacks["watched-line"] = stack{serveLine, dialLine} }

// A line is a cache line that two processes share. It holds one message. The first word
// says which process owns it, and both poll that word.
type line struct {
	page    []byte
	turn    *atomic.Uint32
	message []byte         // the rest of the line
	asleep  *atomic.Uint32 // in another line: the server sleeps and must be woken
}

// The owners of a line.
const (
	lineClients uint32 = iota
	lineServers
	lineNobodys // the line has ended
)

// lineVigil is how long a server polls before it sleeps, so that it does not take a
// processor from other rivals while they are measured.
const lineVigil = time.Millisecond

// newLine returns a line, and the path by which another process can open it until file is
// closed.
func newLine() (_ *line, at string, file *os.File, err error) {
	fd, err := unix.MemfdCreate("line", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", nil, fmt.Errorf("memfd_create: %w", err)
	}
	file = os.NewFile(uintptr(fd), "line")
	var l *line
	if err = file.Truncate(int64(os.Getpagesize())); err == nil {
		l, err = mapLine(fd)
	}
	if err != nil {
		return nil, "", nil, errors.Join(err, file.Close())
	}
	return l, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), file, nil
}

// openLine returns the line of another process.
func openLine(at string) (*line, error) {
	file, err := os.OpenFile(at, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return mapLine(int(file.Fd()))
}

func mapLine(fd int) (*line, error) {
	page, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	word := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&page[at])) }
	return &line{page: page, turn: word(0), message: page[unsafe.Sizeof(atomic.Uint32{}):lineSize], asleep: word(4 * lineSize)}, nil
}

// free unmaps the line, which must not be used afterwards.
func (l *line) free() { _ = unix.Munmap(l.page) }

// watch polls until the owner is not whose, or the time is up, and returns the owner.
func (l *line) watch(whose uint32, long time.Duration) uint32 {
	const looks = 4096 // polls per reading of the clock
	start := time.Duration(-1)
	for {
		for range looks {
			if turn := l.turn.Load(); turn != whose {
				return turn
			}
		}
		switch {
		case start < 0:
			start = now()
		case now()-start > long:
			return whose
		}
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // the other process might need this processor
	}
}

// swap sends a message, waits for the answer and returns it.
func (l *line) swap(message []byte) ([]byte, error) {
	if len(message) > len(l.message) {
		return nil, fmt.Errorf("%d bytes are too many for a cache line", len(message))
	}
	copy(l.message, message)
	if !l.turn.CompareAndSwap(lineClients, lineServers) {
		return nil, errors.New("the line is nobody's any more")
	}
	if l.asleep.Load() != 0 {
		l.wake()
	}
	switch l.watch(lineServers, patience) {
	case lineServers:
		return nil, fmt.Errorf("no answer in %v", patience)
	case lineNobodys:
		return nil, errors.New("the line has become nobody's")
	}
	return l.message[:len(message)], nil
}

// serve calls answer to change each message in place, until the line ends.
func (l *line) serve(answer func(message []byte)) {
	for {
		switch l.watch(lineClients, lineVigil) {
		case lineServers:
			answer(l.message)
			l.turn.CompareAndSwap(lineServers, lineClients)
		case lineNobodys:
			return
		default:
			l.asleep.Store(1)
			l.sleep()
			l.asleep.Store(0)
		}
	}
}

// end ends the line for both processes.
func (l *line) end() {
	l.turn.Store(lineNobodys)
	l.wake()
}

// sleep waits until the server is woken. It returns at once if the client does not own the
// line any more.
func (l *line) sleep() {
	const futexWait = 0
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(l.turn)), futexWait, uintptr(lineClients), 0, 0, 0)
}

func (l *line) wake() {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(l.turn)), futexWake, 1, 0, 0, 0)
}

// serveLine makes a line and sends back every message in it. It ignores the network and the
// services.
func serveLine(string, string, Services) (string, func(), error) {
	return serveLineAs(func([]byte) {})
}

// serveLineAs is serveLine, but answer changes each message first.
func serveLineAs(answer func(message []byte)) (string, func(), error) {
	l, at, file, err := newLine()
	if err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.serve(answer)
	}()
	return at, func() {
		l.end()
		<-ended
		l.free()
		_ = file.Close()
	}, nil
}

func dialLine(_, address string, _ Row) (Conn, error) {
	l, err := openLine(address)
	if err != nil {
		return Conn{}, err
	}
	return swapping(l.swap, l.free), nil
}

// lineTrip returns the round trip time of a line between two processes. It is a lower bound
// for the machine at the time, and depends on what its processors share.
func lineTrip() (_ time.Duration, err error) {
	p, err := startPeer(peerSetup{Stack: "watched-line", Network: shmNetwork})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	l, err := openLine(p.Address)
	if err != nil {
		return 0, err
	}
	defer l.free()
	const runs, trips = 7, 5_000
	var took []float64
	for range runs {
		start := now()
		for range trips {
			if _, err := l.swap(nil); err != nil {
				return 0, err
			}
		}
		took = append(took, float64(now()-start)/trips)
	}
	return time.Duration(median(took)), nil
}
