package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// A Listener is a nearcall.Listener.
type Listener interface {
	net.Listener
	Target() string
}

// Listen implements nearcall.Listen. file is for targets that have a socket file.
func Listen(target string, file socketfile.Options) (Listener, error) {
	t, err := Parse(target)
	var lis Listener
	switch {
	case err != nil:
	case t.Scheme.listen != nil:
		if err = t.checkFile(file); err == nil {
			lis, err = t.Scheme.listen(t, file)
		}
	case t.Rest == t.text && suggestion(target) != "": // it has none of nearcall's schemes
		err = errors.New(suggestion(target))
	default:
		err = fmt.Errorf("write %s", listenUsage())
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot listen on %q: %w", target, err)
	}
	return lis, nil
}

// checkFile returns an error if the options do not fit a listener on t.
func (t *Target) checkFile(o socketfile.Options) error {
	switch mode := o.Mode; {
	case o == socketfile.Options{}:
	case t.network != "unix" || t.address[0] == '@':
		option := "SocketFile"
		if o.TakeOver {
			option = "TakeOver"
		}
		return fmt.Errorf("%s is only for unix:PATH and shm:PATH, which have a socket file; leave it out", option)
	case o.TakeOver && runtime.GOOS == "windows":
		return errors.New("on Windows no server can take a socket file over; leave TakeOver out")
	case mode != nil && *mode != mode.Perm():
		return fmt.Errorf("SocketFile takes permission bits only, as in 0660, got %v", *mode)
	}
	return nil
}

func listenInproc(t *Target, _ socketfile.Options) (Listener, error) {
	lis, err := inproc.Listen(t.Rest)
	if err != nil {
		return nil, err
	}
	return lis, nil
}

// listenSocket listens on a target of a socket.
func listenSocket(t *Target, o socketfile.Options) (Listener, error) {
	s, err := t.listen(o)
	if err != nil {
		return nil, err
	}
	s.target, s.NeedsUpgrade = t.text, t.Scheme.name == "shm"
	if t.network == "tcp" {
		s.target = reachable(t.host(), s.Addr())
	}
	return s, nil
}

// listen returns a listener whose connections accept no file descriptors from peers.
func (t *Target) listen(o socketfile.Options) (s Socket, err error) {
	if t.network == "unix" && t.address[0] != '@' {
		if err = socketfile.Supported(); err == nil {
			s.Listener, err = socketfile.Listen(t.address, o)
		}
		return s, err
	}
	config := net.ListenConfig{Control: scmrights.RefuseFrom}
	s.Listener, err = config.Listen(context.Background(), t.network, t.address)
	return s, err
}

// A Socket is a network listener that knows its target.
type Socket struct {
	net.Listener
	target       string
	NeedsUpgrade bool   // connections must become shared memory
	Path         string // of WebSockets; "" for any
	needsTLS     bool   // the server must have credentials
}

// Target implements [Listener].
func (s Socket) Target() string { return s.target }

// File is documented at nearcall.Listener.
func (s Socket) File() (*os.File, error) {
	l, ok := s.Listener.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, errors.ErrUnsupported
	}
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	return sock.NonBlocking(f)
}

// reachable returns the target of a listener at addr that was opened for host.
func reachable(host string, addr net.Addr) string {
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	_, port, _ := net.SplitHostPort(addr.String())
	return "tcp:" + net.JoinHostPort(host, port)
}
