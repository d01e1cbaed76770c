// Package blockedmem makes memory whose reader blocks. A process that writes to a file from such
// memory holds the file's lock until it releases the memory. Attacks and tests use it.
package blockedmem

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is a page that is never populated. A mapped file of FUSE or NFS can do the same.
type Memory struct {
	fd   int // see userfaultfd(2)
	page []byte
}

// New returns such memory. It fails for users who must not use userfaultfd, which is most.
func New() (*Memory, error) {
	const (
		version  = 0xaa
		begin    = 0xc018aa3f // UFFDIO_API
		register = 0xc020aa00 // UFFDIO_REGISTER
		missing  = 1          // UFFDIO_REGISTER_MODE_MISSING
	)
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("userfaultfd", errno)
	}
	m := &Memory{fd: int(fd)}
	var err error
	if m.page, err = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		m.Close()
		return nil, os.NewSyscallError("mmap", err)
	}
	api := [3]uint64{version}
	area := [4]uint64{uint64(uintptr(unsafe.Pointer(&m.page[0]))), uint64(len(m.page)), missing}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, begin, uintptr(unsafe.Pointer(&api)))
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, register, uintptr(unsafe.Pointer(&area)))
	}
	if errno != 0 {
		m.Close()
		return nil, os.NewSyscallError("userfaultfd", errno)
	}
	return m, nil
}

// Lock takes the lock of a file and holds it until Close. Then it overwrites the byte of the
// file at offset at. done is closed when the lock is released.
func (m *Memory) Lock(file int, at int64) (done <-chan struct{}, err error) {
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EFAULT) { // the runtime's signals interrupt the write
			_, err = unix.Pwrite(file, m.page[:1], at)
		}
	}()
	var fault [32]byte
	_, err = unix.Read(m.fd, fault[:]) // returns once the write waits
	return wrote, os.NewSyscallError("read", err)
}

// Close releases the memory, and unblocks the writes that wait for it.
func (m *Memory) Close() {
	_ = unix.Close(m.fd)
	m.fd = -1
}
