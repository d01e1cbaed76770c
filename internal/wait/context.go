package wait

import "context"

// What a call believes of a context that is not package context's own is what
// package context, and with it grpc-go, believes of it: a context has ended when
// its Done channel is closed, and not before. Err is asked then, and only then,
// for why. Deadline's time means nothing where its second result is false.
//
// A context whose Err is still nil when Done is closed breaks the rules of
// context.Context. Package context panics at it; here it was cancelled. In no case
// is a nil Err taken to mean that a call went well.

// Err returns ctx's error if ctx has ended, and nil otherwise. It asks Err first,
// which costs less than Done, so that it misses the end of a context that breaks
// the rules: code that waits for Done asks [DoneErr].
func Err(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return ended(ctx, err)
	}
	return nil
}

// ended returns err, which ctx says it has ended with, if that is so.
func ended(ctx context.Context, err error) error {
	if !isClosed(ctx.Done()) {
		return nil
	}
	return err
}

// DoneErr returns the error of ctx, whose Done channel is closed. It is not nil.
func DoneErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// AfterFunc is [context.AfterFunc], also for a context that has ended without an
// error.
func AfterFunc(ctx context.Context, f func()) (stop func() bool) {
	if isClosed(ctx.Done()) && ctx.Err() == nil {
		go f()
		return func() bool { return false }
	}
	return context.AfterFunc(ctx, f)
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
