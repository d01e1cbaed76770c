package test

import "google.golang.org/grpc/neartest/shim/near"

// environments are those that nearcall can be: no http.Handler, no load balancer, and TLS where there is a network.
func environments() []env {
	if near.On.Mapped() {
		return []env{tcpClearEnv}
	}
	return []env{tcpClearEnv, tcpTLSEnv}
}
