package quic

import (
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reportUnreachable makes reads of a socket fail at once if the system learns that nobody listens
// at the peer's address. Only a client that dials turns this on. Anybody can forge the ICMP
// messages that tell the system so. After the dial they must not end the connection.
func reportUnreachable(pc net.PacketConn, on bool) {
	control(pc, func(fd int) {
		n := 0
		if on {
			n = 1
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, n)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, n)
	})
}

func control(pc net.PacketConn, f func(fd int)) {
	c, ok := pc.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// wantedBuffer is the size that quic-go asks for, in bytes. A test changes it.
var wantedBuffer = 7 << 20

var warnOnce sync.Once

// checkBuffers warns, once, if the system limits a socket's receive buffer to less than large
// transfers need.
func checkBuffers(pc net.PacketConn) {
	if u, ok := pc.(*net.UDPConn); ok {
		_ = u.SetReadBuffer(wantedBuffer)
	}
	control(pc, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, wantedBuffer)
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil && n < wantedBuffer {
			warnOnce.Do(func() {
				logger.Warningf("quic: the system limits the receive buffer of UDP sockets to %d KiB; large messages lose packets below %d KiB (sysctl net.core.rmem_max=%d)", n>>10, wantedBuffer>>10, wantedBuffer)
			})
		}
	})
}
