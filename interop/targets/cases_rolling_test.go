package targets

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

func TestRolling(t *testing.T) { run(t, rollingCases) }

var rollingCases = []Case{
	{Name: "pick_first while servers change their kind", Fleets: []kind{ordinary}, Sizes: []int{3}, Run: func(c *C) { c.roll("pick_first", false) }},
	{Name: "round_robin while servers change their kind", Fleets: []kind{ordinary}, Sizes: []int{3}, Run: func(c *C) { c.roll("round_robin", false) }},
	{Name: "pick_first while servers in process change their kind", Fleets: []kind{ordinary}, Sizes: []int{3}, Run: func(c *C) { c.roll("pick_first", true) }},
	{Name: "round_robin while servers in process change their kind", Fleets: []kind{ordinary}, Sizes: []int{3}, Run: func(c *C) { c.roll("round_robin", true) }},
}

// roll replaces each server gracefully with one of the other kind, one at a time, and all of them back, twice.
// Meanwhile clients with and without retries make calls and streams. None may fail, and each must speak
// what its server speaks. If offers is set, servers of nearcall offer to be called in process.
func (c *C) roll(policy string, offers bool) {
	offer := func(s *Server) { s.Offers = offers }
	servers := c.Fleet(offer)
	used := map[string]int{"pick_first": 1, "round_robin": len(servers)}[policy]
	var clients []Client
	var loads []*Load
	for _, retry := range []string{"", retryUnavailable} {
		client, _ := c.Balance(fmt.Sprintf(`{"loadBalancingConfig":[{%q:{}}]%s}`, policy, retry), addresses(servers...))
		c.Settle(client, used)
		clients = append(clients, client)
		loads = append(loads, c.slowLoad(2, client), c.streamLoad(1, client))
	}
	more := func() {
		for _, l := range loads {
			l.More(5)
		}
	}
	for phase, next := range []kind{near, ordinary, near, ordinary} {
		for i, old := range servers {
			single, _ := c.Balance(pickFirst, addresses(old))
			st := c.Stream("stream", c.ctx, single)
			more()
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				old.GracefulStop()
			}()
			c.Until("the old server's port is free", func() bool {
				lis, err := net.Listen("tcp", old.Addr)
				return err == nil && lis.Close() == nil
			})
			servers[i] = c.NewServer(old.Name, i, old.Addr, offer, func(s *Server) { s.kind = next })
			servers[i].Start()
			more()
			c.Until("the client of one server calls the new one", func() bool {
				_, err := unary(c.ctx, single, grpc.WaitForReady(true))
				return err != nil || servers[i].calls.Load() > 0
			})
			c.Unary("the client of one server", c.ctx, single)
			c.Ping("the stream goes on", st)
			c.Note("the old server has stopped: %v", isClosed(stopped))
			c.Finish("stream", st)
			<-stopped
			single.Close()
		}
		for _, client := range clients {
			c.Settle(client, used)
		}
		more()
		for _, s := range servers {
			c.spoke(fmt.Sprint("phase ", phase), s)
		}
	}
	for i, l := range loads {
		l.Stop(fmt.Sprint("load ", i))
	}
}

const retryUnavailable = `,"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.01s","maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]`

// spoke notes whether the clients of s, of which there were some, have all spoken what they should. One
// call in a hundred may have been picked for the ordinary server that a server of nearcall replaces, and
// have found the new connection; see pin.result in internal/balance.
func (c *C) spoke(label string, s *Server) {
	want := "grpc-go"
	if c.dialer.near && s.kind == near {
		want = "nearcall"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	others := 0
	for what, n := range s.spoken {
		if what != want {
			others += n
		}
	}
	if n := s.spoken[want]; n > 0 && (others == 0 || want == "nearcall" && others <= n/100) {
		c.Note("%s: all calls to %s speak what they should", label, s.Name)
	} else {
		c.Note("%s: calls to %s, which is %s, speak %v", label, s.Name, s.kind, s.spoken)
	}
}

// slowLoad is Load with pauses, which leave a machine with few processors to the servers that start and stop.
func (c *C) slowLoad(callers int, client grpc.ClientConnInterface) *Load {
	return c.load(callers, func() error {
		c.Pause(time.Millisecond)
		return lastly(unary(c.ctx, client))
	})
}

// streamLoad makes streams of a few messages until Stop, likewise.
func (c *C) streamLoad(callers int, client grpc.ClientConnInterface) *Load {
	return c.load(callers, func() error {
		c.Pause(time.Millisecond)
		s, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
		if err != nil {
			return err
		}
		for range 3 {
			if err := s.Send(&pb.StreamingOutputCallRequest{}); err != nil && err != io.EOF { // then Recv has the status
				return err
			}
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
		_ = s.CloseSend()
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	})
}
