package agent

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/agent/agentpb"
)

// An office is the address of a coordinator, which can be opened again. Everything runs in a
// synctest bubble: after synctest.Wait agents that can join have joined.
type office struct {
	t   *testing.T
	lis atomic.Pointer[bufconn.Listener]
	srv *nearcall.Server
	*Coordinator
}

// inBubble runs f in a bubble, with an office that is open.
func inBubble(t *testing.T, f func(t *testing.T, o *office)) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{t: t}
		o.open()
		f(t, o)
		o.srv.Stop()
	})
}

// open starts a coordinator.
func (o *office) open() {
	lis := bufconn.Listen(1 << 16)
	o.lis.Store(lis)
	o.srv, o.Coordinator = nearcall.NewServer(), NewCoordinator()
	pb.RegisterCoordinatorServer(o.srv, o.Coordinator)
	go func() { _ = o.srv.Serve(lis) }()
}

// A desk is what an agent or a client connects from.
type desk struct {
	office *office
	socket net.Conn // the last connection's
}

func (d *desk) options() []nearcall.DialOption {
	return []nearcall.DialOption{
		nearcall.WithTransportCredentials(insecure.NewCredentials()),
		nearcall.WithContextDialer(func(ctx context.Context, _ string) (conn net.Conn, err error) {
			d.socket, err = d.office.lis.Load().DialContext(ctx)
			return d.socket, err
		}),
	}
}

const target = "tcp:bufconn:0"

// client returns a client of the coordinator, and a function that closes its connection.
func (o *office) client() (pb.CoordinatorClient, func()) {
	o.t.Helper()
	d := &desk{office: o}
	conn, err := nearcall.NewClient(target, d.options()...)
	if err != nil {
		o.t.Fatal(err)
	}
	return pb.NewCoordinatorClient(conn), func() { _ = conn.Close() }
}

// A hired is an agent that serves.
type hired struct {
	desk
	leave  func()     // tells the agent to leave
	served chan error // what Serve returned
}

// hire starts an agent, and waits until it has joined.
func (o *office) hire(name string, service pb.AgentServer) *hired {
	ctx, cancel := context.WithCancel(o.t.Context())
	h := &hired{desk{office: o}, cancel, make(chan error, 1)}
	go func() { h.served <- Serve(ctx, name, service, target, h.options()...) }()
	synctest.Wait()
	return h
}

// goes lets the agent leave, and waits until it has.
func (h *hired) goes(t *testing.T) {
	t.Helper()
	h.leave()
	if err := <-h.served; err != nil {
		t.Errorf("an agent that leaves: %v", err)
	}
}

// A slow agent tells of each job that it begins, reports once, and waits for its release.
type slow struct {
	pb.UnimplementedAgentServer
	begun   chan *pb.Job
	release chan struct{}
}

func newSlow() slow { return slow{begun: make(chan *pb.Job, 10), release: make(chan struct{})} }

func (s slow) Run(job *pb.Job, stream grpc.ServerStreamingServer[pb.Progress]) error {
	if job.GetFrom() == job.GetTo() {
		return nil
	}
	if err := stream.Send(&pb.Progress{Next: job.GetFrom() + 10, Primes: 4}); err != nil {
		return err
	}
	s.begun <- job
	select {
	case <-s.release:
		return stream.Send(&pb.Progress{Next: job.GetTo(), Primes: 5})
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// A result is the last progress of a job, and the error that it ended with.
type result struct {
	last *pb.Progress
	err  error
}

// submit submits the job of the primes below to.
func submit(t *testing.T, client pb.CoordinatorClient, to uint64) <-chan result {
	done := make(chan result, 1)
	go func() {
		var r result
		steps, err := client.Submit(t.Context(), &pb.Job{To: to}, grpc.WaitForReady(true))
		for err == nil {
			var p *pb.Progress
			if p, err = steps.Recv(); err == nil {
				r.last = p
			}
		}
		if r.err = err; err.Error() == "EOF" {
			r.err = nil
		}
		done <- r
	}()
	return done
}

// want checks who found how many primes last.
func want(t *testing.T, r result, agent string, primes uint64) {
	t.Helper()
	if r.err != nil || r.last.GetAgent() != agent || r.last.GetPrimes() != primes {
		t.Errorf("the result is %v, %v; want %d primes, found by %s", r.last, r.err, primes, agent)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("the error is %v, want %v", err, want)
	}
}
