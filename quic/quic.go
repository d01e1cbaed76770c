// Package quic carries the calls of package nearcall over QUIC. Each call has its own QUIC stream,
// so a lost packet delays only the call whose bytes it had. A first call on a new connection needs
// one round trip less than over TCP with TLS, and connections survive a change of the client's
// network.
//
// A program that imports the package can listen on and dial targets of the form quic:HOST:PORT,
// where PORT is a UDP port:
//
//	lis, err := nearcall.Listen("quic::443")
//	srv := nearcall.NewServer(nearcall.Creds(nearcall.NewTLS(config)))
//	conn, err := nearcall.NewClient("quic:example.com:443", nearcall.WithTransportCredentials(nearcall.NewTLS(config)))
//
// QUIC uses TLS 1.3 and sets NextProtos itself. It needs credentials from [nearcall.NewTLS],
// because those of other packages hide their tls.Config.
//
// Everything else works as over other targets. docs/quic.md says when QUIC is the better choice,
// and what the options of package nearcall mean here.
package quic

import (
	"crypto/tls"
	"os"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	_ "github.com/nearcall/nearcall/quic/internal/generation"
)

// alpn is the protocol name on which both sides agree in TLS. It replaces the first line and the
// version of docs/protocol.md.
const alpn = "nearcall/1"

func init() {
	registry.Register(&registry.Transport{Scheme: "quic", Dialer: newDialer, Listen: listen})
}

// StatelessResetKey sets the key from which a server derives the tokens that end a connection of
// an earlier process. If a server that was killed is started again with the same key, at the same
// address, its clients learn at their next packet that their connections are lost. Without the
// key they learn it after 30 seconds without an answer. The key must be secret and random.
func StatelessResetKey(k [32]byte) nearcall.ServerOption {
	return options.SetServer(func(o *options.Server) { o.StatelessResetKey = &k })
}

// maxWindow is how much of a call's messages may wait if its peer drains, at least, in bytes.
const maxWindow = 4 << 20

const handshake = 20 * time.Second // the longest time limit of a handshake

// helloTime returns the time limit for the HELLO of a server's client.
func helloTime(c *options.Connections) time.Duration { return min(c.HandshakeTime, handshake) }

// config returns the configuration of a connection.
func config(c *options.Connections) *q.Config {
	all := &q.Config{
		HandshakeIdleTimeout:           max(helloTime(c)/2, 1), // quic-go takes 0 as its default
		InitialStreamReceiveWindow:     uint64(c.StreamWindow),
		MaxStreamReceiveWindow:         uint64(c.MaxStreamWindow),
		InitialConnectionReceiveWindow: uint64(c.QUICConnWindow),
		MaxConnectionReceiveWindow:     uint64(c.QUICConnWindow),
		MaxIncomingStreams:             1 << 60,
		MaxIncomingUniStreams:          1, // the control stream
		RequireStreamCreditRelease:     true,

		// The packets of a side that keeps the connection alive.
		KeepAlivePeriod: min(c.QUICPings.Every, never),
		MaxIdleTimeout:  min(durations.Sum(c.QUICPings.Every, max(c.QUICPings.Timeout, 0)), never),
	}
	if c.MaxStreams > 0 {
		all.MaxIncomingStreams = int64(c.MaxStreams)
	}
	return all
}

// clientConfig returns the configuration of a client's connection.
func clientConfig(s *registry.Settings) *q.Config {
	c := config(s.Config)
	if s.Accept == nil {
		c.MaxIncomingStreams = -1
	}
	return c
}

// never is longer than any connection lasts. quic-go adds its timeouts to its clock without a check
// for overflow.
const never = 100 * 365 * 24 * time.Hour

// silenceOf returns the rule for the silence of a session's peer with the configuration c.
func silenceOf(c *q.Config) lifecycle.Silence {
	return lifecycle.Silence{Probe: c.KeepAlivePeriod, Limit: c.MaxIdleTimeout}
}

// secured returns a copy of c with the settings that QUIC needs.
func secured(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{alpn}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS13)
	return c
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
func (s *session) maxSpent() int {
	if s.config.MaxStreams == 0 {
		return 250
	}
	return int(min(s.config.MaxStreams/4, 250))
}

// window is how many bytes of a call's messages may wait to be received.
func (s *session) window() int { return s.config.StreamWindow }

// maxHeader is the limit for a header or trailer, in bytes.
func (s *session) maxHeader() int { return s.config.MaxHeader }
