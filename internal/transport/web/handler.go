package web

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/transport/websocket"
)

// serve answers a request of HTTP/1.1. It is the http.Handler of the connections that Take gets.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	conn, _ := r.Context().Value(connKey{}).(*conn)
	if !conn.begin() {
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	if len(r.TransferEncoding) > 0 && conn.header.hasLength {
		conn.session.leaveBodyUnread()
	}
	s.answer(w, r, conn.session, conn.handover)
}

// answer answers a request, whatever carries it. h describes the connection.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, c *session, h sniff.Handover) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if fieldsOf(r.Header) > s.maxFields {
		refuse(c, w, r, http.StatusRequestHeaderFieldsTooLarge, tooManyFields(s.maxFields))
		return
	}
	if why := s.origins.check(c.peer.LocalAddr, r); why != "" {
		body := encodeError(status.New(codes.PermissionDenied, why))
		w.Header().Set("Content-Type", "application/json")
		refuse(c, w, r, http.StatusForbidden, string(body))
		return
	}
	s.origins.allow(w.Header(), r)
	e, upgrades := c.exchange, websocket.HasToken(r.Header, "Upgrade", "websocket")
	switch socket := e != nil && e.socket; {
	case isPreflight(r):
		s.origins.preflight(w.Header(), r)
		refuse(c, w, r, http.StatusNoContent, "")
		return
	case e != nil && !socket && upgrades:
		refuse(c, w, r, http.StatusNotFound, `this server takes WebSockets where its program says so: mux.Handle("/calls", server.WebSockets())`)
		return
	case socket, upgrades:
		if code, why := s.openWebSocket(w, r, h); code != 0 {
			refuse(c, w, r, code, why)
		}
		return
	case r.ProtoMajor == 2 && isGRPC(r):
		s.answerGRPC(w, r, c)
		return
	case !s.opts.Config.TakesWeb && e != nil:
		refuse(c, w, r, http.StatusUnsupportedMediaType, "this server does not take web clients (option OtherClients): it only takes gRPC here, over HTTP/2 and with the content type application/grpc")
		return
	case !s.opts.Config.TakesWeb:
		refuse(c, w, r, http.StatusUpgradeRequired, "this server does not take web clients (option OtherClients): it only takes WebSockets here")
		return
	}
	q, st, no := s.parse(r)
	if no != nil {
		for key, values := range no.header {
			w.Header()[key] = values
		}
		refuse(c, w, r, no.code, no.text)
		return
	}
	if q.kind.enveloped() && !canFlush(w) {
		refuse(c, w, r, http.StatusInternalServerError, noFlush)
		return
	}
	resp := &response{w: w, flusher: http.NewResponseController(w), server: s, session: c, request: q}
	if r.Method == http.MethodGet {
		w.Header().Add("Vary", "Accept-Encoding")
	}
	if st != nil {
		leave(c, w, r)
		resp.end(&link.End{Status: st})
		return
	}
	resp.call(r, h.Accept)
}

// isGRPC reports whether r is a request of gRPC, by its content type, as grpc-go does.
func isGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// leave prepares an answer to a request whose body is not read: package http reads what
// is left of it, for a short time, and closes the connection.
func leave(c *session, w http.ResponseWriter, r *http.Request) {
	if r.Body != http.NoBody {
		c.leaveBodyUnread()
		if c.leaves() {
			w.Header().Set("Connection", "close")
		}
		c.limitReads(time.Now().Add(lingering))
	}
	c.limitWrites()
}

