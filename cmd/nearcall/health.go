package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// The exit codes of nearcall health are those of grpc-health-probe.
const (
	exitProbeMisused     = 1
	exitProbeUnconnected = 2
	exitProbeFailed      = 3
	exitProbeUnhealthy   = 4
)

var healthCommand = command{
	name: "health", args: "TARGET [SERVICE]", about: "ask a server, or one of its services, whether it serves",
	least: 1, most: 2, setup: healthJob, misuse: exitProbeMisused,
	more: "It calls grpc.health.v1.Health/Check, as grpc-health-probe and Kubernetes do, and prints the status.\n",
	exits: "exit codes, those of grpc-health-probe: 0 SERVING, 1 wrong command line, 2 no connection, 3 the call\n" +
		"failed or took too long, 4 another status than SERVING; and 130 interrupted\n",
}

// healthJob adds the flags of nearcall health to flags.
func healthJob(flags *flag.FlagSet) job {
	f := newConnFlags(flags)
	flags.Lookup("max-time").DefValue = "2s"
	f.maxTime = seconds(2 * time.Second)
	return job{
		do: func(ctx context.Context, args []string, std stdio) error {
			ctx, p, err := f.open(ctx, args[0])
			if err != nil {
				return err
			}
			defer p.close()
			req := new(healthpb.HealthCheckRequest)
			if len(args) > 1 {
				req.Service = args[1]
			}
			connected := connect(ctx, p.conn)
			reply, err := healthpb.NewHealthClient(p.conn).Check(ctx, req)
			switch {
			case err != nil && !connected:
				return exitError{p.hint(err), exitProbeUnconnected}
			case err != nil:
				return exitError{p.hint(noHealth(err, req.Service)), exitProbeFailed}
			case reply.GetStatus() != healthpb.HealthCheckResponse_SERVING:
				return exitError{fmt.Errorf("the status is %v", reply.GetStatus()), exitProbeUnhealthy}
			}
			_, err = fmt.Fprintf(std.out, "status: %v\n", reply.GetStatus())
			return err
		},
		complete: f.completion((*remote).serviceNames),
	}
}

// connect connects conn, and reports whether the first attempt succeeds before ctx is done, and the
// server keeps the connection.
func connect(ctx context.Context, conn *nearcall.ClientConn) bool {
	conn.Connect() // so that Idle means that the connection has ended again
	for {
		s := conn.GetState()
		if s != connectivity.Connecting || !conn.WaitForStateChange(ctx, s) {
			return s == connectivity.Ready
		}
	}
}

// noHealth adds advice to the error of a server that does not know the health of a service.
func noHealth(err error, service string) error {
	st := status.Convert(err)
	switch st.Code() {
	case codes.NotFound:
		return status.Errorf(st.Code(), "the server does not tell the health of %q (%s)", service, st.Message())
	case codes.Unimplemented:
		return status.Errorf(st.Code(), "the server has no health service (%s); its program can register that of package "+
			"google.golang.org/grpc/health", st.Message())
	}
	return err
}
