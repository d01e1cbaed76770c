package web

import (
	"fmt"
	"net"
	"net/http"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/transport/sock"
	"github.com/nearcall/nearcall/internal/transport/websocket"
)

// openWebSocket opens the WebSocket that r asks for, and starts a session over it. The HTTP/1
// session of the connection ends. h describes the connection. If r must be refused, openWebSocket
// returns the status code and the text of the answer.
func (s *Server) openWebSocket(w http.ResponseWriter, r *http.Request, h sock.Handover) (code int, why string) {
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
