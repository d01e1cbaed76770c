// Package connect tests nearcall's face to HTTP clients with those of others: connect-go's, and
// the conformance tests of Connect, which `make connect-conformance` runs against
// [conformanceserver]. `make web-conformance` runs those for clients: the TypeScript transport
// calls the same server over a WebSocket. They come in their own module, so that the
// core module does not require them.
//
// Package conformancepb was made by protoc-gen-go and protoc-gen-go-grpc of config.proto,
// service.proto and server_compat.proto in the module connectrpc.com/conformance.
//
// [conformanceserver]: https://github.com/nearcall/nearcall/tree/main/interop/connect/conformanceserver
package connect
