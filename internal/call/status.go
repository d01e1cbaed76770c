package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/codec"
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

// maxCode is the largest code that gRPC's clients take: they parse it as an int32.
const maxCode = math.MaxInt32

// errorOf returns the caller's error for st, a status that has arrived. It shares no memory with
// the handler's error. To reflect.DeepEqual it is the same as a new status.
func errorOf(st *status.Status) error {
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		return status.FromProto(p).Err()
	}
	return status.Error(st.Code(), st.Message())
}

// statusWith returns the status of a call that ended with st and trailer. A code that is no int32
// becomes Unknown, in grpc-go's words. As in grpc-go, a handler may set details with the trailer
// grpc-status-details-bin. If the code in that trailer differs from st's, the call fails with
// Internal. The trailer is not interpreted if it has several values or is not a valid status.
func statusWith(st *status.Status, trailer metadata.MD) *status.Status {
	switch {
	case st.Code() > maxCode:
		_, err := strconv.ParseInt(strconv.Itoa(int(st.Code())), 10, 32)
		return status.Newf(codes.Unknown, "transport: malformed grpc-status: %v", err)
	case len(trailer) == 0:
		return st
	}
	return statusOfTrailer(st, trailer)
}

// maxDetailsText is the maximum length of details that are put into a text, in bytes. In the text
// they can become six times as long or longer.
const maxDetailsText = 4 << 10

func statusOfTrailer(st *status.Status, trailer metadata.MD) *status.Status {
	own := trailer[detailsKey]
	if len(own) != 1 {
		return st
	}
	p := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal([]byte(own[0]), p); err != nil {
		return st
	}
	switch {
	case p.GetCode() != int32(st.Code()):
		var details any = p
		if len(own[0]) > maxDetailsText {
			details = fmt.Sprintf("(%d bytes)", len(own[0]))
		}
		return status.Newf(codes.Internal, "grpc-status-details-bin mismatch: grpc-status=%v, grpc-message=%q, grpc-status-details-bin=%+v", st.Code(), st.Message(), details)
	case st == nil:
		return nil
	}
	return status.FromProto(p)
}

// contextError returns context.DeadlineExceeded if err stands for it, and context.Canceled
// otherwise.
func contextError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// contextStatus returns the error of a call whose context ended with err.
func contextStatus(err error) error {
	return status.FromContextError(contextError(err)).Err()
}

// startStatus returns the error of a call whose context had ended with err before the call began.
func startStatus(err error) error {
	switch err {
	case context.Canceled, context.DeadlineExceeded:
		return contextStatus(err)
	case io.ErrUnexpectedEOF:
		return status.Error(codes.Internal, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// sendStatus returns the sender's error for a message that cannot be encoded.
func sendStatus(e *link.SendError) error {
	if c, ok := errors.AsType[*link.CompressionError](e.Err); ok {
		return status.Errorf(codes.Internal, "grpc: %v", c)
	}
	return status.Error(codes.Internal, fmt.Sprintf("grpc: error while marshaling: %v", e.Err))
}

// recvStatus returns the receiver's error for a message that it cannot receive.
func recvStatus(e *link.RecvError) error {
	var c *link.CompressionError
	var format *codec.FormatError
	switch {
	case e.Inflated:
		return status.Errorf(codes.ResourceExhausted, "grpc: received message after decompression larger than max %d", e.Limit)
	case errors.As(e.Err, &c):
		return status.Errorf(codes.Internal, "grpc: %v", c)
	case errors.As(e.Err, &format): // a person may have written the message
		return status.Errorf(codes.InvalidArgument, "grpc: failed to unmarshal the received message: %v", format)
	case errors.Is(e.Err, link.ErrExhausted):
		return status.Errorf(codes.ResourceExhausted, "grpc: received message is lost: %v", e.Err)
	case e.Err == nil:
		return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", e.Size, e.Limit)
	}
	return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", e.Err)
}

// wanted returns the Sink.Dst for receiving a message into m. A nil Dst would mean that no message
// is wanted. So for a nil m, wanted returns a value for which the codec returns an error.
func wanted(m any) any {
	if m == nil {
		return nowhere{}
	}
	return m
}

type nowhere struct{}

// linkStatus returns the status error for an error of a session or stream.
func linkStatus(err error) error {
	var send *link.SendError
	var recv *link.RecvError
	var u link.Unprocessed
	var own *link.ContextError
	var final Final
	switch {
	case err == nil:
		return nil
	case errors.As(err, &final):
		return final.Err
	case errors.As(err, &send):
		return sendStatus(send)
	case errors.As(err, &recv):
		return recvStatus(recv)
	case errors.As(err, &u):
		return linkStatus(u.Err) // without the wrapper
	case errors.As(err, &own):
		return status.Errorf(codes.Internal, "Unexpected error from context packet: %v", own.Err) // grpc-go's words
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return contextStatus(err)
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, link.ErrOneWay):
		return status.Errorf(codes.Unimplemented, "%v; a client takes calls if it was made with WithServer", err)
	case errors.Is(err, link.ErrExhausted):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, link.ErrBroken):
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
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
