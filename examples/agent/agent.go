package agent

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/agent/agentpb"
)

// joinAgain is how long an agent waits before it joins again.
const joinAgain = time.Second

// Serve connects to the coordinator at target, joins under the given name, and lets service do the
// coordinator's jobs until ctx is done. Then it finishes the job that runs. It returns an error if
// the coordinator refuses the agent.
func Serve(ctx context.Context, name string, service pb.AgentServer, target string, opts ...nearcall.DialOption) error {
	srv := nearcall.NewServer()
	pb.RegisterAgentServer(srv, service)
	conn, err := nearcall.NewClient(target, append(opts, nearcall.WithServer(srv), nearcall.WithPersistentConnection())...)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer srv.GracefulStop() // before Close, which would cut the job off
	for {
		err := join(ctx, pb.NewCoordinatorClient(conn), name)
		switch {
		case ctx.Err() != nil:
			return nil
		case status.Code(err) != codes.Unavailable:
			return err
		}
		// The connection was lost, or the coordinator is stopping.
		select {
		case <-time.After(joinAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// join makes this process an agent until the stream ends, and returns why it ended.
func join(ctx context.Context, coordinator pb.CoordinatorClient, name string) error {
	stream, err := coordinator.Join(ctx, &pb.JoinRequest{Name: name}, grpc.WaitForReady(true))
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}
