package link

// A Lender is a callee's Stream that may run its handler on the goroutine that called
// HandleStream. Lends and Lend are called only within HandleStream.
type Lender interface {
	// Lends reports whether Lend may be called. quick says that the handler is likely to
	// return within microseconds: a goroutine that other calls need is lent only for that.
	Lends(quick bool) bool

	// Lend makes the session call r.Run once, on the goroutine that called HandleStream
	// if nothing has changed when that has returned. HandleStream must return nil.
	Lend(r Runner)

	// Release makes the session continue without the goroutine it has lent, because Run
	// takes longer than expected. It has no effect if the session does not need that
	// goroutine, or if Run has returned. It is safe for concurrent use.
	Release()
}

// A Runner is a call whose handler waits to be run.
type Runner interface{ Run() }
