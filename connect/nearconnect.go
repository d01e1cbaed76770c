// Package nearconnect lets the generated code of Connect v2 (connectrpc.com/connect/v2) use
// nearcall's paths: in process, shared memory, sockets, WebSockets and QUIC.
//
//	client := pingv1connect.NewPingServiceClient(connect.NewClient(nearconnect.NewTransport(conn)))
//	nearconnect.Register(srv, server)
//
// [NewTransport] is the client's side: conn is a *nearcall.ClientConn, or any other gRPC connection.
// [Register] is the server's side: a *nearcall.Server serves the handlers of a *connect.Server, beside
// services with gRPC's generated code. [NewServer] goes the other way: it makes a *connect.Server of
// services with gRPC's generated code.
//
// On the way a call is an ordinary call of nearcall. So clients with Connect's generated code call
// services with gRPC's, and vice versa, and the options, interceptors and limits of the *nearcall.ClientConn
// and the *nearcall.Server apply. In process protobuf messages are not marshalled.
//
// The file README.md of this module lists where the rules of gRPC and of Connect differ.
package nearconnect

// ProtocolName is the protocol that a [connectrpc.com/connect/v2.CallInfo] reports for calls over
// nearcall's own protocol, and in process.
const ProtocolName = "nearcall"
