package nearcall

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
)

// secured returns those of creds that secure anything; nil for those of package
// insecure, which stand for none.
func secured(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if creds == nil || creds.Info().SecurityProtocol == "insecure" {
		return nil
	}
	return creds
}

// security returns what secures connections to t, or why they must not be made:
// grpc-go's rules, except that what stays on this machine needs no credentials.
func (o *dialOptions) security(t *parsedTarget) (credentials.TransportCredentials, error) {
	given := o.transport
	if o.bundle != nil {
		if given != nil {
			return nil, errors.New("a credentials.Bundle cannot be used together with transport credentials")
		}
		if given = o.bundle.TransportCredentials(); given == nil {
			return nil, errors.New("the credentials.Bundle has no transport credentials")
		}
	}
	creds := secured(given)
	if creds != nil || t.network == "unix" {
		return creds, nil
	}
	if given == nil && !t.staysHere() {
		return nil, errors.New("no transport security set (use nearcall.WithTransportCredentials(insecure.NewCredentials()) explicitly or set credentials)")
	}
	for _, c := range o.Creds {
		if c.RequireTransportSecurity() {
			return nil, errors.New("the credentials require transport level security (use nearcall.WithTransportCredentials() to set)")
		}
	}
	return nil, nil
}

// addressed returns the authority of calls to t, as in grpc-go: that of the
// options, of the credentials, or of the target.
func (o *dialOptions) addressed(t *parsedTarget) (string, error) {
	name := ""
	if o.transport != nil {
		//lint:ignore SA1019 deprecated, and honoured by grpc-go all the same
		name = o.transport.Info().ServerName
	}
	switch {
	case name != "" && o.Authority != "" && name != o.Authority:
		return "", fmt.Errorf("the credentials' server name %q and the option's authority %q do not match", name, o.Authority)
	case o.Authority != "":
		return o.Authority, nil
	case name != "":
		return name, nil
	}
	return t.scheme.authority(t), nil
}
