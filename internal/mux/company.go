package mux

// company tracks whether a stream of large messages shares its connection with other
// calls. If two processes share few processors, a thread that moves large messages
// keeps its processor for as long as the scheduler allows, and a small call waits
// several milliseconds at each step. So after each large message the sender or receiver
// yields to other threads, as long as other calls come in. If processors are short,
// this costs two fifths of the stream's throughput; the other threads get that time
// (docs/adr/0013).
//
// Guarded by the session's mu.
type company struct {
	begun uint64 // the session's count of streams at the last check
	lasts int    // for how many more large messages the stream yields
}

const (
	// largeMessage is the size from which a message counts as large, in bytes. Copying
	// one takes about ten microseconds.
	largeMessage = 64 << 10

	// companyLasts is how many large messages go by without a new call before the
	// stream assumes that it is alone, about ten milliseconds.
	companyLasts = 64
)

// shouldYield reports whether the goroutine that has just moved a message of n bytes
// should yield to other threads. begun is how many streams the session has had.
func (c *company) shouldYield(n int, begun uint64) bool {
	if n < largeMessage {
		return false
	}
	if c.begun != begun {
		*c = company{begun, companyLasts}
	}
	if c.lasts == 0 {
		return false
	}
	c.lasts--
	return true
}
