// Package options holds what the options of package nearcall set: a [Server] or a [Client]. New
// fills in the defaults. After that nothing changes, and every layer reads the one value, through a
// pointer. This project's other modules, commands and tests use the package to make options that
// package nearcall does not export.
//
// A field has a name that nothing else in this project has, so a search for the name finds what
// sets it and what reads it.
package options

import (
	"cmp"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/durations"
)

// Connections is the part of the options that both sides have: how connections to other processes
// work. Sizes are in bytes.
type Connections struct {
	ServerCreds credentials.TransportCredentials // of a server; nil for none, or insecure ones

	NoSharedMemory bool  // connections stay sockets
	MaxMemory      int64 // limit of the shared memory of all connections
	NoSpinning     bool  // goroutines that wait for the peer block at once, instead of polling first

	MaxStreams    uint32        // limit of the open calls of a connection's peer; 0 for none
	HandshakeTime time.Duration // time limit of a client's handshake; negative for no time

	LocalWindow     int // of a stream in process, and of a request over HTTP
	StreamWindow    int // of a stream of any other connection
	MaxStreamWindow int // up to which a receiver that waits for a larger message grows that window
	ConnWindow      int // of all streams of a connection; not less than StreamWindow
	QUICConnWindow  int // the same over QUIC, where calls with unread messages do not stop at StreamWindow together

	MaxHeader     int // limit of a header or trailer that the peer sends, counting 32 for each entry
	MaxHTTPHeader int // the same for web clients

	Pings     Pings
	QUICPings Pings

	IdleLimit time.Duration // after which a server ends a connection without calls; 0 or less for never
	HTTPIdle  time.Duration // the same for web clients of HTTP/1.1
	AgeLimit  time.Duration // after which a server ends a connection; 0 or less for never
	AgeGrace  time.Duration // how long calls may last after that; 0 for as long as they like

	LeastPing, LeastIdlePing time.Duration // that a server's client must leave between pings, with and without calls

	StatelessResetKey *[32]byte // of a server over QUIC; nil for none

	limitsLocal bool // MaxStreams was set, and so applies in process, too
	Given       Given
}

// Pings says when this side asks a silent peer for a sign of life.
type Pings struct {
	Every        time.Duration // how long the peer may be silent before; 0 for no pings
	Timeout      time.Duration // how long it may take to answer; without pings, to send anything
	WithoutCalls bool          // pings are sent also without an open call
}

// Given is what the user says about fields that have another default on each path; 0 for nothing. New
// makes those fields, and the options of grpc-go, which has its own defaults, from it. Nothing else
// reads it.
type Given struct {
	StreamBytes, ConnBytes int32  // windows
	HeaderBytes            uint32 // limit
	Server                 keepalive.ServerParameters
	Client                 keepalive.ClientParameters
	Enforcement            keepalive.EnforcementPolicy
}

// SetMaxStreams sets the limit of the open calls of a connection, in process as well.
func (c *Connections) SetMaxStreams(n uint32) { c.MaxStreams, c.limitsLocal = n, true }

// SetPeerServer makes s serve the calls of a client's peer, with the limit of s's options.
func (o *Client) SetPeerServer(s PeerServer, of *Server) {
	o.PeerServer, o.MaxStreams = s, of.MaxStreams
}

// HandlerLimit returns how many handlers of a connection's calls may run; 0 for no limit. local says
// that the peer is in this process.
func (c *Connections) HandlerLimit(local bool) uint32 {
	if local && !c.limitsLocal {
		return 0
	}
	return c.MaxStreams
}

// minWindow is the smallest window of a stream. A peer sends that much before it knows the window.
const minWindow = 64 << 10

// complete sets the fields that depend on what was given, and all defaults.
func (c *Connections) complete() {
	window, connWindow, header := int(c.Given.StreamBytes), max(int(c.Given.ConnBytes), 0), int(min(c.Given.HeaderBytes, math.MaxInt32))
	// A message that fits its window needs no round trip for credit.
	c.LocalWindow, c.StreamWindow, c.MaxStreamWindow = minWindow, 256<<10, 4<<20
	if window != 0 { // as in gRPC, a window that the user has set does not grow
		c.LocalWindow = max(window, minWindow)
		c.StreamWindow = min(c.LocalWindow, 1<<30) // half as much again must fit an int of 32 bits
		c.MaxStreamWindow = c.StreamWindow
	}
	c.ConnWindow = max(cmp.Or(connWindow, 2<<20), c.StreamWindow)
	c.QUICConnWindow = max(cmp.Or(connWindow, 64<<20), c.StreamWindow)
	c.MaxHeader = max(cmp.Or(header, 16<<20), 16<<10)
	c.MaxHTTPHeader = cmp.Or(header, maxHTTPHeader)
	c.HandshakeTime = cmp.Or(c.HandshakeTime, 120*time.Second)
}

