package targets

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall/internal/options"
)

// Secured returns creds, or nil if they are nil or those of package insecure. Other credentials
// that call themselves insecure do count, because their handshake may check or record the peer.
func Secured(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if creds == nil || reflect.TypeOf(creds) == reflect.TypeOf(insecure.NewCredentials()) {
		return nil
	}
	return creds
}

// security returns the credentials for connections to t, nil for none. It returns an
// error if grpc-go's rules forbid such connections. Unlike in grpc-go, targets on this
// machine need no credentials.
func (t *Target) security(o *options.Dial) (credentials.TransportCredentials, error) {
	given := o.Transport
	if o.Bundle != nil {
		if given != nil {
			return nil, errors.New("a credentials.Bundle cannot be used together with transport credentials")
		}
		if given = o.Bundle.TransportCredentials(); given == nil {
			return nil, errors.New("the credentials.Bundle has no transport credentials")
		}
	}
	creds := Secured(given)
	switch {
	case creds == nil && t.network == "unix":
		return nil, nil
	case given == nil && !t.staysHere():
		return nil, errors.New("no transport security set (use nearcall.WithTransportCredentials(insecure.NewCredentials()) explicitly or set credentials)")
	case creds != nil && creds.Info().SecurityProtocol != "insecure": // as in grpc-go
		return creds, nil
	}
	for _, c := range o.Creds {
		if c.RequireTransportSecurity() {
			return nil, errors.New("the credentials require transport level security (use nearcall.WithTransportCredentials() to set)")
		}
	}
	return creds, nil
}

// addressed returns the authority of calls to t. As in grpc-go it comes from the
// options, the credentials or the target, in this order.
func (t *Target) addressed(o *options.Dial) (string, error) {
	name := ""
	if o.Transport != nil {
		//lint:ignore SA1019 deprecated, but grpc-go still honours it
		name = o.Transport.Info().ServerName
	}
	switch {
	case name != "" && o.Authority != "" && name != o.Authority:
		return "", fmt.Errorf("the credentials' server name %q and the option's authority %q do not match", name, o.Authority)
	case o.Authority != "":
		return o.Authority, nil
	case name != "":
		return name, nil
	}
	return t.Scheme.authority(t), nil
}
