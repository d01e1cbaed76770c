package encoded

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// A caller that fails a call itself, with a status, abandons it. The peer is not told that a
// connection ends.
func TestTheCodeOfAReset(t *testing.T) {
	for _, c := range []struct {
		reason error
		code   wire.ResetCode
		text   string
	}{
		{context.Canceled, wire.ResetCancelled, ""},
		{fmt.Errorf("wrapped: %w", context.DeadlineExceeded), wire.ResetDeadline, ""},
		{status.Error(codes.ResourceExhausted, "the reply is too large"), wire.ResetCancelled, ""},
		{status.Error(codes.Canceled, "the connection is closing"), wire.ResetCancelled, ""},
		{link.Unprocessed{Err: errors.New("no")}, wire.ResetUnprocessed, "no"},
		{link.Unprocessed{Err: status.Error(codes.Unavailable, "no")}, wire.ResetUnprocessed, "rpc error: code = Unavailable desc = no"},
		{Because{"broken", link.ErrBroken}, wire.ResetProtocol, "broken"},
		{Because{"full", link.ErrExhausted}, wire.ResetExhausted, "full"},
		{errors.New("gone"), wire.ResetUnavailable, "gone"},
	} {
		if code, text := ResetOf(c.reason); code != c.code || text != c.text {
			t.Errorf("%v: RESET %d %q, want %d %q", c.reason, code, text, c.code, c.text)
		}
	}
}
