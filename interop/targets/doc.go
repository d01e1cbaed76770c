// Package targets compares how clients of nearcall and of grpc-go resolve the names of targets and balance
// calls between the servers behind them.
//
// As in package interop, grpc-go is the oracle, and the expected results are not written down anywhere. A case
// (see cases_*_test.go) is an ordinary gRPC program that records what it sees. In each setup (which servers,
// how many of them, with or without TLS) it runs twice, once with grpc.NewClient and once with
// nearcall.NewClient, and both transcripts must be equal.
//
//	go test -parallel 8 .                 all cases
//	go test -run 'TestStates/lost' .      one case in all its setups
//	go test -twice .                      grpc-go against itself: a case that differs there proves nothing
package targets
