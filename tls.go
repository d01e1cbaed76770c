package nearcall

import (
	"crypto/tls"

	"google.golang.org/grpc/credentials"

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
