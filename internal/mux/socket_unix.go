//go:build unix

package mux

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// A socket implements Prompt for a Unix or TCP socket.
type socket struct {
	conn syscall.RawConn

	// The reader owns the field in, and the writer owns out. The functions inOnce and outOnce are
	// created once, so that a read or write allocates no closure.
	in, out         transfer
	inOnce, outOnce func(fd uintptr) bool
}

// A transfer is a read into b, or a write of all.
type transfer struct {
	b   []byte
	all [][]byte
	n   int
	err error
}

// newSocket returns a socket for conn, or nil if conn is not a bare socket.
func newSocket(conn Conn) Prompt {
	var rc syscall.RawConn
	var err error
	switch c := conn.(type) {
	case *net.UnixConn:
		rc, err = c.SyscallConn()
	case *net.TCPConn:
		rc, err = c.SyscallConn()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	r := &socket{conn: rc}
	r.inOnce = func(fd uintptr) bool {
		r.in.n, r.in.err = syscall.Read(int(fd), r.in.b)
		return true
	}
	r.outOnce = func(fd uintptr) bool {
		if len(r.out.all) > 1 {
			r.out.n, r.out.err = writev(int(fd), r.out.all)
		} else {
			r.out.n, r.out.err = syscall.Write(int(fd), r.out.all[0])
		}
		return true
	}
	return r
}

func (r *socket) TryRead(b []byte) (n int, err error) {
	r.in.b = b
	err = r.conn.Read(r.inOnce)
	n, r.in.b = r.in.n, nil
	switch {
	case err != nil:
		return 0, err
	case r.in.err != nil:
		return 0, unlessAgain(r.in.err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (r *socket) TryWrite(all ...[]byte) (n int, err error) {
	r.out.all = all
	err = r.conn.Write(r.outOnce)
	n, r.out.all = r.out.n, nil
	switch {
	case err != nil:
		return 0, err
	case r.out.err != nil:
		return 0, unlessAgain(r.out.err)
	}
	return n, nil
}

func unlessAgain(err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
		return nil
	}
	return err
}
