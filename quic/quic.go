// Package quic carries the calls of package nearcall over QUIC. Each call has its own QUIC stream,
// so a lost packet delays only the call whose bytes it had. A first call on a new connection needs
// one round trip less than over TCP with TLS, and connections survive a change of the client's
// network.
//
// A program that imports the package can listen on and dial targets of the form quic:HOST:PORT,
// where PORT is a UDP port:
//
//	lis, err := nearcall.Listen("quic::443")
//	srv := nearcall.NewServer(nearcall.Creds(nearcall.NewTLS(config)))
//	conn, err := nearcall.NewClient("quic:example.com:443", nearcall.WithTransportCredentials(nearcall.NewTLS(config)))
//
// QUIC uses TLS 1.3 and sets NextProtos itself. It needs credentials from [nearcall.NewTLS],
// because those of other packages hide their tls.Config.
//
// Everything else works as over other targets. docs/quic.md says when QUIC is the better choice,
// and what the options of package nearcall mean here.
package quic

import (
	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	_ "github.com/nearcall/nearcall/quic/internal/generation"
)

// alpn is the protocol name on which both sides agree in TLS. It replaces the first line and the
// version of docs/protocol.md.
const alpn = "nearcall/1"

func init() {
	registry.Register(&registry.Transport{Scheme: "quic", Dialer: newDialer, Listen: listen})
}

// StatelessResetKey sets the key from which a server derives the tokens that end a connection of
// an earlier process. If a server that was killed is started again with the same key, at the same
// address, its clients learn at their next packet that their connections are lost. Without the
// key they learn it after 30 seconds without an answer. The key must be secret and random.
func StatelessResetKey(k [32]byte) nearcall.ServerOption {
	return options.SetServer(func(o *options.Server) { o.StatelessResetKey = &k })
}
