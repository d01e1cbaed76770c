package web

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// piece is how much is written at a time, in bytes. It is a multiple of 3, so that only the
// last piece of a text has padding.
const piece = 24 << 10

// A response writes the answer to one request. Only the writer uses it.
type response struct {
	w       http.ResponseWriter
	flusher *http.ResponseController
	server  *Server
	session *session
	stream  *stream // nil if there is no call
	request *request
	begun   bool // the header of the answer was written
	ended   bool // the answer is complete

	held step // what was sent; a bare answer is held back until the call ends, because its header depends on how

	text []byte // scratch space of a text
}

var errSecondMessage = fmt.Errorf("%w: the handler has sent a second message, and the client can receive one", link.ErrBroken)

// answer writes the steps of the stream until its end. When a write fails, nothing more can
// be written: answer aborts the stream, which may have ended already, and returns.
func (r *response) answer() {
	for written := 0; ; {
		steps, reason := r.stream.take(written)
		if reason != nil {
			r.end(&link.End{Status: statusOf(reason)})
			return
		}
		written = 0
		for i := range steps {
			err := r.step(&steps[i])
			if r.ended {
				return
			}
			if err != nil {
				r.stream.Abort(context.Canceled) // the client has left, or does not read
				return
			}
			written += steps[i].cost()
		}
		if !r.begun {
			continue
		}
		if r.flusher.Flush() != nil {
			r.stream.Abort(context.Canceled)
			return
		}
	}
}

// step writes a step. Its error is the error of a write.
func (r *response) step(st *step) error {
	if st.coding != "" {
		r.held.coding = st.coding
	}
	if st.header != nil {
		r.held.header = st.header
	}
	var err error
	switch {
	case r.request.kind == bare && st.has && r.held.has:
		r.stream.Abort(errSecondMessage)
		r.end(&link.End{Status: statusOf(errSecondMessage)})
		return nil
	case r.request.kind == bare:
		if st.has {
			r.held.message, r.held.has, r.held.packed = st.message, true, st.packed
		}
	case st.header != nil || st.has:
		r.begin()
		err = r.write(st.message)
	}
	if err == nil && st.end != nil {
		r.end(st.end)
	}
	return err
}

// end completes the answer.
func (r *response) end(end *link.End) {
	r.ended = true
	switch r.request.kind {
	case bare:
		r.endBare(end)
	case connect:
		r.begin()
		_ = r.writeLast(flagEndStream, encodeEndStream(end))
	default:
		r.begin()
		_ = r.writeLast(flagTrailer, encodeTrailer(end))
	}
}

// begin writes the header of a stream's answer.
func (r *response) begin() {
	if r.begun {
		return
	}
	r.begun = true
	h := r.w.Header()
	addMetadata(h, "", r.held.header)
	h.Set("Content-Type", r.request.mediaType)
	encoding, accept := r.request.kind.headers()
	if r.held.coding != "" {
		h.Set(encoding, r.held.coding)
	}
	if names := r.server.compressors(); names != "" {
		h.Set(accept, names)
	}
	r.writeHeader(http.StatusOK)
}

// writeHeader completes the header with the fields that depend on the connection and on the
// header's keys, and writes it. The connection is closed after an answer that begins before the
// request has ended: the client must know before it sends another request.
func (r *response) writeHeader(code int) {
	h := r.w.Header()
	if r.stream != nil && !r.stream.bodyRead() {
		r.session.leaveBodyUnread()
	}
	if r.session.leaves() {
		h.Set("Connection", "close")
	}
	exposeHeaders(h)
	r.w.WriteHeader(code)
}

var errNoMessage = errors.New("the handler has returned no message")

// endBare writes the answer to a unary call of Connect.
func (r *response) endBare(end *link.End) {
	st := end.Status
	if st == nil && !r.held.has {
		st = status.New(codes.Internal, errNoMessage.Error())
	}
	h := r.w.Header()
	addMetadata(h, "", r.held.header)
	addMetadata(h, "Trailer-", end.Trailer)
	if names := r.server.compressors(); names != "" {
		h.Set("Accept-Encoding", names)
	}
	code, body, contentType := http.StatusOK, r.held.message, r.request.mediaType
	switch {
	case st != nil:
		code, body, contentType = codeOf(st.Code()).http, encodeError(st), "application/json"
		if st.Code() == codes.Unimplemented && !r.request.known {
			code = http.StatusNotFound // as for other paths that a server does not have
		}
	case r.held.packed:
		h.Set("Content-Encoding", r.held.coding)
	}
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	r.begun = true
	r.writeHeader(code)
	_ = r.write(body)
}

// writeLast writes the last envelope, which is not a message.
func (r *response) writeLast(flag byte, body []byte) error {
	b := append(make([]byte, envelope, envelope+len(body)), body...)
	b[0] = flag
	return r.write(putPrefix(b, envelope, false))
}

// write writes b in pieces.
func (r *response) write(b []byte) error {
	for len(b) > 0 {
		p := b[:min(piece, len(b))]
		b = b[len(p):]
		if r.request.kind == grpcText {
			r.text = base64.StdEncoding.AppendEncode(r.text[:0], p)
			p = r.text
		}
		if _, err := r.w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
