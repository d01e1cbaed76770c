package link

import "time"

// An InlineStream is a callee's Stream that can run its handler on the goroutine that called
// HandleStream. MayRunInline and RunInline are called only within HandleStream.
type InlineStream interface {
	// MayRunInline reports whether RunInline may be called for a handler that is likely to take d. If
	// the goroutine also serves other calls, it runs only quick handlers.
	MayRunInline(d time.Duration) bool

	// RunInline makes the session call r.Run once, after HandleStream has returned nil. Run runs on
	// the goroutine that called HandleStream, if that goroutine is still free.
	RunInline(r Runner, d time.Duration)

	// Release makes the session continue without the goroutine, because Run takes longer than
	// expected. It has no effect if the session does not need that goroutine, or if Run has
	// returned. It is safe for concurrent use.
	Release()
}

// A Runner is a call whose handler waits to be run.
type Runner interface {
	// Run runs the handler, and returns how long it took.
	Run() time.Duration
}

// A Freer is a callee's Stream whose memory another call can reuse.
type Freer interface {
	// Free says that the callee has ended the call and no longer uses the stream. It is called at
	// most once, and no other method is called after it.
	Free()
}
