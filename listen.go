package nearcall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/nearcall/nearcall/internal/rights"
	"github.com/nearcall/nearcall/internal/socketfile"
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

// A ListenOption configures [Listen].
type ListenOption interface{ applyListen(*listenOptions) }

type listenOptions struct{ file socketfile.Options }

type listenOption func(*listenOptions)

func (f listenOption) applyListen(o *listenOptions) { f(o) }

// SocketFileMode sets the mode of a socket file, as os.Chmod takes it: whoever may write
// to the file may connect. By default the mode follows from the process's umask. Only
// permission bits may be set. The file has the mode, and the owner of [SocketFileOwner],
// before anybody can connect.
//
// The option is for unix:PATH and shm:PATH, on systems other than Windows; elsewhere
// Listen fails.
func SocketFileMode(mode fs.FileMode) ListenOption {
	return listenOption(func(o *listenOptions) { o.file.Mode = &mode })
}

// SocketFileOwner sets the numeric user and group of a socket file, as os.Chown takes
// them: -1 leaves the process's own. A process without privileges may give a file to a
// group that it is in, and to nobody else; Listen fails otherwise. Like
// [SocketFileMode] it is for unix:PATH and shm:PATH.
func SocketFileOwner(uid, gid int) ListenOption {
	return listenOption(func(o *listenOptions) { o.file.Owner = &socketfile.Owner{UID: uid, GID: gid} })
}

// check returns what is wrong with the options of a listener on t.
func (o *listenOptions) check(t *parsedTarget) error {
	switch mode := o.file.Mode; {
	case o.file.IsZero():
	case t.network != "unix" || t.address[0] == '@':
		return errors.New("SocketFileMode and SocketFileOwner are only for unix:PATH and shm:PATH, which have a socket file; leave them out")
	case mode != nil && *mode != mode.Perm():
		return fmt.Errorf("SocketFileMode takes permission bits only, as in 0660, got %v", *mode)
	}
	return nil
}

// Listen opens target for a server:
//
//   - inproc:NAME takes NAME within the process until the listener is closed.
//   - tcp:HOST:PORT is a port of this machine. Port 0 is any that is free; the
//     listener's Target has its number. Without HOST, or with 0.0.0.0 or [::],
//     all of the machine's addresses are listened on, and the Target is one for
//     clients on the same machine.
//   - unix:PATH and unix:///PATH make a socket file, which is removed when the
//     listener is closed. Whoever may write to the file may connect: see
//     [SocketFileMode] and [SocketFileOwner]. A file that a server left behind when
//     it was killed is replaced. If several servers try that, one succeeds and the
//     others get an error. While Listen runs there is a lock file
//     PATH.nearcall-lock. It stays if the process is killed meanwhile: later servers
//     of the same user use it again, those of other users fail and say so.
//     Windows has unix sockets since version 10 1803; PATH may begin with a drive
//     there.
//   - shm:PATH and shm:///PATH make a socket file as unix:PATH does, over which
//     clients of the same user set up shared memory. Other users are refused. It is
//     available only on Linux.
//   - unix-abstract:NAME is a name of the network namespace, without a file. Any
//     user may connect. It is available only on Linux.
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
		if err = o.check(t); err == nil {
			lis, err = t.scheme.listen(t, &o)
		}
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

func listenInproc(t *parsedTarget, _ *listenOptions) (Listener, error) {
	lis, err := inproc.Listen(t.rest)
	if err != nil {
		return nil, err
	}
	return lis, nil
}

func listenUnix(t *parsedTarget, o *listenOptions) (Listener, error) {
	if err := socketfile.Supported(); err != nil {
		return nil, err
	}
	lis, err := socketfile.Listen(t.address, o.file)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: t.text}, nil
}

func listenShm(t *parsedTarget, o *listenOptions) (Listener, error) {
	lis, err := socketfile.Listen(t.address, o.file)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: t.text, needsUpgrade: true}, nil
}

func listenAbstract(t *parsedTarget, _ *listenOptions) (Listener, error) {
	lis, err := listen(t.network, t.address)
	if err != nil {
		return nil, err
	}
	return socket{Listener: lis, target: t.text}, nil
}

func listenTCP(t *parsedTarget, _ *listenOptions) (Listener, error) {
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
	target       string
	needsUpgrade bool // to shared memory
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
