//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks that pass descriptors over a unix socket.
var descriptorAttacks = []*Attack{
	{
		Name: "descriptors", Path: overUnix, Full: 10_200, Short: 300,
		What:   "%s connections that pass a descriptor whose close blocks",
		Before: "the process ends: thread exhaustion",
		lacks:  canRefuse,
		Run:    lingering,
	},
	{
		Name: "descriptors-noupgrade", Path: overUnix, Full: 10_200, Short: 300,
		What:   "%s of them, the server with DisableSharedMemory()",
		Before: "the process ends: thread exhaustion",
		server: []nearcall.ServerOption{nearcall.DisableSharedMemory()},
		lacks:  canRefuse,
		Run:    lingering,
	},
	{
		Name: "descriptors-stop", Path: overUnix, Full: 1, Short: 1,
		What:   "%s of them, and the server is stopped",
		Before: "Stop does not return",
		stop:   true,
		lacks:  canRefuse,
		Run:    lingering,
	},
}

// canRefuse returns why the system cannot refuse descriptors, or "" if it can.
func canRefuse() string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
		_ = unix.Close(fd)
	}
	if err != nil {
		return fmt.Sprintf("before Linux 6.16 no socket can refuse descriptors (%v), see docs/security.md", err)
	}
	return ""
}

// lingering passes descriptors of sockets that linger: the last close of one blocks until
// what was written to it has been read, which never happens.
func lingering(a *Attacker) error {
	lis, err := smallListener()
	if err != nil {
		return err
	}
	a.Hold(lis)
	if err := lis.SetDeadline(a.Until); err != nil {
		return err
	}
	for range a.Count {
		conn, err := dialSocket(a.at[overUnix], a.Until)
		if err != nil {
			return err
		}
		if err := a.passLingering(conn.(*net.UnixConn), lis); err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

// passLingering sends the start of a connection together with a descriptor, and keeps no
// copy of the descriptor.
func (a *Attacker) passLingering(conn *net.UnixConn, lis *net.TCPListener) error {
	fd, err := fullSocket(lis.Addr().(*net.TCPAddr).Port)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // does not linger while the server has a copy
	peer, err := lis.Accept()
	if err != nil {
		return err
	}
	a.Hold(peer)
	const begins = len(wire.Magic) - 1
	n, _, err := conn.WriteMsgUnix([]byte(wire.Magic[:begins]), unix.UnixRights(fd), nil)
	a.Sent.Add(int64(n))
	if err != nil {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		if errors.Is(err, unix.EPERM) { // the server refuses descriptors
			return nil
		}
		return err
	}
	n, err = conn.Write([]byte(wire.Magic[begins:]))
	a.Sent.Add(int64(n))
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil // the server has hung up on this one
	}
	return err
}

// smallListener listens for connections that buffer few unread bytes.
func smallListener() (*net.TCPListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		refused := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
		})
		return errors.Join(err, refused)
	}}
	lis, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return lis.(*net.TCPListener), nil
}

// fullSocket connects to a port of this machine, fills the connection's buffers, and makes
// the socket linger for a long time.
func fullSocket(port int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	fill := func() error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
			return err
		}
		// This also bounds connect.
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EALREADY) { // Go's runtime interrupts blocked threads
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		}
		if err != nil && !errors.Is(err, unix.EISCONN) {
			return err
		}
		err = nil
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		for piece := make([]byte, 4096); err == nil || errors.Is(err, unix.EINTR); _, err = unix.Write(fd, piece) {
		}
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3000})
	}
	if err := fill(); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("a full socket", err)
	}
	return fd, nil
}
