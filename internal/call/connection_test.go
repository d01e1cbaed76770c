package call

import (
	"context"
	"net"
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
		conn := (*connection)(&serverConn{peer: &link.Peer{Addr: c.addr, LocalAddr: c.addr}})
		for _, a := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
			if a.String() != c.want || c.addr != nil && a.Network() != c.addr.Network() {
				t.Errorf("%v is told as %v of the network %s, want %s", c.addr, a, a.Network(), c.want)
			}
		}
	}
}

func TestTheConnectionOfACallCannotBeUsed(t *testing.T) {
	conn := new(connection)
	_, read := conn.Read(nil)
	_, wrote := conn.Write(nil)
	now := time.Now()
	for _, err := range []error{read, wrote, conn.Close(), conn.SetDeadline(now), conn.SetReadDeadline(now), conn.SetWriteDeadline(now)} {
		if err != errNotYours {
			t.Errorf("%v", err)
		}
	}
}

type connectionKey struct{} // has the right name, but in the wrong package

func TestOnlyThatKeyFindsTheConnection(t *testing.T) {
	b := start(t, handlers{unary: func(ctx context.Context, m *message) (*message, error) {
		for _, key := range []any{nil, 1, "transport.connectionKey", connectionKey{}, struct{}{}} {
			if v := ctx.Value(key); v != nil {
				t.Errorf("%T: %v", key, v)
			}
		}
		return m, nil
	}}, nil, nil)
	if _, err := b.call(t.Context()); err != nil {
		t.Error(err)
	}
}
