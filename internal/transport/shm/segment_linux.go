package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A segment is memory that one side writes and the other reads: a page of words, and the
// ring that the side sends through. docs/shm.md specifies its layout.
type segment []byte

// Offsets in a segment. Each word has two cache lines to itself, because processors fetch lines
// in pairs.
const (
	atMagic  = 0
	atTail   = 128
	atHead   = 256
	atAsleep = 384
	atWants  = 512
)

// magic is at the start of each segment.
const magic = "nearshm1"

// free unmaps the segment, which must not be used any more.
func (m segment) free() { _ = unix.Munmap(m) }

func (m segment) ring() []byte { return m[controlIs:] }

func (m segment) word(at int) word { return (*sharedWord)(unsafe.Pointer(&m[at])) }

// newSender returns the sending end of the ring that is in the segment mine.
func newSender(mine, theirs segment) sender {
	return sender{ring: mine.ring(), tail: mine.word(atTail), wants: mine.word(atWants), head: theirs.word(atHead), asleep: theirs.word(atAsleep)}
}

// newReceiver returns the receiving end of the ring that is in the segment theirs.
func newReceiver(mine, theirs segment) receiver {
	return receiver{ring: theirs.ring(), head: mine.word(atHead), asleep: mine.word(atAsleep), tail: theirs.word(atTail), wants: theirs.word(atWants)}
}
