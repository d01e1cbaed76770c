// Package flat carries FlatBuffers, which are read where they lie and never decoded.
//
// The messages and the stubs are those that flatc generates with --go --grpc. They work on a
// nearcall.ClientConn and a nearcall.Server, and on those of grpc-go, with the codec of this
// package. It differs from the codec of package flatbuffers in three ways:
//
//   - It verifies what it receives, as the schema demands, before a handler sees it: on a message
//     that was not verified, the generated code can panic or read beyond it.
//   - It sends a builder's bytes without a copy, and leaves a large message where it has arrived.
//     Between two processes of a host a message is copied once on each side.
//   - A received message can be sent on as it is.
//
// FlatBuffers pay where messages are large, and where their receivers read a part of them. Small
// messages are not faster than protobuf's, and a builder is more work than a struct.
package flat
