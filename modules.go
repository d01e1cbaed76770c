package nearcall

import (
	"crypto/tls"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
)

// Schemes whose transports are modules of their own. A program that imports such a module can
// use the scheme; the module registers its transport with package registry.

// available reports whether the program can use the scheme.
func (s *scheme) available() bool { return s.module == "" || registry.TransportOf(s.name) != nil }

// parseModule parses the target of a scheme with its own module.
func (t *parsedTarget) parseModule() error {
	transport := registry.TransportOf(t.scheme.name)
	if transport == nil {
		return fmt.Errorf("the program lacks the transport of %s: targets; add import _ %q", t.scheme.name, t.scheme.module)
	}
	_, err := transport.Authority(t.rest)
	t.network, t.address = t.scheme.name, t.rest
	return err
}

// dialModule returns the dialer of a target whose transport is its own module.
func dialModule(t *parsedTarget, o *options.Dial) (link.Dialer, string, error) {
	config, err := t.moduleTLS(o)
	if err != nil {
		return nil, "", err
	}
	if o.Conn != nil {
		return nil, "", fmt.Errorf("a %s: target cannot use the connections of WithContextDialer; leave it out", t.scheme.name)
	}
	authority, err := t.addressed(o)
	if err != nil {
		return nil, "", err
	}
	s := &registry.Settings{
		TLS: config, Authority: authority, Accept: o.Accept,
		Window: o.Socket.Window, ConnWindow: o.Socket.ConnWindow, MaxHeaderBytes: o.Socket.MaxHeaderBytes,
		MaxStreams: o.Socket.MaxStreams, Keepalive: o.Socket.Keepalive,
	}
	d, err := registry.TransportOf(t.scheme.name).Dialer(t.text, t.rest, s)
	return d, authority, err
}

// moduleTLS returns the configuration for connections to t.
func (t *parsedTarget) moduleTLS(o *options.Dial) (*tls.Config, error) {
	creds, err := t.security(o)
	if err != nil {
		return nil, err
	}
	return tlsFor(t.scheme.name, creds, "WithTransportCredentials")
}

// tlsFor returns the configuration of creds for a transport that always uses TLS.
func tlsFor(scheme string, creds credentials.TransportCredentials, option string) (*tls.Config, error) {
	if creds == nil {
		return nil, fmt.Errorf("a %s: target always uses TLS, and there are no credentials; pass those of nearcall.NewTLS to nearcall.%s", scheme, option)
	}
	own, ok := creds.(*tlsCredentials)
	if !ok {
		return nil, fmt.Errorf("a %s: target cannot use these transport credentials (%T), which keep their tls.Config to themselves; make them with nearcall.NewTLS", scheme, creds)
	}
	return own.config, nil
}

func listenModule(t *parsedTarget, _ *listenOptions) (Listener, error) {
	lis, err := registry.TransportOf(t.scheme.name).Listen(t.rest)
	if err != nil {
		return nil, err
	}
	return lis, nil
}

// configure passes the server's options to lis.
func (s *Server) configure(lis registry.Listener) error {
	o := s.sockets
	if o.Creds == nil {
		return errors.New("a server of this target always uses TLS, and has no credentials; pass those of nearcall.NewTLS to nearcall.Creds")
	}
	creds, ok := o.Creds.(*tlsCredentials)
	if !ok {
		return fmt.Errorf("the transport credentials (%T) keep their tls.Config to themselves; make them with nearcall.NewTLS", o.Creds)
	}
	return lis.Configure(&registry.Settings{
		TLS: creds.config, Window: o.Window, ConnWindow: o.ConnWindow, MaxHeaderBytes: o.MaxHeaderBytes,
		MaxStreams: o.MaxStreams, Handshake: o.Handshake, ServerKeepalive: o.ServerKeepalive, StatelessResetKey: s.opts.StatelessResetKey,
	})
}