// refuse answers a request that is no call.
func refuse(c *session, w http.ResponseWriter, r *http.Request, code int, text string) {
	leave(c, w, r)
	if code != http.StatusNoContent {
		if w.Header().Get("Content-Type") == "" {
			text += "\n"
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// call makes the call of the request and writes its answer.
func (r *response) call(req *http.Request, accept func(link.Session) link.Acceptor) {
	c, q := r.session, r.request
	_ = r.flusher.EnableFullDuplex() // the reader may read while the writer writes
	acceptor := c.acceptor
	if c.exchange != nil {
		acceptor = c.open(accept)
	}
	if acceptor == nil {
		leave(c, r.w, req)
		r.end(&link.End{Status: status.New(codes.Unavailable, stopping)})
		return
	}
	if req.ProtoMajor > 1 {
		req.Body = leaving{req.Body}
	}
	st := newStream(c, q)
	r.stream = st
	header := r.callHeader(req)
	req.Header = nil // it is as large as the metadata, and package http keeps req during the call
	st.begin = sync.OnceFunc(func() {
		if err := acceptor.HandleStream(st, header); err != nil {
			st.Abort(err)
		}
	})
	defer st.abortAtDeadline()()
	left := context.AfterFunc(req.Context(), func() { st.Abort(context.Canceled) })
	defer left()
	if err := c.serves(st); err != nil {
		st.Abort(err)
	}
	body := st.readSmall(req)
	var read chan struct{}
	if body != nil {
		read = make(chan struct{})
		go func() {
			defer close(read)
			st.read(body, make([]byte, firstRead))
		}()
	}
	if !st.isOver() {
		st.begin()
	}
	r.answer()
	if read != nil {
		r.stopReading(read)
	}
	_ = c.serves(nil)
}

// callHeader returns the header of the call.
func (r *response) callHeader(req *http.Request) *link.CallHeader {
	q := r.request
	subtype := q.subtype
	if subtype == "proto" {
		subtype = ""
	}
	p := &link.Profile{Authority: req.Host, UserAgent: req.UserAgent(), ContentSubtype: subtype, Encoding: q.encoding, Accept: q.accept}
	return &link.CallHeader{Profile: p.Check(), Method: q.method, Metadata: q.metadata, Deadline: q.deadline}
}

// readSmall reads the body itself if the body is so small that it needs no reader. Otherwise it
// returns the body. The call begins when the body has been read, or if the session drains before
// that.
func (s *stream) readSmall(req *http.Request) (body io.Reader) {
	q := s.request
	switch {
	case req.Method == http.MethodGet:
		s.arrived(q.message, io.EOF)
	case q.size == 0:
		s.arrived(nil, io.EOF)
	case q.kind == grpcText:
		q.size = -1
		return &textReader{body: req.Body}
	case q.size < 0 || q.size > firstRead:
		return req.Body
	default:
		s.mu.Lock()
		s.in.small = !s.over
		read := s.in.small
		s.mu.Unlock()
		if read {
			s.read(req.Body, make([]byte, q.size)) // at its end, package http sees if the client leaves
		}
	}
	return nil
}

// stopReading is called after the answer was written, and waits until the reader has ended. If the
// request has not ended by then, the answer's header has told the client that the connection will
// be closed.
func (r *response) stopReading(read <-chan struct{}) {
	if !r.stream.bodyRead() {
		r.session.endReads() // also those of package http
	}
	<-read
}

// openWebSocket opens the WebSocket that r asks for, and starts a session over it. The HTTP/1
// session of the connection ends. h describes the connection. If r must be refused, openWebSocket
// returns the status code and the text of the answer.
func (s *Server) openWebSocket(w http.ResponseWriter, r *http.Request, h sniff.Handover) (code int, why string) {
	if h.Path != "" && h.Path != r.URL.Path {
		return http.StatusNotFound, fmt.Sprintf("this server takes WebSockets at %s, not at %.100s", h.Path, r.URL.Path)
	}
	if !s.opts.Begin() {
		return http.StatusServiceUnavailable, stopping
	}
	if code, why := websocket.Check(r, w.Header()); code != 0 {
		return code, why
	}
	conn, first, err := hijack(w)
	if err != nil {
		return http.StatusInternalServerError, fmt.Sprintf("the HTTP server cannot hand over its connection: %v", err)
	}
	auth := h.Auth
	switch {
	case auth != nil:
	case r.TLS != nil:
		auth = link.TLSInfo(*r.TLS)
	default:
		auth = s.opts.Sockets.PlainAuth(conn)
	}
	over, err := websocket.Accept(r, conn, mux.PromptOf(conn), first)
	if err != nil {
		return 0, "" // the client has left
	}
	var without []string
	if !s.origins.trusts(r) {
		without = []string{"Cookie", "Authorization"}
	}
	if info, ok := auth.(credentials.TLSInfo); ok {
		r = r.WithContext(r.Context()) // a copy
		r.TLS = &info.State
	}
	s.opts.Sockets.Serve(over, link.Peer{AuthInfo: auth, Path: counters.WebSocket, Request: websocket.Keep(r, without...)}, h.Deadline, h.Accept)
	return 0, ""
}

// hijack takes over the connection of a request. first was read from it, after the request.
func hijack(w http.ResponseWriter) (over net.Conn, first []byte, err error) {
	hijacked, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	first, _ = rw.Reader.Peek(rw.Reader.Buffered())
	first = slices.Clone(first)
	if c, ok := hijacked.(*conn); ok {
		return c.Conn, append(first, c.first...), nil
	}
	return hijacked, first, nil
}
