// Package quic carries the calls of package nearcall over QUIC. Each call is a QUIC stream of
// its own, so a lost packet holds up the call whose bytes it had, and no other. A first call on
// a new connection needs one round trip less than over TCP with TLS, and connections survive a change
// of the client's network.
//
// A program that imports the package can listen on and dial targets of the form quic:HOST:PORT,
// where PORT is a UDP port:
//
//	lis, err := nearcall.Listen("quic::443")
//	srv := nearcall.NewServer(nearcall.Creds(quic.NewTLS(config)))
//	conn, err := nearcall.NewClient("quic:example.com:443", nearcall.WithTransportCredentials(quic.NewTLS(config)))
//
// Everything else is as over other targets. docs/quic.md says when QUIC is the better choice, and
// what the options of package nearcall mean here.
package quic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/hook"
	_ "github.com/nearcall/nearcall/quic/internal/generation"
)

// alpn is the protocol that TLS agrees on. It stands for the line and the version of
// docs/protocol.md.
const alpn = "nearcall/1"

func init() {
	hook.Register(&hook.Transport{Scheme: "quic", Authority: authority, Dialer: newDialer, Listen: listen})
}

// NewTLS returns transport credentials for [nearcall.WithTransportCredentials] and
// [nearcall.Creds]. They are those of [nearcall.NewTLS], and work for all targets: quic:, tcp:,
// wss: and those that go to grpc-go. QUIC cannot use the credentials of other packages, because
// they do not give away their tls.Config.
//
// QUIC uses TLS 1.3 and sets NextProtos itself. A nil c means the zero Config. NewTLS copies c.
func NewTLS(c *tls.Config) credentials.TransportCredentials { return nearcall.NewTLS(c) }

// key is a key in [hook.Settings.Values].
type key int

const (
	keyReset key = iota
	keyUnvalidated
	keyEarly
)

// StatelessResetKey sets the key from which a server derives the tokens that end a connection of
// an earlier process. If a server that was killed is started again with the same key, at the same
// address, its clients learn at their next packet that their connections are lost. Without it they
// learn it after 30 seconds without an answer. The key must be secret and random.
func StatelessResetKey(k [32]byte) nearcall.ServerOption {
	return hook.ServerValue(keyReset, q.StatelessResetKey(k)).(nearcall.ServerOption)
}

// UnvalidatedHandshakes limits the handshakes that run at a time with clients that have not shown
// that they receive packets at their address. Beyond it new clients must show this first, which
// takes a round trip more; clients that were connected before have a token that shows it. The
// default is 64. With 0 all new clients must show it.
func UnvalidatedHandshakes(n int) nearcall.ServerOption {
	return hook.ServerValue(keyUnvalidated, n).(nearcall.ServerOption)
}

const write = "write quic:HOST:PORT, with an IPv6 address in brackets: quic:[::1]:50051"

// authority implements [hook.Transport].
func authority(rest string) (string, error) {
	host, port, err := net.SplitHostPort(rest)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w; %s", err, write)
	case strings.ContainsAny(rest, "/ "):
		return "", fmt.Errorf("malformed address %q; %s", rest, write)
	case port == "":
		return "", fmt.Errorf("the port is missing; %s", write)
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > 65535) {
		return "", fmt.Errorf("there is no port %s; %s", port, write)
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, "[]:") {
		return "", fmt.Errorf("%q is not a host; %s", host, write)
	}
	return rest, nil
}

var errNoHost = errors.New("the host is missing; " + write)