// maxHTTPHeader is the default of MaxHeaderListSize for web clients and ordinary gRPC clients. It is
// below grpc-go's default of 16 MiB: with HPACK, a client can fill 16 MiB by sending 4 kB for each
// call.
const maxHTTPHeader = 64 << 10

const pingTimeout = 20 * time.Second // gRPC's default

// completeServer is complete for a server.
func (c *Connections) completeServer() {
	c.complete()
	c.MaxMemory = cmp.Or(c.MaxMemory, 1<<30)
	if !c.limitsLocal { // without a limit, each call would cost a client a few bytes, and the server a goroutine and some 10 KiB
		c.MaxStreams = 1000
	}
	k := &c.Given.Server
	c.Pings = Pings{max(cmp.Or(k.Time, 2*time.Hour), time.Second), cmp.Or(k.Timeout, pingTimeout), true} // as in gRPC
	c.QUICPings = Pings{Timeout: 30 * time.Second}                                                       // clients keep connections alive
	if k.Time > 0 {
		c.QUICPings = c.Pings
	}
	c.IdleLimit, c.AgeLimit, c.AgeGrace = k.MaxConnectionIdle, k.MaxConnectionAge, k.MaxConnectionAgeGrace
	c.HTTPIdle = cmp.Or(max(c.IdleLimit, 0), 2*time.Minute)
	c.LeastPing = cmp.Or(c.Given.Enforcement.MinTime, 5*time.Minute) // gRPC's default
	c.LeastIdlePing = c.LeastPing
	if !c.Given.Enforcement.PermitWithoutStream {
		c.LeastIdlePing = 2 * time.Hour
	}
}

// completeClient is complete for a client.
func (c *Connections) completeClient() {
	c.complete()
	c.MaxMemory = cmp.Or(c.MaxMemory, 128<<20)
	k := &c.Given.Client
	c.Pings = Pings{Timeout: cmp.Or(k.Timeout, pingTimeout), WithoutCalls: k.PermitWithoutStream}
	c.QUICPings = Pings{Every: 10 * time.Second, Timeout: pingTimeout} // a call may send nothing for longer than the server waits
	if k.Time > 0 {
		c.Pings.Every = max(k.Time, 10*time.Second) // as in gRPC
		c.QUICPings = c.Pings
	}
}

// LimitsAge reports whether a server ends connections after some time.
func (c *Connections) LimitsAge() bool { return c.AgeLimit > 0 || c.IdleLimit > 0 }

// forGRPC returns the options for the connections of a grpc.Server.
func (c *Connections) forGRPC() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.KeepaliveParams(ages(c.Given.Server)),
		grpc.KeepaliveEnforcementPolicy(c.Given.Enforcement),
		grpc.MaxHeaderListSize(uint32(c.MaxHTTPHeader)),
		grpc.ConnectionTimeout(c.HandshakeTime),
	}
	if n := c.MaxStreams; n > 0 {
		opts = append(opts, grpc.MaxConcurrentStreams(n))
	}
	if c.Given.StreamBytes != 0 {
		opts = append(opts, grpc.InitialWindowSize(int32(c.LocalWindow)))
	}
	if n := c.Given.ConnBytes; n > 0 {
		opts = append(opts, grpc.InitialConnWindowSize(n))
	}
	return opts
}

// ages returns p with ages that grpc-go can take. At a MaxConnectionAge that is negative or shorter
// than 10 ns it panics, and adding its jitter to a very long one overflows.
func ages(p keepalive.ServerParameters) keepalive.ServerParameters {
	p.MaxConnectionIdle = max(p.MaxConnectionIdle, 0)
	switch age := &p.MaxConnectionAge; {
	case *age <= 0:
		*age = 0 // none
	case *age > durations.Longest/2:
		*age = durations.Longest
	default:
		*age = max(*age, 10)
	}
	return p
}
