package web

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// A request is a client's request, in any of the protocols.
type request struct {
	kind          kind
	method        string // full name
	known         bool   // the server has the method
	single        bool   // the body is one message
	mediaType     string // of the request and of the answer
	subtype       string // name of the codec
	encoding      string // compressor of the request's messages
	accept        string // compressors that the client accepts, comma-separated
	replyEncoding string // compressor of the answer's messages, if the handler sets none
	deadline      time.Time
	metadata      metadata.MD
	size          int64  // of the body, in bytes; -1 if unknown
	message       []byte // the body, of a GET
}

// A refusal is the HTTP answer to a request that is no call.
type refusal struct {
	code   int
	header http.Header
	text   string
}

// parse returns the call that r asks for. If the kind of the call is clear but the call cannot be
// made, st is its status. If the kind is not clear, the result no is the HTTP answer to send.
func (s *Server) parse(r *http.Request) (q *request, st *status.Status, no *refusal) {
	name := pathOf(r)
	m := s.opts.Method(name)
	switch {
	case r.Method == http.MethodPost:
	case !m.Known && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		return nil, nil, &refusal{code: http.StatusNotFound, text: usage}
	case r.Method == http.MethodGet && m.NoSideEffects && !m.Streams:
		return s.parseGet(r, name)
	case m.NoSideEffects && !m.Streams:
		return nil, nil, &refusal{code: http.StatusMethodNotAllowed, header: http.Header{"Allow": {"GET, POST"}}, text: usage}
	default:
		return nil, nil, &refusal{code: http.StatusMethodNotAllowed, header: http.Header{"Allow": {"POST"}}, text: usage}
	}
	contentType := r.Header.Get("Content-Type")
	mediaType, err := mediaTypeOf(contentType)
	k, subtype, ok := kindOf(mediaType)
	switch {
	case err != nil:
		return nil, nil, unsupported(m, fmt.Sprintf("the content type %.100q cannot be read: %v", contentType, err))
	case !ok, !s.opts.Codec(subtype):
		return nil, nil, unsupported(m, fmt.Sprintf("the content type %.100q is none of this server's", contentType))
	case m.Known && (k == bare && m.Streams || k == connect && !m.Streams):
		return nil, nil, unsupported(m, fmt.Sprintf("%s is a streaming method: %t; send the content type that goes with it", name, m.Streams))
	}
	q = &request{kind: k, method: name, known: m.Known, single: k == bare || m.Known && !m.Streams, mediaType: mediaType, subtype: subtype, size: r.ContentLength}
	encoding, _ := k.headers()
	return q, q.complete(s, r, r.Header.Get(encoding)), nil
}

// pathOf returns the method's name: the path as the client has sent it, not decoded. If the server
// decoded it, clients could evade the rules of a proxy that does not decode paths.
func pathOf(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.EscapedPath()
}

// usage is the text for clients that make no call.
const usage = "this is a gRPC server, which answers calls of gRPC-Web and Connect: POST /package.Service/Method with content-type application/json"

// unsupported refuses a content type.
func unsupported(m link.Method, why string) *refusal {
	accepted := "application/json, application/proto, "
	if m.Known && m.Streams {
		accepted = "application/connect+json, application/connect+proto, "
	}
	return &refusal{
		code:   http.StatusUnsupportedMediaType,
		header: http.Header{"Accept-Post": {accepted + "application/grpc-web, application/grpc-web+json, application/grpc-web+proto, application/grpc-web-text, application/grpc-web-text+proto"}},
		text:   why + "; " + usage,
	}
}

