package server

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// statusOf returns the status for a handler's error: the error's own, that of a context
// error, or Unknown. It is nil for nil.
func statusOf(err error) *status.Status {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	return st
}

// asSent returns the status that the peer gets for st. It is nil for OK, and its message is valid
// UTF-8. If st's message is not, the details of st are lost, because protobuf cannot encode them
// together with that message.
func asSent(st *status.Status) *status.Status {
	if st == nil || st.Code() == codes.OK {
		return nil
	}
	if msg := st.Message(); !utf8.ValidString(msg) {
		return status.New(st.Code(), string([]rune(msg))) // each invalid byte becomes U+FFFD
	}
	return st
}

// broken is an error that says which of HTTP/2's rules a call violates.
type broken string

func (b broken) Error() string { return string(b) }
func (broken) Unwrap() error   { return link.ErrBroken }

// refused returns an error for a call that is refused without being processed. It is not a status
// error: the peer gets only its text, and makes a status of it.
func refused(format string, args ...any) error {
	return link.Unprocessed{Err: fmt.Errorf(format, args...)}
}
