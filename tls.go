package nearcall

import (
	"crypto/tls"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/targets"
)

// NewTLS returns transport credentials for [WithTransportCredentials] and [Creds], like
// those of [credentials.NewTLS], with two differences:
//
//   - A client can use them for wss: targets, too, where HTTP/1.1 comes first.
//   - A server also agrees on http/1.1, unless c.NextProtos is set, so that browsers and
//     other HTTP/1.1 clients are served. Clients that offer h2 and http/1.1 get http/1.1:
//     ordinary gRPC clients offer h2 only.
//
// A nil c means the zero Config. NewTLS copies c.
func NewTLS(c *tls.Config) credentials.TransportCredentials { return targets.NewTLS(c) }
