package nearcall

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// A Listener is what [Server.Serve] serves. Peers may arrive at it in other
// ways than as byte streams, so its Accept may return an error; pass it to
// Serve as it is.
type Listener interface {
	net.Listener

	// Target returns what a client passes to [NewClient] to arrive here.
	Target() string
}

// A ListenOption configures [Listen]. There are none yet.
type ListenOption interface{ applyListen(*listenOptions) }

type listenOptions struct{}

// Listen opens target for a server:
//
//   - inproc:NAME takes NAME within the process until the listener is closed.
//   - tcp:HOST:PORT is a port of this machine. Port 0 is any that is free; the
//     listener's Target has its number. Without HOST, or with 0.0.0.0 or [::],
//     all of the machine's addresses are listened on, and the Target is one for
//     clients on the same machine.
//   - unix:PATH and unix:///PATH make a socket file, which is removed when the
//     listener is closed. Whoever may write to it may connect. One that a
//     process left behind, so that nobody answers there, is replaced.
//   - shm:PATH makes a socket file as unix:PATH does, over which clients of the
//     same user set shared memory up. Others are refused. It is available on
//     Linux alone.
//   - unix-abstract:NAME is a name of the network namespace, without a file. Any
//     user may connect. It is known to Linux alone.
//
// A target that is taken is an error, and so is one that nearcall does not
// serve itself. A server's options, its credentials among them, concern
// whatever it serves: see [Creds].
func Listen(target string, opts ...ListenOption) (Listener, error) {
	var o listenOptions
	for _, opt := range opts {
		if opt != nil {
			opt.applyListen(&o)
		}
	}
	t, err := parseTarget(target)
	if err == nil && t.scheme == schemeGRPC {
		err = errors.New("write inproc:NAME, shm:PATH, unix:PATH, unix-abstract:NAME or tcp:HOST:PORT")
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot listen on %q: %w", target, err)
	}
	if t.scheme == schemeInproc {
		return inproc.Listen(t.rest)
	}
	lis, err := net.Listen(t.network, t.address)
	if err != nil && (t.scheme == schemeUnix || t.scheme == schemeShm) {
		lis, err = replace(t.address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot listen on %q: %w", target, err)
	}
	if t.network == "tcp" {
		target = reachable(t.host(), lis.Addr())
	}
	return socket{lis, target, t.scheme == schemeShm}, nil
}

// A socket is a listener of the network that knows its target.
type socket struct {
	net.Listener
	target string
	insist bool // on shared memory
}

// Target implements [Listener].
func (s socket) Target() string { return s.target }

// reachable is the target of a listener at addr that was asked for by host.
func reachable(host string, addr net.Addr) string {
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	_, port, _ := net.SplitHostPort(addr.String())
	return schemeTCP + ":" + net.JoinHostPort(host, port)
}

// replace listens in place of a socket that was left behind at path, where
// listening failed for reason.
func replace(path string, reason error) (net.Listener, error) {
	before, err := os.Lstat(path)
	switch {
	case err != nil: // nothing is in the way
		return nil, reason
	case before.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("there is a file that is no socket, and it is left alone: %w", reason)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return nil, fmt.Errorf("another server listens there: %w", reason)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("there is a socket, and whether anybody listens cannot be told (%w); remove it if nobody does: %w", err, reason)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
		return nil, fmt.Errorf("another server has just come there: %w", reason)
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("nobody listens at the socket there, but it cannot be removed: %w", err)
	}
	return net.Listen("unix", path)
}
