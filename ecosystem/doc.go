// Package ecosystem tests that the parts one adds to a gRPC program work over
// nearcall as they are: health, reflection and what reads it, OpenTelemetry,
// go-grpc-middleware, grpc-gateway, dynamic and gogo messages. What they make
// of a call is compared with what they make of it on grpc-go.
//
// It is a module of its own, so that nobody who imports nearcall sees them.
package ecosystem
