package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/proxy"
)

var proxyCommand = command{
	name: "proxy", args: "LISTEN TARGET", about: "pass calls on to TARGET from nearcall's and other gRPC clients on LISTEN",
	least: 2, most: 2, setup: proxyJob,
	more: "LISTEN is what nearcall.Listen takes: tcp:HOST:PORT, unix:PATH, shm:PATH, ws://HOST:PORT/PATH or\n" +
		"quic:HOST:PORT. Clients of nearcall and ordinary gRPC clients can connect there, so that grpcurl, for\n" +
		"example, reaches a server on shm:PATH. With port 0 the system chooses one. The command prints where it\n" +
		"listens, after it has reached TARGET. TARGET can go away later, and come back.\n" +
		"Clients of Connect, gRPC-Web and JSON, such as curl, cannot: they call the server itself.\n" +
		"Calls are passed on as they are, compressed ones if by gzip; the server sees the proxy as its peer.\n" +
		"Ctrl-C ends the command.\n",
}

// proxyJob adds the flags of nearcall proxy to flags.
func proxyJob(flags *flag.FlagSet) job {
	f := &connFlags{}
	f.addTLS(flags)
	cert := flags.String("listen-cert", "", "use TLS on LISTEN, with the certificate in this PEM `file`; needs -listen-key")
	key := flags.String("listen-key", "", "`file` with the private key of -listen-cert")
	return job{do: func(ctx context.Context, args []string, std stdio) error {
		if args[0] == args[1] {
			return usageError(fmt.Sprintf("LISTEN and TARGET are both %q: the proxy would connect to itself, again and again", args[0]))
		}
		if scheme := schemeOf(args[0]); *cert == "" && (scheme == "wss" || scheme == "quic") {
			return usageError(fmt.Sprintf("clients of %q use TLS, for which the proxy needs -listen-cert and -listen-key", args[0]))
		}
		if err := reachable(args[1]); err != nil {
			return err
		}
		creds, err := f.credentials(args[1])
		if err != nil {
			return err
		}
		var opts []nearcall.DialOption
		if creds != nil {
			opts = append(opts, nearcall.WithTransportCredentials(creds))
		}
		own, err := listenerOptions(*cert, *key)
		if err != nil {
			return err
		}
		p, err := proxy.New(args[1], opts, own...)
		if err != nil {
			return err
		}
		if schemeOf(args[0]) == "inproc" {
			return usageError(fmt.Sprintf("cannot listen on %q: nothing but the proxy itself could connect; write tcp:HOST:PORT or unix:PATH", args[0]))
		}
		lis, err := nearcall.Listen(args[0])
		if err != nil {
			return err
		}
		if err := reach(ctx, args[1], opts); err != nil {
			_ = lis.Close()
			return (&remote{target: args[1], secure: isTLS(creds)}).hint(err)
		}
		stopped := context.AfterFunc(ctx, p.Stop)
		defer stopped()
		fmt.Fprintf(std.err, "nearcall: clients on %s call %s\n", lis.Target(), args[1])
		err = p.Serve(lis)
		if ctx.Err() != nil {
			return nil // the usual end
		}
		p.Stop()
		return err
	}}
}

// reachTime is how long a target may take to answer the first connection.
const reachTime = 20 * time.Second

// reach connects to target, and returns why that fails, if it does.
func reach(ctx context.Context, target string, opts []nearcall.DialOption) error {
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if connect(ctx, conn) {
		return nil
	}
	_, err = healthpb.NewHealthClient(conn).Check(ctx, new(healthpb.HealthCheckRequest)) // only its error tells the reason
	if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
		return nil // it was reached in the meantime
	}
	return err
}

// listenerOptions returns the options of a proxy's listener.
func listenerOptions(cert, key string) ([]nearcall.ServerOption, error) {
	switch {
	case cert == "" && key == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, usageError("-listen-cert and -listen-key need each other")
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("-listen-cert and -listen-key: %w", err)
	}
	return []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))}, nil
}
