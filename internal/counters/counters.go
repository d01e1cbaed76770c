// Package counters counts the connections of this process and the retries of its calls, for package
// metrics. The runtime counts only when a connection begins or ends and when a call is retried, not
// per call or message.
package counters

import (
	"errors"
	"slices"
	"sync/atomic"
)

// A Path is how the calls of a session travel.
type Path uint8

// The paths.
const (
	Other Path = iota // a connection that the program has made itself, such as a net.Pipe
	InProcess
	SharedMemory
	Unix
	TCP
	WebSocket
	QUIC
	GRPC  // HTTP/2, with an ordinary gRPC client or server
	HTTP  // HTTP/1.1 or HTTP/2, with a client of Connect, gRPC-Web or JSON
	Paths // how many there are
)

var paths = [Paths]string{"other", "inproc", "shm", "unix", "tcp", "ws", "quic", "grpc", "http"}

// String returns the name of the path.
func (p Path) String() string { return paths[p] }

// PathOver returns the path of connections over a network with the name that net.Addr gives it, or Other.
func PathOver(network string) Path { return Path(max(slices.Index(paths[:], network), 0)) }

// A tally counts the sessions of one side and path.
type tally struct {
	open   atomic.Int64
	opened atomic.Uint64
}

var sessions [2][Paths]tally // as server and as client

func tallyOf(client bool, p Path) *tally {
	if client {
		return &sessions[1][p]
	}
	return &sessions[0][p]
}

// Sessions returns how many sessions are open, and how many were opened.
func Sessions(client bool, p Path) (open int64, opened uint64) {
	t := tallyOf(client, p)
	return t.open.Load(), t.opened.Load()
}

// A Session counts one session. Its methods are safe for concurrent use, and only their first calls
// count. A Session that has ended before it began is not counted.
type Session struct{ in atomic.Pointer[tally] }

var over tally // stands for those that have ended

// Begin is called when the handshake has ended.
func (s *Session) Begin(client bool, p Path) {
	if t := tallyOf(client, p); s.in.Load() == nil && s.in.CompareAndSwap(nil, t) {
		t.opened.Add(1)
		t.open.Add(1)
	}
}

// End is called when the session has ended.
func (s *Session) End() {
	if t := s.in.Swap(&over); t != nil && t != &over {
		t.open.Add(-1)
	}
}

// A Reason says why a connection did not get a nearer path.
type Reason uint8

// The reasons.
const (
	Failed      Reason = iota // an error of the system or of the protocol, or no answer in time
	Disabled                  // DisableSharedMemory or WithDisableSharedMemory on this side
	Declined                  // the peer declines, and counts its own reason
	NoMemory                  // MaxSharedMemory or WithMaxSharedMemory is reached
	Busy                      // too many other clients set up shared memory
	OtherUser                 // the peer runs as another user
	Abstract                  // the unix socket is abstract
	Wrapped                   // a wrapper other than TLS is around the socket
	OwnDialer                 // the program's own dialer has made the connection over TCP
	Unsupported               // this system has no shared memory
	GRPCServer                // the server speaks only gRPC
	OtherHost                 // the server is on another host
	NoOffer                   // the server of this host offers nothing over TCP
	Intercepted               // a proxy or another network namespace is in between
	Reasons                   // how many there are
)

var reasons = [Reasons]string{
	"failed", "disabled", "declined", "no_memory", "busy", "other_user", "abstract_socket", "wrapped_connection",
	"own_dialer", "unsupported_system", "grpc_server", "other_host", "no_offer", "intercepted",
}

// String returns the name of the reason.
func (r Reason) String() string { return reasons[r] }

var stays [Reasons]atomic.Uint64

// Stays returns how many connections got no nearer path for this reason.
func Stays(r Reason) uint64 { return stays[r].Load() }

// A reasoned error is one whose reason is counted.
type reasoned struct {
	error
	reason Reason
}

// Unwrap returns the error without the reason.
func (r *reasoned) Unwrap() error { return r.error }

// New returns an error with the text, for Stay.
func (r Reason) New(text string) error { return r.Of(errors.New(text)) }

// Of returns err with a reason, for Stay.
func (r Reason) Of(err error) error { return &reasoned{err, r} }

// Stay counts a connection that gets no nearer path because of err.
func Stay(err error) {
	why, r := Failed, (*reasoned)(nil)
	if errors.As(err, &r) {
		why = r.reason
	}
	stays[why].Add(1)
}

// Retries and reconnections of clients.
var (
	TransparentRetries atomic.Uint64 // attempts of calls that no handler had seen
	PolicyRetries      atomic.Uint64 // attempts because of a retryPolicy
	Reconnections      atomic.Uint64 // connections that replaced a lost one
)

// Shm counts events of shared memory.
var Shm struct {
	Upgrades, Fallbacks            atomic.Uint64 // of sockets, after an offer
	Connections, Bytes             atomic.Int64  // in use now
	LargeMessages, NoRoom, Wakeups atomic.Uint64 // see package metrics
}
