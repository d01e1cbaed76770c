package shm

import (
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
	atMagic  = 0
	atTail   = 128
	atHead   = 256
	atAsleep = 384
	atWants  = 512
)

// magic is what each segment begins with.
const magic = "nearshm1"

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
