package nearconnect

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// fromStatus returns err, an error of gRPC, as Connect's. err stays the cause, so that
// status.FromError finds it. A *connect.Error, for example of an interceptor, is returned as it is.
func fromStatus(err error) *connect.Error {
	if e, ok := errors.AsType[*connect.Error](err); ok && e != nil {
		return e
	}
	st, ok := status.FromError(err)
	if !ok {
		return connect.NewError(connect.CodeUnknown, err.Error()).WithCause(err)
	}
	code := connect.Code(st.Code())
	if st.Code() == codes.Internal && strings.HasPrefix(st.Message(), "cardinality violation") {
		code = connect.CodeUnimplemented // as in Connect, where it is no fault of the program
	}
	e := connect.NewError(code, st.Message()).WithCause(err)
	for _, d := range st.Proto().GetDetails() {
		if detail, err := connectproto.NewErrorDetail(d); err == nil {
			e = e.WithDetail(detail)
		}
	}
	return e
}

// callerError returns the caller's error for err, an error of gRPC for a call with the context ctx.
// io.EOF stays as it is. remote reports whether the callee has ended the call with it.
func callerError(ctx context.Context, err error, remote bool) error {
	if err == nil || err == io.EOF {
		return err
	}
	e := fromStatus(err)
	switch over := ended(ctx); {
	case over != nil && e.Code() == codeOf(over):
		return e.WithCause(over)
	case remote:
		return e.WithRemote()
	}
	return e
}

// ended returns ctx's error, also if its deadline has passed but its timer was late.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

// codeOf returns the code of an error that is not Connect's.
func codeOf(err error) connect.Code {
	switch {
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeUnknown
}

// handlerError returns the error that a handler of Connect gets for err, an error of gRPC.
func handlerError(ctx context.Context, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	e := fromStatus(err)
	if over := ctx.Err(); over != nil {
		e = e.WithCause(over)
	}
	return e
}

// verdict returns gRPC's error for a call after its handler of Connect has returned err. As
// Connect demands, the caller gets the text of an error only if the handler wrote it for
// the caller. Of errors of other calls and packages it gets only a code.
func verdict(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok || e == nil:
		return status.Error(codes.Code(codeOf(err)), "")
	case e.IsRemote():
		return status.Error(codes.Internal, "")
	}
	return toStatus(e)
}

// toStatus returns e as an error of gRPC.
func toStatus(e *connect.Error) error {
	p := &spb.Status{Code: int32(e.Code()), Message: e.Message()}
	for _, d := range e.Details() {
		p.Details = append(p.Details, connectproto.ErrorDetailToAny(d))
	}
	return status.ErrorProto(p)
}

// withHeader returns ctx with h in its outgoing metadata, after what the user has put there.
func withHeader(ctx context.Context, h *connect.Header) (context.Context, error) {
	md, err := toMetadata(h)
	if md == nil {
		return ctx, err
	}
	if own, ok := metadata.FromOutgoingContext(ctx); ok {
		md = metadata.Join(own, md)
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

const binarySuffix = "-bin"

// toMetadata returns h as gRPC's metadata, in which binary values are not encoded; nil if h is empty.
func toMetadata(h *connect.Header) (metadata.MD, error) {
	if h.Len() == 0 {
		return nil, nil
	}
	md := make(metadata.MD, h.Len())
	for key, values := range h.All() {
		key = strings.ToLower(key)
		if !strings.HasSuffix(key, binarySuffix) {
			md[key] = values
			continue
		}
		for _, value := range values {
			for part := range strings.SplitSeq(value, ",") {
				b, err := connect.DecodeBinaryHeader(strings.TrimSpace(part))
				if err != nil {
					return nil, connect.Errorf(connect.CodeInternal, "the value of %s is not base64; use connect.EncodeBinaryHeader", key).WithCause(err)
				}
				md[key] = append(md[key], string(b))
			}
		}
	}
	return md, nil
}

// fromMetadata sets the keys of md in h, except those of gRPC's protocol.
func fromMetadata(h *connect.Header, md metadata.MD) {
	for key, values := range md {
		switch {
		case ofProtocol(key):
		case strings.HasSuffix(key, binarySuffix):
			encoded := make([]string, len(values))
			for i, v := range values {
				encoded[i] = connect.EncodeBinaryHeader([]byte(v))
			}
			h.SetValues(key, encoded)
		default:
			h.SetValues(key, slices.Clone(values))
		}
	}
}

// ofProtocol reports whether gRPC's protocol has put key into the metadata.
func ofProtocol(key string) bool {
	switch key {
	case "content-type", "te", "grpc-accept-encoding", "grpc-encoding", "grpc-timeout", "grpc-status", "grpc-message", "grpc-status-details-bin":
		return true
	}
	return strings.HasPrefix(key, ":")
}
