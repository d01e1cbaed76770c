package mux

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// unprocessed says that the peer's handler never saw the call.
type unprocessed struct{ error }

func (u unprocessed) Unwrap() []error { return []error{u.error, link.ErrUnprocessed} }

// because is an error with the text of a peer or of this package, and a kind.
type because struct {
	text string
	kind error
}

func (b because) Error() string { return b.text }
func (b because) Unwrap() error { return b.kind }

// resetOf returns how a peer is told why a call was aborted.
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

// reasonOf is what resetOf was told, as far as it travels.
func reasonOf(code wire.ResetCode, text string) error {
	switch code {
	case wire.ResetCancelled:
		return context.Canceled
	case wire.ResetDeadline:
		return context.DeadlineExceeded
	case wire.ResetUnprocessed:
		return unprocessed{errors.New(text)}
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
