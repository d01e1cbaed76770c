package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// statusOf returns the status of a call that reason has ended before its handler
// returned.
func statusOf(reason error) *status.Status {
	code := codes.Unavailable
	switch {
	case errors.Is(reason, link.ErrUnprocessed):
	case errors.Is(reason, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(reason, context.Canceled):
		code = codes.Canceled
	case errors.Is(reason, link.ErrExhausted):
		code = codes.ResourceExhausted
	case errors.Is(reason, link.ErrBroken):
		code = codes.Internal
	}
	return status.New(code, reason.Error())
}

// A protocolCode is Connect's equivalent of a status code.
type protocolCode struct {
	name string
	http int
}

var protocolCodes = map[codes.Code]protocolCode{
	codes.Canceled:           {"canceled", 499},
	codes.Unknown:            {"unknown", http.StatusInternalServerError},
	codes.InvalidArgument:    {"invalid_argument", http.StatusBadRequest},
	codes.DeadlineExceeded:   {"deadline_exceeded", http.StatusGatewayTimeout},
	codes.NotFound:           {"not_found", http.StatusNotFound},
	codes.AlreadyExists:      {"already_exists", http.StatusConflict},
	codes.PermissionDenied:   {"permission_denied", http.StatusForbidden},
	codes.ResourceExhausted:  {"resource_exhausted", http.StatusTooManyRequests},
	codes.FailedPrecondition: {"failed_precondition", http.StatusBadRequest},
	codes.Aborted:            {"aborted", http.StatusConflict},
	codes.OutOfRange:         {"out_of_range", http.StatusBadRequest},
	codes.Unimplemented:      {"unimplemented", http.StatusNotImplemented},
	codes.Internal:           {"internal", http.StatusInternalServerError},
	codes.Unavailable:        {"unavailable", http.StatusServiceUnavailable},
	codes.DataLoss:           {"data_loss", http.StatusInternalServerError},
	codes.Unauthenticated:    {"unauthenticated", http.StatusUnauthorized},
}

// codeOf returns the protocol's code for a status code. Codes that gRPC does not define become
// unknown.
func codeOf(c codes.Code) protocolCode {
	if p, ok := protocolCodes[c]; ok {
		return p
	}
	return protocolCodes[codes.Unknown]
}

// A connectError is an error as Connect sends it.
type connectError struct {
	Code    string          `json:"code"`
	Message string          `json:"message,omitempty"`
	Details []connectDetail `json:"details,omitempty"`
}

type connectDetail struct {
	Type  string `json:"type"`
	Value string `json:"value"` // unpadded base64 of the encoded message
}

func connectErrorOf(st *status.Status) *connectError {
	e := &connectError{Code: codeOf(st.Code()).name, Message: st.Message()}
	for _, d := range st.Proto().GetDetails() {
		name := d.GetTypeUrl()
		name = name[strings.LastIndexByte(name, '/')+1:]
		e.Details = append(e.Details, connectDetail{name, base64.RawStdEncoding.EncodeToString(d.GetValue())})
	}
	return e
}

// encodeError returns a status as Connect's unary calls send it.
func encodeError(st *status.Status) []byte {
	b, _ := json.Marshal(connectErrorOf(st)) // strings only
	return b
}

// encodeEndStream returns the last message of a Connect stream.
func encodeEndStream(end *link.End) []byte {
	var last struct {
		Error    *connectError       `json:"error,omitempty"`
		Metadata map[string][]string `json:"metadata,omitempty"`
	}
	last.Metadata = make(map[string][]string)
	if end.Status != nil {
		last.Error = connectErrorOf(end.Status)
	}
	for key, v := range encodedMetadata(end.Trailer) {
		last.Metadata[key] = append(last.Metadata[key], v)
	}
	b, _ := json.Marshal(&last) // strings only
	return b
}
