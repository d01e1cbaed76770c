package shm

import "golang.org/x/sys/unix"

// The slabs of this side are mapped, and those of the peer are read from the file
// that both are parts of. Neither is sealed against writing, as pages could not be
// given back then. So a peer can take pages of this side's slabs away: it spoils
// what it was to read, and what is written there next takes the same pages again.

// ownSlabs are the [pages] of this side's slabs.
type ownSlabs struct{ side }

func (s ownSlabs) allocate(at, n int) error { return s.file.allocate(s.slabsAt+int64(at), n) }
func (s ownSlabs) free(at, n int)           { _ = unix.Madvise(s.slabs[at:at+n], unix.MADV_REMOVE) }
func (s ownSlabs) unmap()                   { s.freeSlabs() }

// theirSlabs are the [peerSlabs] of a connection.
type theirSlabs struct{ side }

func (s theirSlabs) read(b []byte, at int) error {
	_, err := s.file.ReadAt(b, s.slabsAt+int64(at))
	return err
}

// size is that of all that is there of the file: at least that of the slabs.
func (s theirSlabs) size() int {
	var stat unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &stat); err != nil {
		return s.file.layout.slabs
	}
	return int(stat.Blocks * 512)
}

func (s theirSlabs) close() { s.freeSlabs() }
