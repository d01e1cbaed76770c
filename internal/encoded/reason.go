package encoded

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Because is an error with a text, from the peer or from a transport, and a kind for errors.Is.
type Because struct {
	Text string
	Kind error
}

func (b Because) Error() string { return b.Text }
func (b Because) Unwrap() error { return b.Kind }

// ResetOf returns the RESET code and text that tell the peer why a call was aborted. If the
// reason is a status, the caller itself has cancelled the call.
func ResetOf(reason error) (code wire.ResetCode, text string) {
	switch {
	case errors.Is(reason, link.ErrUnprocessed):
		return wire.ResetUnprocessed, reason.Error()
	case errors.Is(reason, context.Canceled), isStatus(reason):
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

func isStatus(err error) bool {
	_, ok := status.FromError(err)
	return ok && err != nil
}

// ReasonOf is the inverse of ResetOf, as far as code and text carry the reason. answered says that
// the peer has answered the call. Such a call counts as processed even if the peer denies it, so
// it is not retried: otherwise a peer could make the caller retry for ever.
func ReasonOf(code wire.ResetCode, text string, answered bool) error {
	switch code {
	case wire.ResetCancelled:
		return context.Canceled
	case wire.ResetDeadline:
		return context.DeadlineExceeded
	case wire.ResetUnprocessed:
		return Unprocessed(errors.New(text), answered)
	case wire.ResetProtocol:
		return Because{text, link.ErrBroken}
	case wire.ResetExhausted:
		return Because{text, link.ErrExhausted}
	}
	return errors.New(text)
}

// Unprocessed is called if the peer says that it did not process a call. It marks reason
// as [link.Unprocessed] if the peer has not answered the call.
func Unprocessed(reason error, answered bool) error {
	if answered {
		return reason
	}
	return link.Unprocessed{Err: reason}
}

// TooLong is the error for a block of n bytes that is larger than its receiver's limit.
func TooLong(what string, n, limit int) error {
	return Because{fmt.Sprintf("the %s of %d bytes is larger than the %d that its receiver takes", what, n, limit), link.ErrBroken}
}

// CheckBlocks returns an error if the header or end in f is larger than limit.
func CheckBlocks(f *link.Frame, limit int) error {
	if n := wire.MetadataSize(f.Header); n > limit {
		return TooLong("header", n, limit)
	}
	if f.End != nil {
		if n := wire.EndSize(f.End); n > limit {
			return TooLong("end", n, limit)
		}
	}
	return nil
}

// Growth bounds the capacity for a message that is still arriving, as a multiple of the bytes that
// have arrived. Announcing a size costs the peer nothing, so memory is allocated only as bytes
// arrive. Growing copies about a third of a large message once more if its frames have 64 KiB, and
// nothing of a message of up to 256 KiB.
const Growth = 4

// Room returns the capacity for a message of size bytes when n of them have arrived.
func Room(size, n int) int {
	if n > size/Growth { // Growth*n could overflow
		return size
	}
	return Growth * n
}
