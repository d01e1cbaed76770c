package test

import "google.golang.org/grpc/neartest/shim/near"

// environments returns the environments that nearcall supports: no http.Handler, no load
// balancer, and TLS only over TCP.
func environments() []env {
	if near.On.Mapped() || near.On == near.WebSocket {
		return []env{tcpClearEnv}
	}
	return []env{tcpClearEnv, tcpTLSEnv}
}
