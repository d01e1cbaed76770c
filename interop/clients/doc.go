// Package clients runs ordinary gRPC clients of other makers against nearcall's server:
// Python's grpcio, grpcurl and ghz, over TCP, TLS and a unix socket, for services that run
// on goroutines and on a loop.
//
//	make clients
//
// The module pins grpcurl and ghz, and requirements.txt what Python needs.
package clients
