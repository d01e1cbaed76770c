package nearcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/nearcall/nearcall/internal/rights"
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
//     process left behind, so that nobody answers there, is replaced; of
//     several servers that come for it one gets it, and the others an error.
//     While Listen runs there is a file PATH.nearcall-lock beside it. If a
//     process is killed meanwhile the file stays: later servers of the same user
//     use it again, those of another user fail and say so.
//     Windows has unix sockets since version 10 1803; PATH may begin with a drive
//     there.
//   - shm:PATH and shm:///PATH make a socket file as unix:PATH does, over which clients of the
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
	var lis Listener
	switch {
	case err != nil:
	case t.scheme.listen != nil:
		lis, err = t.scheme.listen(t)
	case t.rest == t.text && suggestion(target) != "": // it has no scheme of nearcall's
		err = errors.New(suggestion(target))
	default:
		err = fmt.Errorf("write %s", listenUsage())
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot listen on %q: %w", target, err)
	}
	return lis, nil
}

func listenInproc(t *parsedTarget) (Listener, error) {
	lis, err := inproc.Listen(t.rest)
	if err != nil {
		return nil, err
	}
	return lis, nil
}

func listenUnix(t *parsedTarget) (Listener, error) {
	if err := unixSockets(); err != nil {
		return nil, err
	}
	lis, err := listenFile(t.address)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: t.text}, nil
}

func listenShm(t *parsedTarget) (Listener, error) {
	lis, err := listenFile(t.address)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: t.text, insist: true}, nil
}

func listenAbstract(t *parsedTarget) (Listener, error) {
	lis, err := listen(t.network, t.address)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: t.text}, nil
}

func listenTCP(t *parsedTarget) (Listener, error) {
	lis, err := listen(t.network, t.address)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: reachable(t.host(), lis.Addr())}, nil
}

// listen listens on a socket that takes no descriptor from anybody.
func listen(network, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: rights.RefuseFrom}
	return config.Listen(context.Background(), network, address)
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
	return "tcp:" + net.JoinHostPort(host, port)
}
