package shm

import "golang.org/x/sys/unix"

// This side's slabs are mapped, and the peer's are read from the file. The file is not
// sealed against writing, as then pages could not be freed. So a peer can free pages of
// this side's slabs: that spoils only what the peer reads, and the next write to them
// allocates the pages again.

// ownSlabs are the [pages] of this side's slabs.
type ownSlabs struct{ side }

func (s ownSlabs) allocate(at, n int) error {
	return s.file.allocate(s.slabs[at:at+n], s.slabsAt+int64(at))
}

func (s ownSlabs) free()  { _ = unix.Madvise(s.slabs, unix.MADV_REMOVE) }
func (s ownSlabs) unmap() { s.freeSlabs() }

// theirSlabs are the [peerSlabs] of a connection.
type theirSlabs struct{ side }

func (s theirSlabs) read(b []byte, at int) error {
	_, err := s.file.ReadAt(b, s.slabsAt+int64(at))
	return err
}

// size returns the bytes of all pages of the file, which is at least that of the slabs.
func (s theirSlabs) size() int {
	var stat unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &stat); err != nil {
		return s.file.layout.slabs
	}
	return int(stat.Blocks * 512)
}

func (s theirSlabs) close() { s.freeSlabs() }
