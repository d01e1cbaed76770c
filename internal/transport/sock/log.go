package sock

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/wire"
)

// A server logs one line for a connection that fails or is refused, at the level at which grpc-go
// logs a failed handshake. Like grpc-go, it does not log a client that connects and closes, because
// load balancers and probes do that. Text from peers is quoted, so that they cannot forge lines.

var logger = grpclog.Component("nearcall")

// logFailed logs that conn's client failed during step.
func logFailed(conn net.Conn, step string, err error) {
	if err == io.EOF || errors.Is(err, net.ErrClosed) {
		return // it has left, or this side has closed the listener
	}
	logger.Infof("%s with %s failed: %q%s", step, sockopt.PeerName(conn), err, remedy(err))
}

// remedy returns advice for a failed security handshake, as far as err tells.
func remedy(err error) string {
	switch header, noTLS := errors.AsType[tls.RecordHeaderError](err); {
	case noTLS && sniff.IsPlain(header) && header.RecordHeader[0] == wire.Magic[0]:
		return "; it is a nearcall client without TLS: give it WithTransportCredentials"
	case noTLS:
		return "; it does not use TLS"
	case strings.Contains(err.Error(), "application protocol"), strings.Contains(err.Error(), "ALPN"):
		return "; clients and NextProtos of the server's TLS configuration must agree on h2 or http/1.1: see nearcall.NewTLS"
	case strings.Contains(err.Error(), "remote error: tls"):
		return "; the client refuses the server's certificate or TLS version"
	}
	return ""
}

// logRefused logs that a client of another protocol, or without shared memory, is refused.
func (l *Listener) logRefused(conn net.Conn, p sniff.Protocol, first []byte) {
	const near = ", and the listener takes nearcall's clients over shared memory only: use a tcp: or unix: listener"
	why := fmt.Sprintf("it does not speak a protocol of this server; it began with %.20q", first)
	switch upgraded := l.Options.RequireUpgrade; {
	case p == sniff.Native:
		why = "the listener takes shared memory only: dial shm:PATH, from a process of the same user"
	case p == sniff.TLS:
		why = "it uses TLS, for which the server needs Creds"
	case p == sniff.HTTP2 && upgraded:
		why = "it is an ordinary gRPC client" + near
	case p == sniff.HTTP1 && upgraded:
		why = "it is a client of HTTP/1" + near
	case p == sniff.HTTP2:
		why = "it is an ordinary gRPC client, which needs OtherClients with GRPCClients"
	case p == sniff.HTTP1:
		why = "it is a client of HTTP/1, which needs OtherClients with WebClients"
	}
	logger.Infof("refused %s: %s", sockopt.PeerName(conn), why)
}
