package interop

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// peerDiffers are the cases in which a connection is closed: that to the peer is not
// closed by its user, but ends with the connection of the client.
var peerDiffers = map[string]string{
	"errors made by the client side":                                   "calls after the end are Unavailable, not Canceled",
	"OnFinish of unary calls":                                          "calls after the end are Unavailable, not Canceled",
	"freed by Close":                                                   "calls that the end cuts off are Unavailable, not Canceled",
	"Close ends the client's calls":                                    "calls that the end cuts off are Unavailable, not Canceled",
	"Close releases callers whose handlers go on":                      "calls that the end cuts off are Unavailable, not Canceled",
	"the client's Close meets calls in every state":                    "calls that the end cuts off are Unavailable, not Canceled",
	"the client closes in the backoff":                                 "calls after the end are Unavailable, not Canceled",
	"freed by Close when its end has arrived but was not received":     "what had arrived is still received, and frees the stream then",
	"a client interceptor's connection, when the server is stopped":    "the server of a client stops for good, and the state is SHUTDOWN",
	"a client interceptor's connection, when the connection is closed": "the connection has no Close of its own",
	"a client interceptor's connection is closed":                      "the connection has no Close of its own",
}

// tcpPeerDiffers are those over TCP, where the cases about private connections have TLS.
var tcpPeerDiffers = func() map[string]string {
	all := maps.Clone(peerDiffers)
	all["audience of a call with an authority of its own"] = "the client has no certificate to compare an authority with"
	return all
}()

// A meeting is a service that passes on the connection to its caller.
type meeting struct {
	grpc_testing.UnimplementedTestServiceServer
	peers chan grpc.ClientConnInterface
}

func (m meeting) EmptyCall(ctx context.Context, _ *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	m.peers <- nearcall.PeerConn(ctx)
	return new(grpc_testing.Empty), nil
}

// peerOver makes a server call its client: the case's server is the client's.
func peerOver(scheme string, more ...nearcall.DialOption) func(*Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		target := "tcp:127.0.0.1:0"
		switch scheme {
		case "tcp":
		case "inproc":
			target = fmt.Sprintf("inproc:peer-%d", number.Add(1))
		default:
			target = scheme + ":" + filepath.Join(os.TempDir(), fmt.Sprintf("nearcall-%d-%d", os.Getpid(), number.Add(1)))
		}
		lis, err := nearcall.Listen(target)
		if err != nil {
			return nil, err
		}
		srv, dial := nearcallServer(cfg)
		opts, here := []nearcall.ServerOption{nearcall.PeerConnOptions(dial...)}, slices.Clone(more)
		if scheme == "tcp" && cfg.Private {
			client, server := selfSigned()
			opts, here = append(opts, nearcall.Creds(server)), append(here, nearcall.WithTransportCredentials(client))
		}
		caller := nearcall.NewServer(opts...)
		m := meeting{peers: make(chan grpc.ClientConnInterface, 1)}
		grpc_testing.RegisterTestServiceServer(caller, m)
		served := make(chan struct{})
		go func(lis net.Listener) {
			defer close(served)
			caller.Serve(lis)
		}(lis)
		stop := func() {
			srv.Stop()
			caller.Stop()
			<-served
		}
		conn, err := nearcall.NewClient(lis.Target(), append(here, nearcall.WithServer(srv))...)
		if err == nil {
			_, err = grpc_testing.NewTestServiceClient(conn).EmptyCall(context.Background(), new(grpc_testing.Empty))
		}
		if err != nil {
			stop()
			return nil, err
		}
		return &Link{Conn: <-m.peers, Close: conn.Close, GracefulStop: srv.GracefulStop, Stop: func() {
			stop()
			conn.Close()
		}}, nil
	}
}
