package mux

// yielding decides whether a stream of large messages yields to other calls of its connection. If
// two processes share few processors, a thread that moves large messages keeps its processor for
// as long as the scheduler allows, and a small call waits several milliseconds at each step. So
// after each large message the sender or receiver yields to other threads, as long as other calls
// come in. If processors are short, this costs two fifths of the stream's throughput; the other
// threads get that time (docs/adr/0013).
//
// Guarded by the session's mu.
type yielding struct {
	begun uint64 // how many streams the session had begun at the last check
	lasts int    // for how many more large messages the stream yields
}

const (
	// largeMessage is the size from which a message counts as large, in bytes. Copying
	// one takes about ten microseconds.
	largeMessage = 64 << 10

	// yieldsAfterCall is how many large messages, about ten milliseconds, the stream yields after
	// the last new call. Then it assumes that it is alone.
	yieldsAfterCall = 64
)

// shouldYield reports whether the goroutine that has just moved a message of n bytes should yield
// to other threads. begun is how many streams the session has begun.
func (y *yielding) shouldYield(n int, begun uint64) bool {
	if n < largeMessage {
		return false
	}
	if y.begun != begun {
		*y = yielding{begun, yieldsAfterCall}
	}
	if y.lasts == 0 {
		return false
	}
	y.lasts--
	return true
}
