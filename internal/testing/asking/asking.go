// Package asking has credentials of clients that ask the server which protocol it speaks.
package asking

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/sniff"
)

// Credentials ask the server after their handshake. With them a client of any kind goes on over the
// connection that was asked.
type Credentials struct {
	credentials.TransportCredentials
	answers chan<- Answer
}

// An Answer is what a server has answered: that it is nearcall's, or an ordinary one, or neither.
type Answer struct {
	Native bool
	Err    error
}

// With returns credentials with the handshake of creds, and a channel of up to 100 answers.
func With(creds credentials.TransportCredentials) (Credentials, <-chan Answer) {
	answers := make(chan Answer, 100)
	return Credentials{creds, answers}, answers
}

// ClientHandshake implements [credentials.TransportCredentials].
func (c Credentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	over, native, err := sniff.Ask(ctx, conn, auth)
	c.answers <- Answer{native, err}
	if err != nil {
		_ = conn.Close()
	}
	return over, auth, err
}

// Clone implements [credentials.TransportCredentials].
func (c Credentials) Clone() credentials.TransportCredentials {
	return Credentials{c.TransportCredentials.Clone(), c.answers}
}
