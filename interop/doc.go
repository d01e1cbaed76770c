// Package interop proves that nearcall keeps gRPC's promises.
//
// The oracle is grpc-go itself. A case (see cases_*_test.go) is an ordinary gRPC program
// that records what it observes. It runs once on grpc-go and once on every nearcall
// environment, and the two transcripts must be equal. The expected answers are not written
// down anywhere.
//
// Each case belongs to one of the promises listed in items.go. Two suites by other authors,
// grpchan's and grpc-go's own interop client, run unmodified on the same environments.
//
// Module clients has clients of other makers, among them Python's grpcio and grpcurl, which
// call a nearcall server as ordinary gRPC clients.
//
// Module targets compares clients of several servers, as resolvers and balancers of grpc-go make them.
//
// Package proxies makes calls through nginx and Caddy.
//
// Commands grpcgo and connectgo run the tests of grpc-go and of Connect v2's transports on nearcall: a
// copy of them with other imports. Those that do not pass are listed in a differences.tsv, with the
// reason.
//
//	go test -race ./...                         everything
//	go test -run TestItems -items               ... and a table of items and environments
//	go test -run 'TestItems/inproc/17†/'        one item on one environment
//	go run ./grpcgo                             grpc-go's own tests
package interop
