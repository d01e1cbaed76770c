package nearcall

import (
	"crypto/tls"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/targets"
)

// NewTLS returns transport credentials for [WithTransportCredentials] and [Creds], like
// those of [credentials.NewTLS], with two differences:
//
//   - A client can also use them for wss: targets, where a connection begins with HTTP/1.1.
//   - A server agrees on nearcall/1, h2 and http/1.1, in this order, if neither c nor a
//     configuration from c.GetConfigForClient sets NextProtos. If c.NextProtos is not set or has
//     http/1.1, it takes clients that offer no protocol as well. So it serves WebSockets and
//     clients that speak only HTTP/1.1. A client that offers both, such as a browser, curl or
//     connect-go, can make calls of gRPC, Connect and gRPC-Web over one connection.
//
// A server with the credentials of [credentials.NewTLS] agrees on h2 only. It serves browsers and
// curl over HTTP/2, but WebSockets and clients that speak only HTTP/1.1 find their connection
// closed after the TLS handshake. The first request of a connection tells whether the client
// speaks gRPC, and then no other protocol is served over that connection.
//
// A nil c means the zero Config. NewTLS copies c.
func NewTLS(c *tls.Config) credentials.TransportCredentials { return targets.NewTLS(c) }

// UnixAuthInfo identifies the process at the other end of a unix socket or a
// shared-memory connection. On both sides it is the AuthInfo of the connection's
// [google.golang.org/grpc/peer.Peer], if no transport credentials are used. A server sees it
// for ordinary gRPC clients as well:
//
//	p, _ := peer.FromContext(ctx)
//	if who, ok := p.AuthInfo.(nearcall.UnixAuthInfo); ok && who.UID == 0 {
//
// Only Linux provides it. On other systems, and for a connection that wraps a socket, the AuthInfo
// has another type. Its AuthType is "local", too. The fields are never guessed.
type UnixAuthInfo struct {
	// CommonAuthInfo holds the security level: credentials.PrivacyAndIntegrity, as with
	// grpc-go's local credentials.
	credentials.CommonAuthInfo

	// PID is the process that connected or, on the client's side, that opened the listener. The
	// process may have ended since, and another may have its number. PID is 0 for a process
	// outside of this container's PID namespace.
	PID int

	// UID and GID are the effective user and group that the process had when it connected or
	// opened the listener. In a user namespace all users and groups that are not mapped into it
	// have the same number, usually 65534.
	UID, GID uint32
}

// AuthType returns "local", as grpc-go's local credentials do.
func (UnixAuthInfo) AuthType() string { return "local" }

// ValidateAuthority accepts any authority: there is no certificate to check it against.
func (UnixAuthInfo) ValidateAuthority(string) error { return nil }

func unixAuthInfo(p sockopt.Process) credentials.AuthInfo {
	return UnixAuthInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		PID:            p.PID, UID: p.UID, GID: p.GID,
	}
}
