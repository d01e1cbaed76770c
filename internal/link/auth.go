package link

import (
	"crypto/tls"
	"net"
	"net/url"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/local"
)

// Over every transport, the AuthInfo of a peer has one of gRPC's types. Authorisation code, such
// as package authz, asserts the type, and treats a peer with any other type as one without
// credentials.

// Insecure and Private are the AuthInfo of peers without credentials. Private means that nobody
// else can read the path: it is within one process or a unix socket. gRPC's insecure and local
// credentials use the same values.
var (
	Insecure = authOf(insecure.NewCredentials())
	Private  = authOf(local.NewCredentials())
)

func authOf(creds credentials.TransportCredentials) credentials.AuthInfo {
	_, auth, err := creds.ServerHandshake(unixConn{})
	if err != nil {
		panic(err) // these credentials accept every unix socket
	}
	return auth
}

// unixConn has the methods of a unix socket that credentials call.
type unixConn struct{ net.Conn }

func (unixConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// TLSInfo returns the AuthInfo of a peer over TLS, as gRPC's credentials make it.
func TLSInfo(state tls.ConnectionState) credentials.TLSInfo {
	return credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		SPIFFEID:       spiffeID(state),
	}
}

// spiffeID returns the peer's SPIFFE ID, nil for none, by the rules of grpc-go's
// internal/credentials.SPIFFEIDFromState.
func spiffeID(state tls.ConnectionState) *url.URL {
	if len(state.PeerCertificates) == 0 || len(state.PeerCertificates[0].URIs) != 1 {
		return nil
	}
	id := state.PeerCertificates[0].URIs[0]
	switch {
	case id == nil, id.Scheme != "spiffe", id.Opaque != "", id.User.Username() != "":
	case len(id.String()) > 2048, len(id.Host) > 255, id.Host == "", id.Path == "":
	default:
		return id
	}
	return nil
}
