package link

import (
	"context"
	"fmt"

	"github.com/nearcall/nearcall/internal/wait"
)

// A ContextError is why a call ends whose caller's context has ended with an error
// that is not one of package context's own. What that was is between the caller and
// its context: for all others the call was cancelled, which is all that crosses the
// wire in gRPC.
type ContextError struct{ Err error }

func (e *ContextError) Error() string {
	return fmt.Sprintf("the caller's context has ended: %v", e.Err)
}

func (e *ContextError) Unwrap() error { return context.Canceled }

// ContextEnd returns why a call ends whose caller's context has ended with err, which
// is not nil: err itself if it is one of package context's own, else a *ContextError.
func ContextEnd(err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	return &ContextError{err}
}

// ContextErr returns why a call ends whose caller's context is ctx; nil while that has
// not ended.
func ContextErr(ctx context.Context) error {
	if err := wait.Err(ctx); err != nil {
		return ContextEnd(err)
	}
	return nil
}
