// Command javascript runs a gRPC service written in JavaScript, and scripts that call one
// written in Go. Handlers and calls run on a loop that the interpreter's event loop hosts; see
// loop.NewHosted.
//
//	go run .
//
// Package engine connects gRPC and the interpreter. The shop in shop.js serves Orders of package
// orderspb, and buys what it runs out of from a wholesaler. The customer in customer.js calls only
// the wholesaler. The wholesaler is the shop of package examples/orders, in Go. The program calls
// the shop in process and over TCP with the generated stub, runs the customer, prints and compares
// the results, and exits with 1 if they do not agree.
package main
