package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/proxy"
)

func proxyCommand() *cobra.Command {
	f, cert, key := new(connFlags), "", ""
	c := &cobra.Command{
		Use: "proxy LISTEN TARGET", Short: "pass calls on to TARGET from nearcall's and other gRPC clients on LISTEN",
		Long: "LISTEN is what nearcall.Listen takes: tcp:HOST:PORT, unix:PATH, shm:PATH, ws://HOST:PORT/PATH or\n" +
			"quic:HOST:PORT. Clients of nearcall and ordinary gRPC clients can connect there, so that grpcurl, for\n" +
			"example, reaches a server on shm:PATH. With port 0 the system chooses one. The command prints where it\n" +
			"listens, after it has reached TARGET. TARGET can go away later, and come back.\n" +
			"Clients of Connect, gRPC-Web and JSON, such as curl, cannot: they call the server itself.\n" +
			"Calls are passed on as they are, compressed ones if by gzip; the server sees the proxy as its peer.\n" +
			"Ctrl-C ends the command.",
		Args: cobra.ExactArgs(2), ValidArgsFunction: f.complete(nil),
		RunE: func(c *cobra.Command, args []string) error {
			switch scheme := schemeOf(args[0]); {
			case args[0] == args[1]:
				return usageError(fmt.Sprintf("LISTEN and TARGET are both %q: the proxy would connect to itself, again and again", args[0]))
			case scheme == "inproc":
				return usageError(fmt.Sprintf("cannot listen on %q: nothing but the proxy itself could connect; write tcp:HOST:PORT or unix:PATH", args[0]))
			case cert == "" && (scheme == "wss" || scheme == "quic"):
				return usageError(fmt.Sprintf("clients of %q use TLS, for which the proxy needs -listen-cert and -listen-key", args[0]))
			}
			opts, creds, err := f.options(args[1])
			if err != nil {
				return err
			}
			var own []nearcall.ServerOption
			if cert != "" {
				pair, err := tls.LoadX509KeyPair(cert, key)
				if err != nil {
					return fmt.Errorf("-listen-cert and -listen-key: %w", err)
				}
				own = append(own, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}})))
			}
			p, err := proxy.New(args[1], opts, own...)
			if err != nil {
				return err
			}
			lis, err := nearcall.Listen(args[0])
			if err != nil {
				return err
			}
			ctx := c.Context()
			if err := reach(ctx, args[1], opts); err != nil {
				_ = lis.Close()
				return (&remote{target: args[1], secure: isTLS(creds)}).hint(err)
			}
			defer context.AfterFunc(ctx, p.Stop)()
			fmt.Fprintf(c.ErrOrStderr(), "nearcall: clients on %s call %s\n", lis.Target(), args[1])
			err = p.Serve(lis)
			if ctx.Err() != nil {
				return nil // the usual end
			}
			p.Stop()
			return err
		},
	}
	f.addTLS(c)
	c.Flags().StringVar(&cert, "listen-cert", "", "use TLS on LISTEN, with the certificate in this PEM `file`; needs -listen-key")
	c.Flags().StringVar(&key, "listen-key", "", "`file` with the private key of -listen-cert")
	c.MarkFlagsRequiredTogether("listen-cert", "listen-key")
	return c
}

// reachTime is how long a target may take to answer the first connection.
const reachTime = 20 * time.Second

// reach connects to target, and returns the error if that fails.
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
