package link_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

func TestTheConnectionOfACallTellsItsAddresses(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, "127.0.0.1:80"},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 80}, "[::1]:80"},
		{&net.UnixAddr{Name: "/tmp/s", Net: "unix"}, "/tmp/s:0"},
		{&net.UnixAddr{Net: "unix"}, ":0"},
		{inproc.Addr("orders"), "orders:0"},
		{inproc.Addr("a:b"), "[a:b]:0"},
		{inproc.Addr("a:99999"), "[a:99999]:0"},
		{nil, ":0"},
	} {
		conn := link.Connection{Peer: &link.Peer{Addr: c.addr, LocalAddr: c.addr}}
		for _, a := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
			if a.String() != c.want || c.addr != nil && a.Network() != c.addr.Network() {
				t.Errorf("%v is told as %v of the network %s, want %s", c.addr, a, a.Network(), c.want)
			}
		}
	}
}

func TestTheConnectionOfACallCannotBeUsed(t *testing.T) {
	conn := link.Connection{}
	_, read := conn.Read(nil)
	_, wrote := conn.Write(nil)
	now := time.Now()
	for _, err := range []error{read, wrote, conn.Close(), conn.SetDeadline(now), conn.SetReadDeadline(now), conn.SetWriteDeadline(now)} {
		if err == nil || !strings.Contains(err.Error(), "not its handler's to use") {
			t.Errorf("%v", err)
		}
	}
}
