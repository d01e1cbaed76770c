package agent

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/agent/agentpb"
)

// A Coordinator gives each job to an agent that is idle.
type Coordinator struct {
	pb.UnimplementedCoordinatorServer

	idle    chan *member // the handler of an idle agent's Join waits for a job here
	closing chan struct{}
	jobs    sync.WaitGroup // Submit's handlers

	mu     sync.Mutex
	closed bool
	agents map[string]*member
}

// A member is an agent, while the handler of its Join runs.
type member struct {
	name  string
	agent pb.AgentClient          // calls the agent
	done  chan error              // gets the result of each job
	leave context.CancelCauseFunc // ends Join with an error
}

var errStopping = status.Error(codes.Unavailable, "the coordinator is stopping")

// NewCoordinator returns a coordinator without agents.
func NewCoordinator() *Coordinator {
	return &Coordinator{idle: make(chan *member), closing: make(chan struct{}), agents: make(map[string]*member)}
}

// Join implements the service. The agent is a member until its stream ends.
func (c *Coordinator) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Joined]) error {
	if req.GetName() == "" {
		return status.Error(codes.InvalidArgument, "an agent needs a name")
	}
	ctx, leave := context.WithCancelCause(stream.Context())
	defer leave(nil)
	m := &member{
		name:  req.GetName(),
		agent: pb.NewAgentClient(nearcall.PeerConn(ctx)),
		done:  make(chan error, 1), // Join may have ended before the last result comes
		leave: leave,
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	if err := c.enter(m); err != nil {
		return err
	}
	defer c.forget(m)
	if err := stream.Send(&pb.Joined{}); err != nil {
		return err
	}
	for {
		select {
		case c.idle <- m: // a job takes it
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case err := <-m.done:
			if status.Code(err) == codes.Unavailable {
				return err // it takes no more jobs, or will join again
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// check gives the agent an empty job. It fails if the caller of Join serves nothing, as with an
// ordinary gRPC client.
func (m *member) check(ctx context.Context) error {
	steps, err := m.agent.Run(ctx, &pb.Job{})
	for err == nil {
		_, err = steps.Recv()
	}
	if err != io.EOF {
		return status.Errorf(codes.FailedPrecondition, "an agent must serve jobs: %v", err)
	}
	return nil
}

// enter adds m to the agents. An agent that has lost its connection may be back before its former
// Join has ended, so the agent that joined last gets the name.
func (c *Coordinator) enter(m *member) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errStopping
	}
	if former := c.agents[m.name]; former != nil {
		former.leave(status.Errorf(codes.Aborted, "another agent has joined as %q", m.name))
	}
	c.agents[m.name] = m
	return nil
}

func (c *Coordinator) forget(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.agents[m.name] == m {
		delete(c.agents, m.name)
	}
}

// Submit implements the service. When an agent leaves, Submit gives the rest of the job to the
// next one.
func (c *Coordinator) Submit(job *pb.Job, stream grpc.ServerStreamingServer[pb.Progress]) error {
	if job.GetFrom() > job.GetTo() {
		return status.Errorf(codes.InvalidArgument, "a job from %d cannot end at %d", job.GetFrom(), job.GetTo())
	}
	if !c.begin() {
		return errStopping
	}
	defer c.jobs.Done()
	ctx := stream.Context()
	p := &pb.Progress{Next: job.GetFrom()}
	for {
		var m *member
		select {
		case m = <-c.idle:
		case <-c.closing:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		}
		err := m.run(job, p, stream)
		m.done <- err
		if status.Code(err) != codes.Unavailable {
			return err
		}
	}
}

// begin counts a job, unless the coordinator is closed.
func (c *Coordinator) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.jobs.Add(1)
	}
	return !c.closed
}

// run lets the agent do what is left of job after p, and passes its progress on.
func (m *member) run(job *pb.Job, p *pb.Progress, stream grpc.ServerStreamingServer[pb.Progress]) error {
	before := p.GetPrimes()
	steps, err := m.agent.Run(stream.Context(), &pb.Job{From: p.GetNext(), To: job.GetTo()})
	if err != nil {
		return err
	}
	for {
		step, err := steps.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p.Next, p.Primes, p.Agent = step.GetNext(), before+step.GetPrimes(), m.name
		if err := stream.Send(p); err != nil {
			return err
		}
	}
}

// Close takes no more jobs, waits for those that agents are doing, and lets the agents go.
// Call it before the server's GracefulStop, which waits for the handlers of Join.
func (c *Coordinator) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	close(c.closing)
	c.mu.Unlock()
	c.jobs.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.agents {
		m.leave(errStopping)
	}
}
