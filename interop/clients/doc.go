// Package clients runs clients of other makers against nearcall's server. Python's grpcio, grpcurl
// and ghz call over TCP, TLS and a unix socket, for services that run on goroutines and on a loop.
// [TestTableOfClients] makes the calls of the table in docs/semantics.md, with these clients and
// those of Connect, gRPC-Web, JSON and WebSockets, for each way to serve.
//
// Servers of other makers are asked which protocol they speak, as a client does that knows only their
// name, and called over the same connection.
//
//	make clients
//
// The module pins the clients in Go, requirements.txt what Python needs, and web/package.json buf
// and what Node needs.
package clients
