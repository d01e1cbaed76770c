package mux

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// unprocessed wraps the reason for which the peer says that it did not process the call. If
// the peer has answered the call, it did process it, and the call must not be made again:
// a peer could repeat this for ever.
func (st *stream) unprocessed(reason error) error {
	if st.answered {
		return reason
	}
	return link.Unprocessed{Err: reason}
}

// because is an error with a text, from the peer or from this package, and a kind for
// errors.Is.
type because struct {
	text string
	kind error
}

func (b because) Error() string { return b.text }
func (b because) Unwrap() error { return b.kind }

// resetOf returns the RESET code and text that tell the peer why a call was aborted.
func resetOf(reason error) (code wire.ResetCode, text string) {
	switch {
	case errors.Is(reason, link.ErrUnprocessed):
		return wire.ResetUnprocessed, reason.Error()
	case errors.Is(reason, context.Canceled):
		return wire.ResetCancelled, ""
	case errors.Is(reason, context.DeadlineExceeded):
		return wire.ResetDeadline, ""
	case errors.Is(reason, link.ErrExhausted):
		return wire.ResetExhausted, reason.Error()
	case errors.Is(reason, link.ErrBroken):
		return wire.ResetProtocol, reason.Error()
	}
	return wire.ResetUnavailable, reason.Error()
}

// reasonOf is the inverse of resetOf, as far as code and text carry the reason.
func (st *stream) reasonOf(code wire.ResetCode, text string) error {
	switch code {
	case wire.ResetCancelled:
		return context.Canceled
	case wire.ResetDeadline:
		return context.DeadlineExceeded
	case wire.ResetUnprocessed:
		return st.unprocessed(errors.New(text))
	case wire.ResetProtocol:
		return because{text, link.ErrBroken}
	case wire.ResetExhausted:
		return because{text, link.ErrExhausted}
	}
	return errors.New(text)
}

func tooLong(what string, n, limit int) error {
	return because{fmt.Sprintf("the %s of %d bytes is larger than the %d that its receiver takes", what, n, limit), link.ErrBroken}
}
