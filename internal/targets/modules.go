package targets

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/socketfile"
)

// Some schemes have transports in separate modules. A program that imports such a module can use
// the scheme; the module registers its transport with package registry.

// available reports whether the program can use the scheme.
func (s *scheme) available() bool { return s.module == "" || registry.TransportOf(s.name) != nil }

// parseModule parses a target whose scheme has its transport in a separate module.
func (t *Target) parseModule() error {
	transport := registry.TransportOf(t.Scheme.name)
	if transport == nil {
		return fmt.Errorf("the program lacks the transport of %s: targets; add import _ %q", t.Scheme.name, t.Scheme.module)
	}
	return t.parseAddress(t.Scheme.name)
}

// dialModule returns the dialer of a target whose transport is a separate module.
func dialModule(t *Target, o *options.Client, c Caller) (link.Dialer, string, error) {
	config, err := t.moduleTLS(o)
	if err != nil {
		return nil, "", err
	}
	if o.HasConnDialer() {
		return nil, "", fmt.Errorf("a %s: target cannot use the connections of WithContextDialer; leave it out", t.Scheme.name)
	}
	if t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", t.writeAddress())
	}
	authority, err := t.addressed(o, c)
	if err != nil {
		return nil, "", err
	}
	s := &registry.Settings{Config: &o.Connections, TLS: config, Authority: authority, Accept: c.Accept}
	d, err := registry.TransportOf(t.Scheme.name).Dialer(t.text, t.Rest, s)
	return d, authority, err
}

// moduleTLS returns the configuration for connections to t.
func (t *Target) moduleTLS(o *options.Client) (*tls.Config, error) {
	creds, err := t.security(o)
	own, ok := creds.(*tlsCredentials)
	switch {
	case err != nil:
		return nil, err
	case creds == nil:
		return nil, fmt.Errorf("a %s: target always uses TLS, and there are no credentials; pass those of nearcall.NewTLS to nearcall.WithTransportCredentials", t.Scheme.name)
	case !ok:
		return nil, fmt.Errorf("a %s: target cannot use these transport credentials (%T), which keep their tls.Config to themselves; make them with nearcall.NewTLS", t.Scheme.name, creds)
	}
	return own.config, nil
}

func listenModule(t *Target, _ socketfile.Options) (Listener, error) {
	return registry.TransportOf(t.Scheme.name).Listen(t.Rest)
}

// Configure passes the options of a server to lis.
func Configure(lis registry.Listener, o *options.Server) error {
	if o.ServerCreds == nil {
		return errors.New("a server of this target always uses TLS, and has no credentials; pass those of nearcall.NewTLS to nearcall.Creds")
	}
	creds, ok := o.ServerCreds.(*tlsCredentials)
	if !ok {
		return fmt.Errorf("the transport credentials (%T) keep their tls.Config to themselves; make them with nearcall.NewTLS", o.ServerCreds)
	}
	return lis.Configure(&registry.Settings{Config: &o.Connections, TLS: creds.config})
}

// Check returns an error if a server with these options cannot serve s.
func (s Socket) Check(o *options.Server) error {
	if s.needsTLS && o.ServerCreds == nil {
		return errors.New("a server of a wss: target needs the option Creds, with nearcall.NewTLS")
	}
	return nil
}
