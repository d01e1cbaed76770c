package link

import "time"

// A Lender is a callee's Stream that may run its handler on the goroutine that called
// HandleStream. Lends and Lend are called only within HandleStream.
type Lender interface {
	// Lends reports whether Lend may be called for a handler that is likely to take d. If other
	// calls need a goroutine, its session lends it only to quick handlers.
	Lends(d time.Duration) bool

	// Lend makes the session call r.Run once, after HandleStream has returned nil. Run runs on the
	// goroutine that called HandleStream, if the session can still lend that goroutine.
	Lend(r Runner, d time.Duration)

	// Release makes the session continue without the goroutine it has lent, because Run
	// takes longer than expected. It has no effect if the session does not need that
	// goroutine, or if Run has returned. It is safe for concurrent use.
	Release()
}

// A Runner is a call whose handler waits to be run.
type Runner interface {
	// Run runs the handler, and returns how long it took.
	Run() time.Duration
}
