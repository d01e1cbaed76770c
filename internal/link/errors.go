package link

import (
	"context"
	"fmt"

	"github.com/nearcall/nearcall/internal/wait"
)

// A ContextError is the reason for ending a call whose caller's context ended with an error other
// than context.Canceled and context.DeadlineExceeded. Only the caller sees Err. The peer learns
// only that the call was cancelled, because gRPC's protocol has nothing more precise.
type ContextError struct{ Err error }

func (e *ContextError) Error() string {
	return fmt.Sprintf("the caller's context has ended: %v", e.Err)
}

func (e *ContextError) Unwrap() error { return context.Canceled }

// ContextEnd returns the reason for ending a call after its caller's context ended with err: err
// itself if it is an error of package context, and a *ContextError otherwise. err must not be nil.
func ContextEnd(err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	return &ContextError{err}
}

// ContextErr returns the reason for ending a call if its caller's context, ctx, has
// ended, and nil otherwise.
func ContextErr(ctx context.Context) error {
	if err := wait.Err(ctx); err != nil {
		return ContextEnd(err)
	}
	return nil
}

// Unprocessed wraps an error to say that the peer's handler never saw the call: it wraps
// [ErrUnprocessed] as well.
type Unprocessed struct {
	Err error

	// Unsent says that nothing of the call was sent, because the session takes no calls for
	// now. Retrying is safe any number of times.
	Unsent bool
}

// Error implements error.
func (u Unprocessed) Error() string { return u.Err.Error() }

// Unwrap returns the error and ErrUnprocessed.
func (u Unprocessed) Unwrap() []error { return []error{u.Err, ErrUnprocessed} }
