package quic

import (
	"cmp"
	"crypto/tls"
	"net"
	"os"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/wire"
)

// Defaults. A window is in bytes.
const (
	window    = 256 << 10 // of a call
	maxWindow = 4 << 20   // up to which the default window grows

	// connWindow is the window of a connection. Calls with unread messages fill their own
	// windows, but must not use up the connection's window. It has room for 256 such calls.
	connWindow = 256 * window

	probing   = 10 * time.Second // between packets of a client that has nothing else to send
	idle      = 30 * time.Second // a peer that has sent nothing for this time counts as lost
	handshake = 20 * time.Second

	minKeepalive     = 10 * time.Second // as in gRPC
	keepaliveTimeout = 20 * time.Second // gRPC's default
)

// config returns the configuration that both sides of a connection share.
func config(s *registry.Settings) *q.Config {
	w := uint64(max(cmp.Or(s.Window, window), wire.MinWindow))
	c := &q.Config{
		HandshakeIdleTimeout:           handshake / 2,
		MaxIdleTimeout:                 idle,
		InitialStreamReceiveWindow:     w,
		MaxStreamReceiveWindow:         w,
		InitialConnectionReceiveWindow: max(uint64(cmp.Or(s.ConnWindow, connWindow)), w),
		MaxIncomingStreams:             1 << 60,
		MaxIncomingUniStreams:          1, // the control stream
		RequireStreamCreditRelease:     true,
	}
	if s.Window == 0 {
		c.MaxStreamReceiveWindow = maxWindow
	}
	c.MaxConnectionReceiveWindow = c.InitialConnectionReceiveWindow
	if s.MaxStreams > 0 {
		c.MaxIncomingStreams = int64(s.MaxStreams)
	}
	if s.Handshake != 0 {
		c.HandshakeIdleTimeout = max(min(s.Handshake, handshake)/2, 1) // quic-go takes 0 as its default
	}
	return c
}

// clientConfig returns the configuration of a client. The client sends packets that keep the
// connection alive, because a call may send nothing for longer than the idle timeout.
func clientConfig(s *registry.Settings) *q.Config {
	c := config(s)
	c.KeepAlivePeriod = probing
	if k := s.Keepalive; k.Time > 0 {
		keepAlive(c, max(k.Time, minKeepalive), k.Timeout)
	}
	if s.Accept == nil {
		c.MaxIncomingStreams = -1
	}
	return c
}

// serverConfig returns the configuration of a server. Clients keep their connections alive, so a
// server sends packets for that only if the user asks for it.
func serverConfig(s *registry.Settings) *q.Config {
	c := config(s)
	if k := s.ServerKeepalive; k.Time > 0 {
		keepAlive(c, max(k.Time, time.Second), k.Timeout) // as in gRPC
	}
	return c
}

// never is longer than any connection lasts. quic-go adds its timeouts to its clock without a check
// for overflow.
const never = 100 * 365 * 24 * time.Hour

// keepAlive sets how long a connection may be silent before a packet asks for an answer, and how
// long it may then take until the connection is lost; 0 is gRPC's default.
func keepAlive(c *q.Config, period, timeout time.Duration) {
	c.KeepAlivePeriod = min(period, never)
	c.MaxIdleTimeout = min(durations.Sum(c.KeepAlivePeriod, max(cmp.Or(timeout, keepaliveTimeout), 0)), never)
}

// livenessOf returns the liveness check of a session with the configuration c.
func livenessOf(c *q.Config) liveness {
	return liveness{probe: c.KeepAlivePeriod, limit: c.MaxIdleTimeout}
}

// secured returns a copy of c with the settings that QUIC needs.
func secured(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{alpn}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS13)
	return c
}

// hostOf returns the host of an authority.
func hostOf(authority string) string {
	if host, _, err := net.SplitHostPort(authority); err == nil {
		return host
	}
	return authority
}

// quic-go warns on stderr if a socket's buffers are smaller than it wants. checkBuffers tells
// gRPC's logger instead.
const noWarning = "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING"

func init() {
	if _, set := os.LookupEnv(noWarning); !set {
		_ = os.Setenv(noWarning, "true")
	}
}

// maxSpent is how many ended calls may delay returning their stream credit to the peer.
func maxSpent(s *registry.Settings) int {
	if s.MaxStreams == 0 {
		return 250
	}
	return int(min(s.MaxStreams/4, 250))
}
