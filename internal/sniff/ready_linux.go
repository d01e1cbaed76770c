package sniff

import (
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// withReady adds ReadOnReady to a, if reads need not go through a connection of another kind.
func withReady(a askedSocket) net.Conn {
	switch a.asked.Conn.(type) {
	case *net.TCPConn, *net.UnixConn:
		return readySocket{a}
	}
	return a
}

type readySocket struct{ askedSocket }

// ReadOnReady reads up to size bytes into a buffer of the pool, once there are any. grpc-go's
// transport calls it, and so needs no buffer while nothing arrives.
func (a readySocket) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if len(a.First) > 0 {
		b := pool.Get(size)
		n, err := a.Read(*b)
		return b, n, err
	}
	raw, err := a.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var b *[]byte
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		b = pool.Get(size)
		for {
			n, failed = syscall.Read(int(fd), *b)
			if failed != syscall.EINTR {
				break
			}
		}
		if n <= 0 {
			pool.Put(b)
		}
		return failed != syscall.EAGAIN
	})
	switch {
	case err != nil:
		return nil, 0, err
	case failed != nil:
		return nil, 0, failed
	case n == 0:
		return nil, 0, io.EOF
	}
	return b, n, nil
}
