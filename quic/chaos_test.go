package quic

import (
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// TestChaos makes random calls over QUIC while they are cancelled, while handlers fail and panic,
// and while servers stop and connections close; see [chaos.Run].
//
// It takes about 3 s, divided among the scenarios. NEARCALL_SOAK sets another duration:
//
//	NEARCALL_SOAK=10m go test -race -run 'TestChaos$' -timeout 0 .
func TestChaos(t *testing.T) {
	chaos.Run(t, []chaos.Scenario{
		overQUIC(t, chaos.Scenario{Name: "calm"}),
		overQUIC(t, chaos.Scenario{Name: "limited", Server: []nearcall.ServerOption{nearcall.MaxConcurrentStreams(5)}}),
		overQUIC(t, chaos.Scenario{Name: "storm", Storm: true, Closing: true}),
		overQUIC(t, chaos.Scenario{Name: "baton", On: &looptest.Baton}),
		overQUIC(t, chaos.Scenario{Name: "hosted", On: &looptest.Hosted}),
		overQUIC(t, chaos.Scenario{Name: "coroutines, storm", On: &looptest.Coroutines, Storm: true, Closing: true}),
	}, chaos.Duration(t, "NEARCALL_SOAK", 3*time.Second))
}

// TestChaosOverTheNetwork is TestChaos with faults of the network, or of the process at its other
// end.
//
// It takes about 6 s. NEARCALL_CHAOS sets another duration:
//
//	NEARCALL_CHAOS=10m go test -race -run TestChaosOverTheNetwork -timeout 0 .
func TestChaosOverTheNetwork(t *testing.T) {
	// Calls that a closing connection refuses are retried transparently.
	shortLife := nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 300 * time.Millisecond})
	chaos.Run(t, []chaos.Scenario{
		overQUIC(t, chaos.Scenario{Name: "connections of a short life", Retries: true,
			Server: []nearcall.ServerOption{nearcall.MaxConcurrentStreams(5), shortLife}}),
		overQUIC(t, chaos.Scenario{Name: "datagrams that are lost", Proxy: udpProxy}),
		overQUIC(t, chaos.Scenario{Name: "datagrams that are lost, connections of a short life", Proxy: udpProxy,
			Server: []nearcall.ServerOption{shortLife}}),
		overQUIC(t, chaos.Scenario{Name: "datagrams that are lost, on a loop", Proxy: udpProxy, On: &looptest.Baton}),
		overQUIC(t, chaos.Scenario{Name: "a process that is killed", Child: serveChaos}),
	}, chaos.Duration(t, "NEARCALL_CHAOS", 6*time.Second))
}

// overQUIC returns s over QUIC.
func overQUIC(t *testing.T, s chaos.Scenario) chaos.Scenario {
	_, client := testTLS()
	s.Target, s.Network, s.Worker = unusedTarget, "udp", true
	s.Server = append(s.Server, chaosOptions()...)
	s.Client = append(s.Client, nearcall.WithTransportCredentials(nearcall.NewTLS(client)))
	return s
}

// chaosOptions returns what the servers have in common, those in other processes included. With
// the same key a server that follows one that was killed can end its connections.
func chaosOptions() []nearcall.ServerOption {
	config, _ := testTLS()
	return []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(config)), StatelessResetKey([32]byte{1})}
}

// unusedTarget returns a target whose port is free.
func unusedTarget(t testing.TB) string {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return "quic:" + c.LocalAddr().String()
}

func udpProxy(t *testing.T, seed uint64) chaos.Proxy { return chaos.NewUDPProxy(t, seed) }

// serveTarget is the environment variable with the target that a child process serves.
const serveTarget = "NEARCALL_TEST_SERVE"

func serveChaos(target string) (*child.Process, error) {
	return child.Start("TestServeInAProcess", serveTarget+"="+target, certificateVariable+"="+testCertificate())
}

// TestServeInAProcess is a server that another test starts and kills.
func TestServeInAProcess(t *testing.T) {
	target := os.Getenv(serveTarget)
	if target == "" {
		t.Skip("only in a child process")
	}
	chaos.Serve(t, target, chaosOptions()...)
}
