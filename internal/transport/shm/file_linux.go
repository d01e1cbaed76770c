package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A file is the memory of a connection: a nameless memfd that the server has created, with the
// parts of a layout.
//
// It counts its users, and the last one to release it closes the descriptor. newFile and openFile
// return it with one user.
type file struct {
	*os.File
	layout layout
	users  atomic.Int32
}

// seals are the seals of a connection's memory. Its size is fixed, so that no access to it can
// fault. It is not sealed against writing, because each side writes its parts. A side never reads
// its own parts, so a peer that writes to them harms only itself.
const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newFile creates the memory of a connection. It takes almost no memory before a side writes to it.
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

// openFile takes ownership of fd, which a server has sent. It fails if fd is not memory that has
// the layout l and is safe to map.
func openFile(fd int, l layout) (*file, error) {
	f := fileOf(fd, l)
	if err := f.check(); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// check returns why a file that the peer has created cannot be used.
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
	if int64(kind.Type) != unix.TMPFS_MAGIC { // huge pages can run out when they are needed
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

// release removes a user, and closes the file after the last.
func (f *file) release() {
	if f.users.Add(-1) == 0 {
		_ = f.Close()
	}
}

// part maps n bytes of the file at offset at.
func (f *file) part(at int64, n, prot int) (segment, error) {
	m, err := unix.Mmap(int(f.Fd()), at, n, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return m, nil
}

// allocate allocates the pages of m, which begins at offset at and which this process will
// write to. They count as this process's memory. It fails if there is no memory; writing to
// a page that cannot be allocated would kill the process with SIGBUS.
//
// It works through the mapping, because fallocate takes the file's lock. A peer can hold that lock
// for as long as it likes, by writing to the file from memory that is slow to read (userfaultfd,
// FUSE).
func (f *file) allocate(m segment, at int64) error {
	for {
		var err error
		if populates() {
			err = unix.Madvise(m, unix.MADV_POPULATE_WRITE)
		} else {
			err = unix.Fallocate(int(f.Fd()), 0, at, int64(len(m)))
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("its pages cannot be allocated: %w", err)
		}
	}
}

// pages returns the bytes of all pages of the file.
func (f *file) pages() int {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return int(f.layout.size())
	}
	return int(stat.Blocks * 512)
}

// populates reports whether the system allocates through mappings: Linux does since version 5.14.
var populates = sync.OnceValue(func() bool {
	m, err := unix.Mmap(-1, 0, controlIs, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return true // there is no memory for the test: assume a newer Linux
	}
	defer func() { _ = unix.Munmap(m) }()
	return !errors.Is(unix.Madvise(m, unix.MADV_POPULATE_WRITE), unix.EINVAL)
})
