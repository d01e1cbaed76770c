// Package call has the rules of gRPC that both sides of a call share: statuses, metadata, messages
// and their limits, stats. Package client implements the caller's side, package server the callee's.
// Package link is their interface to transports.
package call

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// EndOfContext returns context.DeadlineExceeded if err stands for it, and context.Canceled
// otherwise.
func EndOfContext(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// ContextStatus returns the error of a call whose context ended with err.
func ContextStatus(err error) error {
	return status.FromContextError(EndOfContext(err)).Err()
}

// SendStatus returns the sender's error for a message that cannot be encoded.
func SendStatus(e *message.SendError) error {
	if c, ok := errors.AsType[*message.CompressionError](e.Err); ok {
		return status.Errorf(codes.Internal, "grpc: %v", c)
	}
	return status.Error(codes.Internal, fmt.Sprintf("grpc: error while marshaling: %v", e.Err))
}

// recvStatus returns the receiver's error for a message that it cannot receive.
func recvStatus(e *message.RecvError) error {
	var c *message.CompressionError
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

// Wanted returns the Sink.Dst for receiving a message into m. A nil Dst would mean that no message
// is wanted. So for a nil m, wanted returns a value for which the codec returns an error.
func Wanted(m any) any {
	if m == nil {
		return nowhere{}
	}
	return m
}

type nowhere struct{}

// LinkStatus returns the status error for an error of a session or stream.
func LinkStatus(err error) error {
	var send *message.SendError
	var recv *message.RecvError
	var u link.Unprocessed
	var own *link.ContextError
	var final Final
	switch {
	case err == nil:
		return nil
	case errors.As(err, &final):
		return final.Err
	case errors.As(err, &send):
		return SendStatus(send)
	case errors.As(err, &recv):
		return recvStatus(recv)
	case errors.As(err, &u):
		return LinkStatus(u.Err) // without the wrapper
	case errors.As(err, &own):
		return status.Errorf(codes.Internal, "Unexpected error from context packet: %v", own.Err) // grpc-go's words
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ContextStatus(err)
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

// Final is the error of a call that must not be retried: a picker has dropped the call, or its
// request cannot be sent. Err is a status error.
type Final struct{ Err error }

// Error implements error.
func (f Final) Error() string { return f.Err.Error() }

// Unwrap returns the status error.
func (f Final) Unwrap() error { return f.Err }
