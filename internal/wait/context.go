package wait

import "context"

// The caller's context may have a type whose methods contradict one another. Calls treat such a
// context as package context and grpc-go do. It ends only when its Done channel is closed.
// After that, Err gives the reason. Deadline's time counts only if ok is true.
//
// A context whose Err is nil although Done is closed violates context.Context. Package
// context panics; here the context counts as cancelled. A nil Err must not make a call
// look successful.

// Err returns ctx's error if ctx has ended, and nil otherwise. It asks ctx.Err first
// because that is cheaper than Done. So it misses the end of a context with a nil Err: code
// that has seen Done closed uses [DoneErr].
func Err(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return ended(ctx, err)
	}
	return nil
}

// ended returns err, the result of ctx.Err, if ctx has really ended.
func ended(ctx context.Context, err error) error {
	if !isClosed(ctx.Done()) {
		return nil
	}
	return err
}

// DoneErr returns the error of ctx, whose Done channel must be closed. It is never nil.
func DoneErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// AfterFunc is like [context.AfterFunc], but also accepts a context that has ended with
// a nil Err.
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
