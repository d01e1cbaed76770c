package shm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This side's slabs are mapped at once, the peer's when the first message is read. The file is not
// sealed against writing, because such a seal would also keep the sides from freeing pages. So a
// peer can free pages of this side's slabs. That spoils only what the peer reads, and the next
// write to the pages allocates them again.

// ownSlabs are the [pages] of this side's slabs.
type ownSlabs struct{ side }

func (s ownSlabs) allocate(at, n int) error {
	return s.file.allocate(s.slabs[at:at+n], s.slabsAt+int64(at))
}

func (s ownSlabs) free()  { _ = unix.Madvise(s.slabs, unix.MADV_REMOVE) }
func (s ownSlabs) unmap() { s.freeSlabs() }

// theirSlabs are the [peerSlabs] of a connection.
type theirSlabs struct{ side }

func (s *theirSlabs) mapAll() []byte {
	m, err := s.file.part(s.slabsAt, s.file.layout.slabs, unix.PROT_READ)
	if err != nil {
		return nil
	}
	s.slabs = m
	return m
}

func (s *theirSlabs) read(b []byte, at int) error {
	_, err := s.file.ReadAt(b, s.slabsAt+int64(at))
	return err
}

// pageSize is the size of the pages that mincore counts.
var pageSize = os.Getpagesize()

func (s *theirSlabs) present(b []byte) bool {
	var pages [1<<maxSlab/(4<<10) + 1]byte
	from := uintptr(unsafe.Pointer(&b[0])) &^ uintptr(pageSize-1)
	n := uintptr(unsafe.Pointer(&b[len(b)-1])) + 1 - from
	count := (int(n) + pageSize - 1) / pageSize
	if count > len(pages) {
		return false
	}
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, from, n, uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return false
	}
	for _, page := range pages[:count] {
		if page&1 == 0 {
			return false
		}
	}
	return true
}

func (s *theirSlabs) close() { s.freeSlabs() }
