package test

import "google.golang.org/grpc/neartest/shim/near"

// environments returns the environments that nearcall supports: no http.Handler, a load
// balancer only with the tests' own targets, and TLS only over TCP.
func environments() []env {
	if near.On.Mapped() || near.On == near.WebSocket {
		return []env{tcpClearEnv}
	}
	if near.On.OwnTargets() {
		return []env{tcpClearEnv, tcpTLSEnv, tcpClearRREnv, tcpTLSRREnv, noBalancerEnv}
	}
	return []env{tcpClearEnv, tcpTLSEnv}
}
