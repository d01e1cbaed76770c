package link

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
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

// A Connection is the value for the key under which grpc-go's packages look up the connection of a
// call: a net.Conn that has the addresses of a peer and does nothing else.
type Connection struct{ Peer *Peer }

// LocalAddr implements [net.Conn]. Users of the key expect a host and a port, so an address
// without a port, such as a unix socket's, gets port 0.
func (c Connection) LocalAddr() net.Addr { return withPort(c.Peer.LocalAddr) }

// RemoteAddr implements [net.Conn].
func (c Connection) RemoteAddr() net.Addr { return withPort(c.Peer.Addr) }

var errNotYours = errors.New("nearcall: the connection of a call is not its handler's to use; it tells addresses and nothing else")

func (Connection) Read([]byte) (int, error)         { return 0, errNotYours }
func (Connection) Write([]byte) (int, error)        { return 0, errNotYours }
func (Connection) Close() error                     { return errNotYours }
func (Connection) SetDeadline(time.Time) error      { return errNotYours }
func (Connection) SetReadDeadline(time.Time) error  { return errNotYours }
func (Connection) SetWriteDeadline(time.Time) error { return errNotYours }

// HostOf returns the host of an authority.
func HostOf(authority string) string {
	if host, _, err := net.SplitHostPort(authority); err == nil {
		return host
	}
	return authority
}

// withPort returns the address a if it has a host and a port. Otherwise it returns the address
// with port 0 added. The address may be nil.
func withPort(a net.Addr) net.Addr {
	network, address := "unknown", ""
	if a != nil {
		network, address = a.Network(), a.String()
	}
	if _, port, err := net.SplitHostPort(address); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return a
		}
	}
	return &net.UnixAddr{Net: network, Name: net.JoinHostPort(address, "0")} // the strings alone count
}

// HasNoSideEffects reports whether the idempotency level of a method is NO_SIDE_EFFECTS. It looks
// in the registry of generated code, because a grpc.ServiceDesc does not contain that level.
func HasNoSideEffects(full string) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return false
	}
	options, ok := m.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// DetailsKey is the trailer that carries a status with details over HTTP/2. A caller uses it
// as the details of a status that has none.
const DetailsKey = "grpc-status-details-bin"

// ValidKey reports whether k can be sent as a metadata key. It applies HTTP/2's rule, a
// token without upper-case letters, which allows more than gRPC's.
func ValidKey(k string) bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte("-_.!#$%&'*+^`|~", c) < 0 {
			return false
		}
	}
	return k != ""
}
