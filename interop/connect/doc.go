// Package connect tests nearcall's face to HTTP clients with those of others: connect-go's, and
// the conformance tests of Connect, which `make connect-conformance` runs against
// [conformanceserver]. It also runs those for clients: [conformanceclient] has Connect v2's generated code,
// and calls the suite's own servers and conformanceserver. So does `make web-conformance`: the TypeScript
// transport calls conformanceserver over a WebSocket. They come in their own module, so that the
// core module does not require them.
//
// `make generate` makes package conformancepb of the module connectrpc.com/conformance.
//
// [conformanceclient]: https://github.com/nearcall/nearcall/tree/main/interop/connect/conformanceclient
// [conformanceserver]: https://github.com/nearcall/nearcall/tree/main/interop/connect/conformanceserver
package connect