// parseGet is parse for a GET, which has its message in the URL.
func (s *Server) parseGet(r *http.Request, name string) (*request, *status.Status, *refusal) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	subtype := query.Get("encoding")
	q := &request{kind: bare, method: name, known: true, single: true, subtype: subtype, mediaType: "application/" + subtype}
	switch {
	case r.ContentLength > 0, r.ContentLength < 0 && r.ProtoMajor < 2: // a stream of HTTP/2 that ends late has no length
		return nil, nil, &refusal{code: http.StatusUnsupportedMediaType, text: "a GET has its message in the URL, and no body"}
	case err != nil:
		return q, status.Newf(codes.InvalidArgument, "the query of the URL cannot be read: %v", err), nil
	case !query.Has("encoding"), !query.Has("message"):
		return q, status.New(codes.InvalidArgument, "the URL needs the parameters encoding and message"), nil
	case !s.opts.Codec(subtype):
		return nil, nil, &refusal{code: http.StatusUnsupportedMediaType, text: fmt.Sprintf("the encoding %.100q is none of this server's; use json or proto", subtype)}
	}
	if v := query.Get("connect"); v != "" && v != "v1" {
		return q, status.Newf(codes.InvalidArgument, "the parameter connect is %.100q, not v1", v), nil
	}
	q.message = []byte(query.Get("message"))
	if query.Get("base64") == "1" {
		if q.message, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(query.Get("message"), "=")); err != nil {
			return q, status.Newf(codes.InvalidArgument, "the message is not base64: %v", err), nil
		}
	}
	q.size = int64(len(q.message))
	return q, q.complete(s, r, query.Get("compression")), nil
}

// complete sets the fields that come from the header of r. It returns the status if the call
// cannot be made, or nil.
func (q *request) complete(s *Server, r *http.Request, encoding string) *status.Status {
	q.encoding = message.Compressor(encoding)
	if q.encoding != "" && !slices.Contains(s.opts.Compressors(), q.encoding) {
		return status.Newf(codes.Unimplemented, "the compression %.100q is not supported; use one of: %s", q.encoding, s.compressors())
	}
	_, name := q.kind.headers()
	accepted := acceptedOf(r.Header.Values(name))
	q.accept = strings.Join(accepted, ",")
	if q.encoding != "" && (len(r.Header.Values(name)) == 0 || slices.Contains(accepted, q.encoding)) {
		q.replyEncoding = q.encoding
	}
	if q.kind == bare || q.kind == connect {
		if v := r.Header.Get("Connect-Protocol-Version"); v != "" && v != "1" {
			return status.Newf(codes.InvalidArgument, "the header connect-protocol-version is %.100q, not 1", v)
		}
	}
	timeout, ok, err := q.timeoutOf(r.Header)
	if err != nil {
		return status.New(codes.InvalidArgument, err.Error())
	}
	if ok {
		q.deadline = time.Now().Add(timeout)
	}
	if q.metadata, err = metadataOf(r.Header); err != nil {
		return status.New(codes.InvalidArgument, err.Error())
	}
	return nil
}

// acceptedOf returns the names in the values of an Accept-Encoding header. It drops the qualities,
// and the names whose quality is 0.
func acceptedOf(values []string) (names []string) {
	for _, list := range values {
		for item := range strings.SplitSeq(list, ",") {
			name, quality, _ := strings.Cut(item, ";")
			name, quality = strings.TrimSpace(name), strings.ReplaceAll(quality, " ", "")
			if q, err := strconv.ParseFloat(strings.TrimPrefix(quality, "q="), 64); name == "" || err == nil && q == 0 {
				continue
			}
			names = append(names, name)
		}
	}
	return names
}

// timeoutOf returns how long the client waits for the call. ok is false if the header does not say.
func (q *request) timeoutOf(h http.Header) (d time.Duration, ok bool, err error) {
	if q.kind == bare || q.kind == connect {
		v := h.Get("Connect-Timeout-Ms")
		if v == "" {
			return 0, false, nil
		}
		ms, err := strconv.ParseUint(v, 10, 64)
		if err != nil || len(v) > 10 {
			return 0, false, fmt.Errorf("the header connect-timeout-ms is %.100q, which is not a number of at most 10 digits", v)
		}
		return time.Duration(ms) * time.Millisecond, true, nil
	}
	v := h.Get("Grpc-Timeout")
	if v == "" {
		return 0, false, nil
	}
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}
	unit, known := units[v[len(v)-1]]
	n, err := strconv.ParseUint(v[:len(v)-1], 10, 64)
	if err != nil || !known || len(v) > 9 {
		return 0, false, fmt.Errorf("the header grpc-timeout is %.100q, which is not a number of at most 8 digits and a unit", v)
	}
	const most = 1<<63 - 1
	if n > uint64(most/unit) {
		return most, true, nil
	}
	return time.Duration(n) * unit, true, nil
}

// compressors returns the names of the compressors that requests may use, comma-separated.
func (s *Server) compressors() string { return strings.Join(s.opts.Compressors(), ",") }

// A kind is how a request and its answer are framed.
type kind int

