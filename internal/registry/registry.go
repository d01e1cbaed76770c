// Package registry holds the transports that come from separate modules of this project. Such a
// module registers its transport, so that a program that imports it can use the scheme.
package registry

import (
	"crypto/tls"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
)

// Every module that registers a transport refers to the constant
// NearcallAndItsModulesMustHaveTheSameVersion3. Each incompatible change of this file increases
// the number at the end of the name. So a program that combines different versions does not
// compile, and the compiler's error says why.
const NearcallAndItsModulesMustHaveTheSameVersion3 = true

// A Transport carries the calls of a scheme's targets, which are HOST:PORT. It always uses TLS.
type Transport struct {
	Scheme string

	// Dialer returns a dialer for a target. rest is the target without its scheme. The error says
	// what is wrong with the options.
	Dialer func(target, rest string, s *Settings) (link.Dialer, error)

	// Listen opens a target for a server.
	Listen func(rest string) (Listener, error)
}

// A Listener is a listener of a Transport.
type Listener interface {
	link.Listener

	// Target returns the target that clients dial.
	Target() string

	// Configure is called once, before Sessions, with the options of the server. Its error
	// says what is wrong with them.
	Configure(s *Settings) error
}

// Settings are what a transport needs of a client or a server.
type Settings struct {
	Config    *options.Connections
	TLS       *tls.Config // of the credentials; never nil, and not to be modified
	Authority string      // of a client's calls; the server's certificate must be valid for it

	// Accept returns the acceptor of the calls that a client's peer makes; nil for none.
	Accept func(link.Session) link.Acceptor
}

var transports = map[string]*Transport{}

// Register adds a transport. Only init functions call it.
func Register(t *Transport) { transports[t.Scheme] = t }

// TransportOf returns the transport of a scheme, or nil.
func TransportOf(scheme string) *Transport { return transports[scheme] }
