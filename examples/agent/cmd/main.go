// Command cmd runs a coordinator, an agent, or a client that submits a job and prints its
// progress: see package agent.
//
//	go run ./examples/agent/cmd [-at TARGET] coordinator
//	go run ./examples/agent/cmd [-at TARGET] agent NAME
//	go run ./examples/agent/cmd [-at TARGET] submit FROM TO
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/agent"
	pb "github.com/nearcall/nearcall/examples/agent/agentpb"
)

var errUsage = errors.New("usage: [-at TARGET] coordinator | agent NAME | submit FROM TO")

func main() {
	at := flag.String("at", "unix:/tmp/coordinator.sock", "the coordinator's target, such as tcp:127.0.0.1:7000")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *at, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, target string, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "coordinator":
		return coordinate(ctx, target)
	case len(args) == 2 && args[0] == "agent":
		return agent.Serve(ctx, args[1], agent.Primes{}, target)
	case len(args) == 3 && args[0] == "submit":
		from, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return err
		}
		to, err := strconv.ParseUint(args[2], 10, 64)
		if err != nil {
			return err
		}
		return submit(ctx, target, &pb.Job{From: from, To: to})
	}
	return errUsage
}

// coordinate serves target until ctx is done.
func coordinate(ctx context.Context, target string) error {
	lis, err := nearcall.Listen(target)
	if err != nil {
		return err
	}
	// Pings keep the entries of NATs alive, and notice agents whose network has gone.
	srv := nearcall.NewServer(nearcall.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second}))
	c := agent.NewCoordinator()
	pb.RegisterCoordinatorServer(srv, c)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		c.Close()
		srv.GracefulStop()
	}()
	if err := srv.Serve(lis); err != nil {
		return err
	}
	<-stopped
	return nil
}

// submit prints the progress of a job.
func submit(ctx context.Context, target string, job *pb.Job) error {
	conn, err := nearcall.NewClient(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	steps, err := pb.NewCoordinatorClient(conn).Submit(ctx, job, grpc.WaitForReady(true))
	for err == nil {
		var p *pb.Progress
		if p, err = steps.Recv(); err == nil {
			fmt.Printf("%s: %d primes from %d to %d\n", p.GetAgent(), p.GetPrimes(), job.GetFrom(), p.GetNext())
		}
	}
	if err == io.EOF {
		return nil
	}
	return err
}
