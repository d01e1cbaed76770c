// Package nearpath moves connections to nearer paths: unix sockets to shared memory, and connections
// over TCP within a host to shared memory or into the process.
package nearpath

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// Nearer paths, as docs/protocol.md specifies them. A client that has connected over TCP to a
// server of its own host asks for an offer, and the server's HELLO makes it: the name of an
// abstract unix socket, and a nonce that belongs to this connection. The client connects to that
// name, or finds it in its own process, and introduces itself with the nonce and the addresses of
// its TCP connection. If the server sees the same addresses, nothing stands between the two, and
// the session begins over shared memory or in process, with the peers that TCP and TLS have
// established. In every other case the TCP connection is used as if there had been no offer.
// dial.go is the client's part, listen.go the server's. upgrade.go is for unix sockets.

// Options say how connections are upgraded and which sessions follow.
type Options struct {
	Config         *options.Connections
	Upgrade        *Upgrade // upgrades unix sockets; nil for no upgrade
	RequireUpgrade bool     // connections that are not upgraded are refused
}

// An InProcess opens a session between a client and a server of this process. client and server
// are the peers that they see. config is the client's.
type InProcess func(config *options.Connections, client, server link.Peer, dials, accepts func(link.Session) link.Acceptor) (link.Session, error)

const (
	moving  = time.Second     // how long a client tries a nearer path
	staying = 5 * time.Second // how long a server waits for a client to move or to stay
)

var logger = grpclog.Component("nearcall")

// A nonce belongs to one connection, and is used once.
type nonce [16]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // it never fails
	return n
}

// offerOf splits HELLO's field near into a nonce and a name. ok is false if it offers nothing, or a
// name that is none of nearcall's: a server must not make clients connect to other programs.
func offerOf(near string) (n nonce, name string, ok bool) {
	if len(near) <= len(n) {
		return n, "", false
	}
	n, name = nonce([]byte(near[:len(n)])), near[len(n):]
	id, ok := strings.CutPrefix(name, namePrefix)
	return n, name, ok && len(id) == hex.EncodedLen(len(n)) && strings.Trim(id, "0123456789abcdef") == ""
}

// namePrefix is the beginning of names. 16 random bytes in hexadecimal follow.
const namePrefix = "nearcall-"

// Ends are the addresses of a TCP connection, as its client sees them, and the network
// namespace in which they are valid.
type ends struct {
	Client, Server netip.AddrPort
	Namespace      uint64 // of the network; 0 if the system does not tell
}

// endsOf returns the ends of a connection whose addresses are near, on this side, and far.
func endsOf(conn *net.TCPConn) (near, far netip.AddrPort) {
	return addrOf(conn.LocalAddr()), addrOf(conn.RemoteAddr())
}

// addrOf returns a without the difference between an IPv4 address and its form in IPv6.
func addrOf(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := t.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// onThisHost reports whether a connection between these addresses of this side and the other one
// does not leave this host. Addresses with a zone, which introductions have no room for, do not
// count. A socket can be bound to this host's addresses only. Listing all addresses of the host
// would cost more the more there are.
func onThisHost(near, far netip.Addr) bool {
	switch {
	case !near.IsValid() || !far.IsValid() || near.Zone() != "" || far.Zone() != "":
		return false
	case near == far || far.IsLoopback():
		return true
	}
	own, err := net.ListenUDP("udp", &net.UDPAddr{IP: far.AsSlice()})
	if err != nil {
		return false
	}
	_ = own.Close()
	return true
}

// BareTCP returns the TCP connection raw if only TLS is between raw and secured, which is the
// result of creds' handshake. Otherwise it returns nil, because a nearer path would bypass
// what is between.
func BareTCP(raw, secured net.Conn, creds credentials.TransportCredentials) *net.TCPConn {
	if t, ok := raw.(*tls.Conn); ok && creds == nil { // from a tls.NewListener
		raw, secured = t.NetConn(), t.NetConn()
	}
	tcp, _ := raw.(*net.TCPConn)
	if tcp != nil && secured != raw && !IsTLS(creds) {
		return nil
	}
	return tcp
}

// introductionLine is the beginning of an introduction.
const introductionLine = "nearcall/1 near\n"

// addrSize is the length of an address in an introduction: 16 bytes in IPv6's form, and the port.
const addrSize = 16 + 2

const introductionSize = len(introductionLine) + len(nonce{}) + 2*addrSize

func appendIntroduction(b []byte, n nonce, e ends) []byte {
	b = append(append(b, introductionLine...), n[:]...)
	for _, a := range []netip.AddrPort{e.Client, e.Server} {
		ip := a.Addr().As16()
		b = binary.BigEndian.AppendUint16(append(b, ip[:]...), a.Port())
	}
	return b
}

// parseIntroduction parses a whole introduction.
func parseIntroduction(b []byte) (n nonce, e ends, err error) {
	if len(b) != introductionSize || string(b[:len(introductionLine)]) != introductionLine {
		return n, e, fmt.Errorf("%w: the peer does not introduce itself", wire.ErrProtocol)
	}
	b = b[len(introductionLine):]
	b = b[copy(n[:], b):]
	for _, a := range []*netip.AddrPort{&e.Client, &e.Server} {
		ip := netip.AddrFrom16([16]byte(b[:16])).Unmap()
		*a = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[16:]))
		b = b[addrSize:]
	}
	return n, e, nil
}

func readIntroduction(r io.Reader) (nonce, ends, error) {
	var b [introductionSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nonce{}, ends{}, err
	}
	return parseIntroduction(b[:])
}

// helloOf returns the HELLO at the start of a peer's bytes, and its length with the line.
// n is 0 if the HELLO is not complete, or if something else has arrived.
func helloOf(b []byte) (h wire.Hello, n int) {
	if len(b) < len(wire.Magic) || string(b[:len(wire.Magic)]) != wire.Magic {
		return h, 0
	}
	f, n, err := wire.Next(b[len(wire.Magic):])
	if err != nil || n == 0 || f.Kind != wire.KindHello {
		return h, 0
	}
	if h, err = wire.ParseHello(f.Body); err != nil {
		return h, 0
	}
	return h, len(wire.Magic) + n
}

// paths has the path to each address that was logged last, so that a line is logged only when it
// changes.
var paths struct {
	sync.Mutex
	to map[string]string
}

// maxPaths limits the addresses that are remembered.
const maxPaths = 1024

// logPath logs the path of calls to a server, and the reason if it is not nearer.
func logPath(server, path, why string) {
	paths.Lock()
	known := paths.to[server] == path
	if !known {
		if len(paths.to) >= maxPaths || paths.to == nil {
			paths.to = make(map[string]string)
		}
		paths.to[server] = path
	}
	paths.Unlock()
	switch {
	case known:
	case why == "":
		logger.Infof("calls to the server at %s travel by %s", server, path)
	default:
		logger.Infof("calls to the server at %s travel by %s; why not nearer: %q", server, path, why)
	}
}

// IsTLS reports whether creds are grpc-go's TLS credentials, or are made from these.
func IsTLS(creds credentials.TransportCredentials) bool {
	if c, ok := creds.(interface {
		Server() credentials.TransportCredentials
	}); ok {
		creds = c.Server()
	}
	return reflect.TypeOf(creds) == reflect.TypeOf(credentials.NewTLS(nil))
}
