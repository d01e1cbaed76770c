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

// slabSeals are those of the memory for large messages. Its owner does not read
// what it has written there, so that it may be the peer's to spoil; and it can give
// back what is not used.
const slabSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

type nonce [16]byte

// newSegment makes a segment of this side's and returns its descriptor too.
func newSegment(ring int, id nonce) (m segment, fd int, err error) {
	m, fd, err = newMemory(controlIs + ring)
	if err != nil {
		return nil, -1, err
	}
	binary.NativeEndian.PutUint64(m[atMagic:], magic)
	binary.NativeEndian.PutUint64(m[atRing:], uint64(ring))
	copy(m[atNonce:], id[:])
	return m, fd, seal(m, fd, seals)
}

// newSlabs makes memory for large messages, of which nothing is there before it
// is used.
func newSlabs(size int) (m segment, fd int, err error) {
	m, fd, err = newMemory(size)
	if err != nil {
		return nil, -1, err
	}
	return m, fd, seal(m, fd, slabSeals)
}

// seal seals memory of this side's, or gives it back.
func seal(m segment, fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	if err != nil {
		m.free()
		_ = unix.Close(fd)
		return fmt.Errorf("the memory cannot be sealed: %w", err)
	}
	return nil
}

// newMemory makes memory that can be shared.
func newMemory(size int) (m segment, fd int, err error) {
	fd, err = unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, -1, fmt.Errorf("memfd_create: %w", err)
	}
	made := fd
	defer func() {
		if err != nil {
			_ = unix.Close(made)
		}
	}()
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, -1, fmt.Errorf("ftruncate: %w", err)
	}
	if m, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, -1, fmt.Errorf("mmap: %w", err)
	}
	return m, fd, nil
}

// openSegment returns the peer's segment, whose descriptor is fd, to read from.
func openSegment(fd int, id nonce) (segment, error) {
	s, err := openMemory(fd, seals, func(size int64) bool {
		ring := size - controlIs
		return ring >= leastRing && ring <= mostRing && ring&(ring-1) == 0
	})
	if err != nil {
		return nil, err
	}
	ring := len(s) - controlIs
	if binary.NativeEndian.Uint64(s[atMagic:]) != magic || binary.NativeEndian.Uint64(s[atRing:]) != uint64(ring) || [16]byte(s[atNonce:atNonce+16]) != id {
		s.free()
		return nil, fmt.Errorf("%w: its memory does not begin as it should", errBroken)
	}
	return s, nil
}

// openSlabs returns the peer's memory for large messages, to read from.
func openSlabs(fd int) (segment, error) {
	return openMemory(fd, slabSeals, func(size int64) bool { return size > 0 && size <= mostSlabs })
}

// openMemory returns memory of the peer's, to read from, if it is sealed and has a
// size that fits.
func openMemory(fd, seals int, fits func(size int64) bool) (segment, error) {
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
	var kind unix.Statfs_t
	if err := unix.Fstatfs(fd, &kind); err != nil {
		return nil, fmt.Errorf("fstatfs: %w", err)
	}
	if int64(kind.Type) != unix.TMPFS_MAGIC { // of huge pages there may be none when they are needed
		return nil, fmt.Errorf("%w: its memory is not of ordinary pages", errBroken)
	}
	if !fits(stat.Size) {
		return nil, fmt.Errorf("%w: its memory has %d bytes", errBroken, stat.Size)
	}
	m, err := unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return m, nil
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

// giveBack has the system take the pages of slabs back. They are zero afterwards.
func giveBack(b []byte) { _ = unix.Madvise(b, unix.MADV_REMOVE) }
