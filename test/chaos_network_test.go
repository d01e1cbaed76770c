package test

import (
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/child"
)

// TestChaosOverTheNetwork is TestChaos with faults of the network, or of the process at
// its other end.
//
// It takes about 6 s. NEARCALL_CHAOS sets another duration:
//
//	NEARCALL_CHAOS=10m go test -race -run TestChaosOverTheNetwork -timeout 0 ./test
func TestChaosOverTheNetwork(t *testing.T) {
	certs := newCertificates(t)
	scenarios := []chaos.Scenario{
		{Name: "tcp that misbehaves", Target: targetsOf("tcp"), Proxy: tcpProxy, Worker: true},
		{Name: "TLS that misbehaves", Target: targetsOf("tcp"), Proxy: tcpProxy, Worker: true,
			Server: []nearcall.ServerOption{nearcall.Creds(credentials.NewTLS(certs.server(nil)))},
			Client: []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))},
		},
		// In this scenario calls fail only if the plan makes them fail: calls that a
		// closing connection refuses are retried transparently.
		{Name: "tcp, connections of a short life", Target: targetsOf("tcp"), Network: "tcp", Worker: true, Retries: true,
			Server: []nearcall.ServerOption{
				nearcall.MaxConcurrentStreams(5),
				nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 100 * time.Millisecond, Time: time.Second, Timeout: time.Second}),
				nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
			},
			Client: []nearcall.DialOption{nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true})},
		},
	}
	for _, network := range networks("unix") {
		scenarios = append(scenarios, onNetwork(network, chaos.Scenario{Name: network + ", a process that is killed", Child: serveChaos, Worker: true}))
	}
	chaos.Run(t, scenarios, chaos.Duration(t, "NEARCALL_CHAOS", 6*time.Second))
}

// onNetwork returns s over network.
func onNetwork(network string, s chaos.Scenario) chaos.Scenario {
	s.Target, s.Network, s.Client = targetsOf(network), addressedAs(network), over(network)
	return s
}

// targetsOf returns a function that returns unused targets for network.
func targetsOf(network string) func(testing.TB) string {
	return func(t testing.TB) string { return targetFor(t, network) }
}

func tcpProxy(t *testing.T, seed uint64) chaos.Proxy { return chaos.NewTCPProxy(t, seed) }

func serveChaos(target string) (*child.Process, error) {
	return child.Start("TestServeInAProcess", serveTarget+"="+target)
}

// Environment variables of child processes.
const (
	serveTarget  = "NEARCALL_TEST_SERVE"   // target to serve on
	serveService = "NEARCALL_TEST_SERVICE" // echo or waiting; chaos if it is empty
	callTarget   = "NEARCALL_TEST_CALL"    // target to call
)

// TestServeInAProcess is a server that other tests start and kill.
func TestServeInAProcess(t *testing.T) {
	target := os.Getenv(serveTarget)
	if target == "" {
		t.Skip("only in a child process")
	}
	if service := os.Getenv(serveService); service != "" {
		e := echo{}
		if service == "waiting" {
			e, _, _ = waiting()
		}
		srv := serve(t, e)
		lis := listen(t, target)
		start(t, srv, lis)
		child.Serve(lis.Target())
		srv.GracefulStop()
		return
	}
	chaos.Serve(t, target)
}
