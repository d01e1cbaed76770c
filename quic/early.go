package quic

import (
	"context"
	"crypto/tls"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Early data: QUIC's 0-RTT.
//
// A client that has been connected to the server before can send calls in its first packets. An
// attacker who has recorded these can send them again, so only methods without side effects are
// called early. Both sides check: the client calls no others, and the server holds the others until
// the handshake is complete. An attacker who only repeats recorded packets cannot complete it.
//
// The state of a client's connection changes twice. At first calls without side effects are opened.
// When the first packet of the server arrives (see gate), no call is opened any more. When the
// handshake is complete, all calls are, and it is known whether the server has accepted the early
// data. If not, it has seen nothing of the early calls: they fail with ErrUnprocessed, and are made
// again.

// EarlyData lets the calls of a new connection that are made before its handshake is complete be
// sent in the client's first packets (QUIC's 0-RTT), which saves them a round trip. It applies to
// methods whose idempotency_level is NO_SIDE_EFFECTS, and to connections to a server with
// [AcceptEarlyData] that this ClientConn has been connected to before. All other calls wait for the
// handshake.
//
// An attacker who has recorded the packets can send them to the server again, which then handles
// these calls again. The TLSInfo of calls on such a connection lacks the server's certificates
// until the handshake is complete. With a client certificate that the server asks for there is no
// early data.
//
// Experimental: the option may change or go.
func EarlyData() nearcall.DialOption {
	return hook.DialValue(keyEarly, true).(nearcall.DialOption)
}

// AcceptEarlyData lets a server accept early data; see [EarlyData]. Calls of methods that are not
// marked with NO_SIDE_EFFECTS wait until the client's handshake is complete, whatever the client
// does. The server asks its own generated code for the mark. It has no effect if the server's
// tls.Config asks for client certificates or has a GetConfigForClient.
//
// Handlers of marked methods must expect to run more than once for a call. In the TLSInfo that
// handlers find HandshakeComplete may be false.
//
// Experimental: the option may change or go.
func AcceptEarlyData() nearcall.ServerOption {
	return hook.ServerValue(keyEarly, true).(nearcall.ServerOption)
}

// acceptsEarly reports whether a server with these settings accepts early data.
func acceptsEarly(s *hook.Settings) bool {
	on, _ := s.Values[keyEarly].(bool)
	return on && s.TLS.ClientAuth == tls.NoClientCert && s.TLS.GetConfigForClient == nil
}

// An early is the state of a client's connection whose handshake was not complete when Dial
// returned.
type early struct {
	gate  *gate
	ready chan struct{} // closed when the handshake is complete, or has failed
	begun bool          // the control stream was opened early; used by start and settle only
}

// earlyOf returns the early state of a connection that was dialled through g, and the state of its
// TLS. It returns nil if the handshake is complete.
func earlyOf(ctx context.Context, conn *q.Conn, g *gate) (*early, tls.ConnectionState, error) {
	if g != nil {
		var state tls.ConnectionState
		if !link.IsClosed(conn.HandshakeComplete()) && g.before(func() { state = conn.ConnectionState().TLS }) {
			return &early{gate: g, ready: make(chan struct{})}, state, nil
		}
		// Waits for the handshake. Nothing was sent early that the server could have rejected.
		if _, err := conn.NextConnection(ctx); err != nil {
			return nil, tls.ConnectionState{}, err
		}
	}
	return nil, conn.ConnectionState().TLS, nil
}

// settle completes the start of a client's session once its handshake is complete.
func (s *session) settle() {
	defer close(s.early.ready)
	select {
	case <-s.conn.HandshakeComplete():
	case <-s.conn.Context().Done():
		return
	}
	state := s.conn.ConnectionState()
	if !state.Used0RTT {
		// The streams were reset, that of the control stream as well.
		s.mu.Lock()
		s.control, s.finished, s.opened = nil, false, 0
		s.mu.Unlock()
		if _, err := s.conn.NextConnection(context.Background()); err != nil {
			return
		}
		s.early.begun = false
	}
	p := *s.Peer()
	p.AuthInfo = link.TLSInfo(state.TLS)
	s.peer.Store(&p)
	if !s.early.begun {
		s.greet()
	}
	s.receive()
}

// openEarly opens a call before the handshake is complete if it may be made early. Otherwise it
// waits until the handshake is complete, and returns nil.
func (s *session) openEarly(ctx context.Context, method string) (qs *q.Stream, err error) {
	e := s.early
	if e == nil || link.IsClosed(e.ready) {
		return nil, nil
	}
	if link.HasNoSideEffects(method) {
		e.gate.before(func() { qs, err = s.conn.OpenStream() })
		if qs != nil {
			return qs, nil
		}
	}
	if err := wait.Closed(ctx, e.ready); err != nil {
		return nil, link.ContextEnd(err)
	}
	return nil, nil
}

// awaitHandshake waits, before a call of a client is handled, until the client's handshake is
// complete, if the method has side effects. It returns false if the call has ended.
func (s *session) awaitHandshake(st *stream, method string) bool {
	complete := s.conn.HandshakeComplete()
	if link.IsClosed(complete) || link.HasNoSideEffects(method) {
		return true
	}
	select {
	case <-complete:
		return true
	case <-st.qs.Context().Done():
	case <-s.conn.Context().Done():
	}
	return false
}
