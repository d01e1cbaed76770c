package client

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

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
	own := trailer[link.DetailsKey]
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

// startStatus returns the error of a call whose context had ended with err before the call began.
func startStatus(err error) error {
	switch err {
	case context.Canceled, context.DeadlineExceeded:
		return call.ContextStatus(err)
	case io.ErrUnexpectedEOF:
		return status.Error(codes.Internal, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

var (
	errNoReply    = status.Error(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC")
	errTwoReplies = status.Error(codes.Internal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message")
)

// unaryError returns the error of a unary call. err is that of Session.Invoke.
func unaryError(u *link.UnaryCall, err error) error {
	switch {
	case err == link.ErrReplies:
		return errTwoReplies
	case err != nil:
		return call.LinkStatus(err)
	case u.ReplyError != nil:
		return call.LinkStatus(u.ReplyError)
	case u.Status != nil:
		return errorOf(u.Status)
	case !u.Replied:
		return errNoReply
	}
	return nil
}
