package forward

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A response is the http.ResponseWriter of a call. ServeHTTP uses it only on the goroutine that
// called ServeHTTP. A Write may therefore block until the caller has room for a message, and the
// handler waits meanwhile.
type response struct {
	stream grpc.ServerStream
	header http.Header
	fail   context.CancelCauseFunc // ends the call

	begun   bool           // the header was forwarded
	buf     []byte         // the part of the next message that was written
	err     error          // the first error of stream
	refusal *status.Status // set if the *grpc.Server refused the HTTP request
}

// Header implements [http.ResponseWriter]. At the end of the call, it holds the trailer and
// the status as well.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter]. It is called if the handler sends the header
// before a message, and with a code other than 200 if the request is not valid gRPC.
func (w *response) WriteHeader(code int) {
	switch {
	case code != http.StatusOK:
		w.refusal = status.Newf(codes.Internal, "the *grpc.Server refuses the forwarded call: %s", http.StatusText(code))
	case !w.begun:
		w.begun = true
		w.check(w.stream.SendHeader(w.headerMD()))
	}
}

// Flush implements [http.Flusher]. Messages need no flush: Write forwards them. A header
// that the handler has not sent itself is sent with the next message or the end.
func (w *response) Flush() {
	if w.begun {
		return
	}
	w.begun = true
	if md := w.headerMD(); len(md) > 0 {
		w.check(w.stream.SetHeader(md))
	}
}

// Write implements [http.ResponseWriter]. It forwards each message once it is complete.
func (w *response) Write(b []byte) (int, error) {
	if w.refusal != nil {
		return len(b), nil // an error text for browsers
	}
	w.Flush()
	w.buf = append(w.buf, b...)
	for w.err == nil && len(w.buf) >= prefixLen {
		end := prefixLen + int(binary.BigEndian.Uint32(w.buf[1:]))
		if len(w.buf) < end {
			w.buf = slices.Grow(w.buf, end-len(w.buf))
			break
		}
		if w.buf[0] != 0 && w.header.Get("Grpc-Encoding") != encodingName {
			w.check(status.Error(codes.Internal, "the *grpc.Server compresses replies by itself, which forwarded calls do not support; create it without RPCCompressor"))
			break
		}
		w.check(w.stream.SendMsg(&raw{w.buf[prefixLen:end:end]}))
		w.buf = w.buf[end:] // do not reuse the message's bytes: stats handlers may retain them
	}
	return len(b), w.err
}

// check records err and ends the call, unless err is nil.
func (w *response) check(err error) {
	if err != nil && w.err == nil {
		w.err = err
		w.fail(err)
	}
}

// errNoStatus says that the *grpc.Server has not set a status.
var errNoStatus = errors.New("no status")

// finish sets the trailer and returns the call's status as an error.
func (w *response) finish() error {
	st := w.status()
	switch {
	case w.err != nil:
		return w.err
	case w.refusal != nil:
		return w.refusal.Err()
	case st == nil:
		return errNoStatus
	}
	trailer := make(metadata.MD)
	for k, vs := range w.header {
		if k, ok := strings.CutPrefix(k, http.TrailerPrefix); ok {
			decodeAll(trailer, k, vs)
		}
	}
	w.stream.SetTrailer(trailer)
	return st.Err()
}

// status returns the status of the call, or nil if there is none yet.
func (w *response) status() *status.Status {
	code, err := strconv.ParseUint(w.header.Get("Grpc-Status"), 10, 32)
	if err != nil {
		return nil
	}
	if details := w.header.Get("Grpc-Status-Details-Bin"); details != "" {
		p := status.New(codes.OK, "").Proto()
		b, err := base64.RawStdEncoding.DecodeString(details)
		if err == nil && proto.Unmarshal(b, p) == nil {
			return status.FromProto(p)
		}
	}
	text := w.header.Get("Grpc-Message")
	if message, err := url.PathUnescape(text); err == nil {
		text = message
	}
	return status.New(codes.Code(code), text)
}

// headerMD returns the metadata that the handler has put in the header.
func (w *response) headerMD() metadata.MD {
	md := make(metadata.MD)
	for k, vs := range w.header {
		switch k {
		case "Content-Type", "Trailer", "Date", "Grpc-Encoding":
		default:
			decodeAll(md, strings.ToLower(k), vs) // net/http made the keys canonical
		}
	}
	return md
}

const binSuffix = "-bin"

// encodeAll returns the values vs of key k as HTTP headers: binary ones in base64.
func encodeAll(k string, vs []string) []string {
	if !strings.HasSuffix(k, binSuffix) {
		return vs
	}
	encoded := make([]string, len(vs))
	for i, v := range vs {
		encoded[i] = base64.RawStdEncoding.EncodeToString([]byte(v))
	}
	return encoded
}

// decodeAll decodes the HTTP header values vs of key k and adds them to md.
func decodeAll(md metadata.MD, k string, vs []string) {
	for _, v := range vs {
		if strings.HasSuffix(k, binSuffix) {
			if b, err := base64.RawStdEncoding.DecodeString(v); err == nil {
				v = string(b)
			}
		}
		md[k] = append(md[k], v)
	}
}
