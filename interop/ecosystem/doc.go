// Package ecosystem tests that common additions to gRPC programs work unchanged
// over nearcall: health, reflection and its clients, OpenTelemetry,
// go-grpc-middleware, grpc-gateway, go-plugin, dynamic and gogo messages. It compares their
// results with those on grpc-go.
//
// It is a separate module, so that nearcall does not depend on these modules.
package ecosystem
