package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A segment is the memory that one side writes and the other reads: a page of
// words, and the ring of what it sends. docs/shm.md has the layout.
type segment []byte

// Where things are in a segment. Each word has two cache lines of its own, as
// processors fetch them in pairs.
const (
	atMagic   = 0
	atRing    = 8  // the length of the ring
	atNonce   = 16 // of the offer or the answer
	atTail    = 128
	atHead    = 256
	atAsleep  = 384
	atWants   = 512
	controlIs = 4096

	magic = 0x316c6c61637261_6e // "nearcal1", of version 1
)

// seals are what a peer's memory must have: it keeps its size, so that no access
// to it can fail, and nobody but its owner can write to it.
const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

type nonce [16]byte

// newSegment makes a segment of this side's and returns its descriptor too.
func newSegment(ring int, id nonce) (m segment, fd int, err error) {
	fd, err = unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, -1, fmt.Errorf("memfd_create: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err := unix.Ftruncate(fd, int64(controlIs+ring)); err != nil {
		return nil, -1, fmt.Errorf("ftruncate: %w", err)
	}
	m, err = unix.Mmap(fd, 0, controlIs+ring, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, -1, fmt.Errorf("mmap: %w", err)
	}
	binary.NativeEndian.PutUint64(m[atMagic:], magic)
	binary.NativeEndian.PutUint64(m[atRing:], uint64(ring))
	copy(m[atNonce:], id[:])
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		m.free()
		return nil, -1, fmt.Errorf("the memory cannot be sealed: %w", err)
	}
	return m, fd, nil
}

// openSegment returns the peer's segment, whose descriptor is fd, to read from.
func openSegment(fd int, id nonce) (segment, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: it sent a descriptor of something else than memory (%w)", errBroken, err)
	case got&seals != seals:
		return nil, fmt.Errorf("%w: its memory has the seals %#x, and should have %#x", errBroken, got, seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	ring := stat.Size - controlIs
	if ring < leastRing || ring > mostRing || ring&(ring-1) != 0 {
		return nil, fmt.Errorf("%w: its memory has %d bytes", errBroken, stat.Size)
	}
	m, err := unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	s := segment(m)
	if binary.NativeEndian.Uint64(s[atMagic:]) != magic || binary.NativeEndian.Uint64(s[atRing:]) != uint64(ring) || [16]byte(s[atNonce:atNonce+16]) != id {
		s.free()
		return nil, fmt.Errorf("%w: its memory does not begin as it should", errBroken)
	}
	return s, nil
}

// free gives the memory back. Nobody uses it any more.
func (m segment) free() { _ = unix.Munmap(m) }

func (m segment) ring() []byte { return m[controlIs:] }

func (m segment) word(at int) word { return (*atomic.Uint64)(unsafe.Pointer(&m[at])) }

// newSender returns the end of mine that this side sends with.
func newSender(mine, theirs segment) sender {
	return sender{ring: mine.ring(), tail: mine.word(atTail), wants: mine.word(atWants), head: theirs.word(atHead), asleep: theirs.word(atAsleep)}
}

// newReceiver returns the end of theirs that this side receives with.
func newReceiver(mine, theirs segment) receiver {
	return receiver{ring: theirs.ring(), head: mine.word(atHead), asleep: mine.word(atAsleep), tail: theirs.word(atTail), wants: theirs.word(atWants)}
}
