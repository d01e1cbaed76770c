package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

func TestTheErrorOfAContext(t *testing.T) {
	for name, c := range map[string]struct{ err, want error }{
		"cancelled":          {context.Canceled, context.Canceled},
		"deadline":           {context.DeadlineExceeded, context.DeadlineExceeded},
		"wrapped":            {fmt.Errorf("so: %w", context.DeadlineExceeded), context.DeadlineExceeded},
		"status":             {status.Error(codes.DeadlineExceeded, "late"), context.DeadlineExceeded},
		"another status":     {status.Error(codes.Unavailable, "no"), context.Canceled},
		"anything":           {io.EOF, context.Canceled},
		"none":               {nil, context.Canceled},
		"deadline as reason": {link.Unprocessed{Err: context.DeadlineExceeded}, context.DeadlineExceeded},
	} {
		if got := EndOfContext(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		want := status.FromContextError(c.want)
		if got := status.Convert(ContextStatus(c.err)); got.Code() != want.Code() || got.Message() != want.Message() {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestTheStatusOfWhatALinkReports(t *testing.T) {
	no := errors.New("no")
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		text string // of the message; empty for any
	}{
		"cannot encode":         {&message.SendError{Err: no}, codes.Internal, "grpc: error while marshaling: no"},
		"wrapped":               {fmt.Errorf("so: %w", &message.SendError{Err: no}), codes.Internal, "grpc: error while marshaling: no"},
		"cannot decode":         {&message.RecvError{Err: no}, codes.Internal, "grpc: failed to unmarshal the received message: no"},
		"too large":             {&message.RecvError{Size: 9, Limit: 8}, codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)"},
		"cancelled":             {context.Canceled, codes.Canceled, "context canceled"},
		"deadline":              {fmt.Errorf("so: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "context deadline exceeded"},
		"status":                {status.Error(codes.NotFound, "no"), codes.NotFound, "no"},
		"stopped":               {errors.New("the server was stopped"), codes.Unavailable, "the server was stopped"},
		"refused":               {link.Unprocessed{Err: errors.New("no more")}, codes.Unavailable, "no more"},
		"a broken session":      {errors.New("the peer hung up"), codes.Unavailable, "the peer hung up"},
		"unprocessed":           {link.Unprocessed{Err: errors.New("the peer hung up")}, codes.Unavailable, "the peer hung up"},
		"unprocessed, closed":   {link.Unprocessed{Err: status.Error(codes.Canceled, "closing")}, codes.Canceled, ""},
		"cannot encode a cause": {&message.SendError{Err: context.Canceled}, codes.Internal, ""},
		"EOF":                   {io.EOF, codes.Unavailable, "EOF"},
		"a limit":               {fmt.Errorf("too long: %w", link.ErrExhausted), codes.ResourceExhausted, "too long: a limit was reached"},
		"broken rules":          {fmt.Errorf("no: %w", link.ErrBroken), codes.Internal, "no: the rules of the call were broken"},
	} {
		got := LinkStatus(c.err)
		st, ok := status.FromError(got)
		if !ok || st.Code() != c.code || c.text != "" && st.Message() != c.text {
			t.Errorf("%s: %v (a status: %v), want %v %q", name, got, ok, c.code, c.text)
		}
	}
	if err := LinkStatus(nil); err != nil {
		t.Errorf("of no error: %v", err)
	}
}
