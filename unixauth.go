package nearcall

import (
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/transport/sock"
)

// UnixAuthInfo says which process is at the other end of a unix socket. It is
// the AuthInfo of such a connection's [google.golang.org/grpc/peer.Peer], on
// both sides, where no transport credentials are used and the system tells:
//
//	p, _ := peer.FromContext(ctx)
//	if who, ok := p.AuthInfo.(nearcall.UnixAuthInfo); ok && who.UID == 0 {
//
// Linux tells. Elsewhere, and where the connection is not a socket itself but
// wraps one, the AuthInfo is of another type, whose AuthType is "local" too, so
// that no field is ever a guess.
type UnixAuthInfo struct {
	// The security level is credentials.PrivacyAndIntegrity, as with grpc-go's
	// local credentials.
	credentials.CommonAuthInfo

	// PID is the process that connected or, for clients, that began to listen.
	// It may have ended since, and its number may be another's. It is 0 for a
	// process that is not visible from here, in a container.
	PID int

	// UID and GID are the effective user and group that it had at that time. In
	// a user namespace of its own a process sees all users and groups that have
	// no number there as the same one, mostly 65534.
	UID, GID uint32
}

// AuthType returns "local", as grpc-go's local credentials do.
func (UnixAuthInfo) AuthType() string { return "local" }

// ValidateAuthority accepts any authority: there is no certificate to hold one
// to.
func (UnixAuthInfo) ValidateAuthority(string) error { return nil }

func unixAuthInfo(p sock.Process) credentials.AuthInfo {
	return UnixAuthInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		PID:            p.PID, UID: p.UID, GID: p.GID,
	}
}