const (
	bare     kind = iota // Connect's unary calls: a body is a message
	connect              // Connect's streams: messages in envelopes
	grpcWeb              // gRPC-Web: messages in envelopes
	grpcText             // the same, as base64
)

// enveloped reports whether messages are in envelopes.
func (k kind) enveloped() bool { return k != bare }

// headers returns the names of the headers for the compressor of messages and for those that the
// sender accepts.
func (k kind) headers() (encoding, accept string) {
	switch k {
	case bare:
		return "Content-Encoding", "Accept-Encoding"
	case connect:
		return "Connect-Content-Encoding", "Connect-Accept-Encoding"
	}
	return "Grpc-Encoding", "Grpc-Accept-Encoding"
}

// prefix returns the length of the head of a message, in bytes.
func (k kind) prefix() int {
	if k.enveloped() {
		return envelope
	}
	return 0
}

// putPrefix completes b, which begins with room for the head of its message.
func putPrefix(b []byte, prefix int, packed bool) []byte {
	if prefix > 0 {
		if packed {
			b[0] |= flagCompressed
		}
		binary.BigEndian.PutUint32(b[1:], uint32(len(b)-prefix))
	}
	return b
}

// kindOf returns the kind and the content-subtype of a media type, such as
// "application/connect+json". ok is false if it is none of ours.
func kindOf(mediaType string) (k kind, subtype string, ok bool) {
	sub, ok := strings.CutPrefix(mediaType, "application/")
	if !ok {
		return 0, "", false
	}
	for prefix, k := range map[string]kind{"grpc-web": grpcWeb, "grpc-web-text": grpcText} {
		if sub == prefix {
			return k, "proto", true
		}
		if name, ok := strings.CutPrefix(sub, prefix+"+"); ok {
			return k, name, true
		}
	}
	if name, ok := strings.CutPrefix(sub, "connect+"); ok {
		return connect, name, true
	}
	return bare, sub, sub != "grpc" && !strings.HasPrefix(sub, "grpc+")
}

// mediaTypeOf returns the media type of a content-type, in lower case. It understands one
// parameter, the charset, which must be UTF-8.
func mediaTypeOf(contentType string) (string, error) {
	if strings.IndexByte(contentType, ';') < 0 {
		return strings.ToLower(strings.TrimSpace(contentType)), nil
	}
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", err
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") {
		return "", fmt.Errorf("the charset is %q; send utf-8", c)
	}
	return t, nil
}

// A textReader decodes the base64 of gRPC-Web's text form. The text may contain padding before its
// end, because a client can encode each message by itself.
type textReader struct {
	body  io.Reader
	text  [4096]byte
	held  int    // how many characters at the start of text form an incomplete group
	plain []byte // decoded, not read
	space [4096]byte
	err   error // of body
}

// Read implements [io.Reader]. It reads from the body at most once, and returns even without a
// complete group: the stream must learn that something has arrived.
func (r *textReader) Read(p []byte) (int, error) {
	if len(r.plain) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := r.body.Read(r.text[r.held:])
		n += r.held
		whole := n &^ 3
		if err == io.EOF && whole < n { // the last group may lack its padding
			n += copy(r.text[n:], "===="[:4-n&3])
			whole = n
		}
		if r.plain, r.err = decodeGroups(r.space[:0], r.text[:whole]); r.err == nil {
			r.err = err
		}
		r.held = copy(r.text[:], r.text[whole:n])
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	if len(r.plain) == 0 && r.err != nil {
		return n, r.err
	}
	return n, nil
}

var errNotBase64 = errors.New("it is not base64")

// decodeGroups decodes the groups of four characters in text, and appends the result to b. It
// rejects line breaks: package base64 would skip them, and the groups would shift.
func decodeGroups(b, text []byte) ([]byte, error) {
	wrong := bytes.IndexAny(text, "\r\n")
	if wrong >= 0 {
		text = text[:wrong&^3]
	}
	for len(text) > 0 {
		end := len(text)
		if i := bytes.IndexByte(text, '='); i >= 0 {
			end = i&^3 + 4
		}
		var err error
		if b, err = base64.StdEncoding.AppendDecode(b, text[:end]); err != nil {
			return b, errNotBase64
		}
		text = text[end:]
	}
	if wrong >= 0 {
		return b, errNotBase64
	}
	return b, nil
}
