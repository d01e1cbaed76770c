package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A file is the memory of a connection, as the system knows it: a memfd that the
// server has made, with the parts of a layout. It has no name.
//
// It stays open as long as somebody may use a part of it by its descriptor. Whoever
// has made or opened it is its first user.
type file struct {
	*os.File
	layout layout
	users  atomic.Int32
}

// seals are what the memory of a connection has: it keeps its size, so that no
// access to it can fail. It is not sealed against writing, as both sides write
// there, each to parts of its own. No side ever reads what it has written, so that
// a peer that writes to the other's parts spoils what it alone reads.
const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newFile makes the memory of a connection. Nothing is in it, and it takes up next
// to nothing before somebody writes there.
func newFile(l layout) (*file, error) {
	fd, err := unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := fileOf(fd, l)
	if err := unix.Ftruncate(fd, l.size()); err != nil {
		f.release()
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	for _, server := range []bool{true, false} {
		if _, err := f.WriteAt([]byte(magic), l.segmentAt(server)); err != nil {
			f.release()
			return nil, fmt.Errorf("write: %w", err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		f.release()
		return nil, fmt.Errorf("the memory cannot be sealed: %w", err)
	}
	return f, nil
}

// openFile takes over fd, which a server has sent, if it is memory that has the
// layout l and can be used safely.
func openFile(fd int, l layout) (*file, error) {
	f := fileOf(fd, l)
	if err := f.check(); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// check returns why a file that the peer has made cannot be used.
func (f *file) check() error {
	fd := f.Fd()
	got, err := unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return fmt.Errorf("%w: it sent a descriptor of something else than memory (%w)", errBroken, err)
	case got&seals != seals:
		return fmt.Errorf("%w: its memory has the seals %#x, and should have %#x", errBroken, got, seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(fd), &stat); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	var kind unix.Statfs_t
	if err := unix.Fstatfs(int(fd), &kind); err != nil {
		return fmt.Errorf("fstatfs: %w", err)
	}
	if int64(kind.Type) != unix.TMPFS_MAGIC { // of huge pages there may be none when they are needed
		return fmt.Errorf("%w: its memory is not of ordinary pages", errBroken)
	}
	if want := f.layout.size(); stat.Size != want {
		return fmt.Errorf("%w: its memory has %d bytes, and should have %d", errBroken, stat.Size, want)
	}
	for _, server := range []bool{true, false} {
		var begins [len(magic)]byte
		if _, err := f.ReadAt(begins[:], f.layout.segmentAt(server)); err != nil || string(begins[:]) != magic {
			return fmt.Errorf("%w: its memory does not begin as it should: with %q", errBroken, begins[:])
		}
	}
	return nil
}

func fileOf(fd int, l layout) *file {
	f := &file{File: os.NewFile(uintptr(fd), "nearcall"), layout: l}
	f.users.Store(1)
	return f
}

// use counts one more user.
func (f *file) use() { f.users.Add(1) }

// release takes one user away, and closes the file after the last.
func (f *file) release() {
	if f.users.Add(-1) == 0 {
		_ = f.Close()
	}
}

// part maps n bytes at a place of the file.
func (f *file) part(at int64, n, prot int) (segment, error) {
	m, err := unix.Mmap(int(f.Fd()), at, n, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return m, nil
}

// allocateSegment makes the pages of the server's or the client's segment, which is to
// write there. That fails where there is no memory, while a write to a page that is
// not there ends the process.
func (f *file) allocateSegment(server bool) error {
	return f.allocate(f.layout.segmentAt(server), f.layout.segment())
}

// allocate makes the pages of n bytes at a place of the file, as memory that this
// process takes.
func (f *file) allocate(at int64, n int) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, at, int64(n))
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("fallocate: %w", err)
		}
	}
}
