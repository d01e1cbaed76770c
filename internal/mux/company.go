package mux

// company is what the large messages of a stream share the connection with. Where
// two processes have few processors between them, large messages take all of the
// time that the system gives a thread, and a small call waits for its end, some
// milliseconds, again and again on its way. Whoever has sent or received a large
// message therefore lets other threads of the system run, as long as other calls
// come by. Where processors are short that takes two fifths of the stream's speed,
// which others use meanwhile (docs/adr/0013).
//
// Guarded by the session's mu.
type company struct {
	begun uint64 // streams of the session when it was looked for last
	lasts int    // how many large messages it is still thought to last for
}

const (
	// aLarge is what counts as a large message, in bytes. Copying it takes some
	// ten microseconds.
	largeMessage = 64 << 10

	// companyLasts is how many large messages go by before a stream thinks that
	// it is alone, about ten milliseconds.
	companyLasts = 64
)

// shouldYield reports whether whoever has moved a message of n bytes gives way to others.
// begun is how many streams the session has had.
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
