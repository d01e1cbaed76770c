package agent

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/nearcall/nearcall/examples/agent/agentpb"
)

// Each job goes to an agent that is idle, and waits while there is none.
func TestJobsAreDoneBySeveralAgents(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		waits := submit(t, client, 20)
		synctest.Wait() // there are no agents yet
		names := []string{"ann", "bob", "carol"}
		service := newSlow()
		var agents []*hired
		for _, name := range names {
			agents = append(agents, o.hire(name, service))
		}
		jobs := []<-chan result{waits, submit(t, client, 20), submit(t, client, 20)}
		for range jobs { // all run at the same time
			<-service.begun
		}
		more := submit(t, client, 20)
		synctest.Wait()
		if len(service.begun) > 0 {
			t.Error("an agent has two jobs")
		}
		close(service.release)
		by := make(map[string]int)
		for _, job := range jobs {
			r := <-job
			want(t, r, r.last.GetAgent(), 5)
			by[r.last.GetAgent()]++
		}
		for _, name := range names {
			if by[name] != 1 {
				t.Errorf("%s has done %d jobs, want 1", name, by[name])
			}
		}
		if r := <-more; r.err != nil {
			t.Error(r.err)
		}
		for _, a := range agents {
			a.goes(t)
		}
	})
}

func TestPrimesAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		ann := o.hire("ann", Primes{Every: 7})
		for to, n := range map[uint64]uint64{2: 0, 3: 1, 100: 25, 1000: 168} {
			want(t, <-submit(t, client, to), "ann", n)
		}
		ann.goes(t)
	})
}

// When an agent's connection breaks, another agent does the rest of its job, and the agent
// comes back by itself.
func TestAnAgentThatLeavesInTheMiddle(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		service := newSlow()
		ann := o.hire("ann", service)
		job := submit(t, client, 30)
		<-service.begun
		bob := o.hire("bob", Primes{})
		_ = ann.socket.Close()
		want(t, <-job, "bob", 4+6) // ann has reported four below 10, and bob finds those from 10 to 30

		bob.goes(t)
		close(service.release)
		want(t, <-submit(t, client, 20), "ann", 5)
		ann.goes(t)
	})
}

// An agent that is told to leave finishes its job, and gets no other.
func TestAnAgentThatIsToldToLeave(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		service := newSlow()
		ann := o.hire("ann", service)
		job := submit(t, client, 20)
		<-service.begun
		ann.leave()
		synctest.Wait()
		other := submit(t, client, 20)
		synctest.Wait()
		close(service.release)
		want(t, <-job, "ann", 5)
		if err := <-ann.served; err != nil {
			t.Error(err)
		}
		bob := o.hire("bob", Primes{})
		want(t, <-other, "bob", 8)
		bob.goes(t)
	})
}

// Agents join the coordinator that replaces theirs.
func TestAgentsComeBackAfterTheCoordinatorRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		service := newSlow()
		agents := []*hired{o.hire("ann", service), o.hire("bob", service)}
		job := submit(t, client, 20)
		<-service.begun
		o.srv.Stop()
		if r := <-job; r.err == nil {
			t.Error("the job was done by a coordinator that has stopped")
		}
		o.open()
		jobs := []<-chan result{submit(t, client, 20), submit(t, client, 20)}
		for range jobs {
			<-service.begun
		}
		close(service.release)
		for _, job := range jobs {
			if r := <-job; r.err != nil {
				t.Error(r.err)
			}
		}
		for _, a := range agents {
			a.goes(t)
		}
	})
}

// A coordinator that stops gracefully waits for the jobs that agents are doing, refuses
// others, and lets the agents go.
func TestACoordinatorThatStopsGracefully(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		service := newSlow()
		ann := o.hire("ann", service)
		job := submit(t, client, 20)
		<-service.begun
		waits := submit(t, client, 20)
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			o.Close()
			o.srv.GracefulStop()
		}()
		wantCode(t, (<-waits).err, codes.Unavailable)
		wantCode(t, (<-submit(t, client, 20)).err, codes.Unavailable)
		close(service.release)
		want(t, <-job, "ann", 5)
		<-stopped
		ann.goes(t)
	})
}

func TestOrdinaryGRPCClientsSubmitJobs(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		ann := o.hire("ann", Primes{})
		conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return o.lis.Load().DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		client := pb.NewCoordinatorClient(conn)
		want(t, <-submit(t, client, 100), "ann", 25)
		wantCode(t, join(t.Context(), client, "bob"), codes.FailedPrecondition)
		_ = conn.Close()
		ann.goes(t)
	})
}

// The agent that joins last has the name.
func TestANameBelongsToOneAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		first := o.hire("ann", newSlow())
		second := o.hire("ann", Primes{})
		wantCode(t, <-first.served, codes.Aborted)
		want(t, <-submit(t, client, 20), "ann", 8)
		second.goes(t)
	})
}

func TestWhoCannotJoin(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		wantCode(t, <-o.hire("", Primes{}).served, codes.InvalidArgument)
		wantCode(t, <-o.hire("ann", pb.UnimplementedAgentServer{}).served, codes.FailedPrecondition)
		client, hangUp := o.client() // serves nothing
		defer hangUp()
		wantCode(t, join(t.Context(), client, "ann"), codes.FailedPrecondition)
		if err := Serve(t.Context(), "ann", Primes{}, "localhost:1"); err == nil {
			t.Error("an agent serves over a connection of grpc-go")
		}
	})
}

func TestAJobThatEndsBeforeItBegins(t *testing.T) {
	inBubble(t, func(t *testing.T, o *office) {
		client, hangUp := o.client()
		defer hangUp()
		steps, err := client.Submit(t.Context(), &pb.Job{From: 2, To: 1})
		if err == nil {
			_, err = steps.Recv()
		}
		wantCode(t, err, codes.InvalidArgument)
	})
}
