// Command javascript runs a gRPC service that is written in JavaScript, and scripts
// that call one written in Go: the loop that its handlers and calls run on is hosted
// by the interpreter's event loop, see loop.NewHosted.
//
//	go run .
//
// Package engine is what joins the two. Here are a shop in shop.js, which serves
// Orders of package orderspb and buys from a wholesaler what it runs out of; a
// customer in customer.js, which talks to the wholesaler alone; and the wholesaler,
// which is the shop of package examples/orders, in Go. The program calls the shop in
// process and over TCP with the generated stub, runs the customer, compares what all
// of them say, prints that, and exits with 1 where it does not agree.
package main
