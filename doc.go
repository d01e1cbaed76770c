// Package nearcall runs ordinary generated gRPC services over the nearest path between
// client and server: a function call within a process, shared memory between processes
// of one host, or a socket.
//
// Use it where services call each other within one process or on one host. There, with grpc-go,
// every call pays for a network stack that neither side needs: marshalling, HTTP/2 framing,
// system calls and goroutine switches. nearcall keeps gRPC's programming model and semantics and
// avoids most of that cost. Generated stubs, handlers, interceptors, metadata, deadlines, streams
// and status codes work as they do with grpc-go, which defines what they mean.
//
// A server and its client in one process need neither a listener nor a target:
//
//	srv := nearcall.NewServer()
//	orderspb.RegisterOrdersServer(srv, &shop{})
//	conn := srv.Client()
//	defer conn.Close()
//	client := orderspb.NewOrdersClient(conn)
//	order, err := client.Place(ctx, &orderspb.PlaceRequest{Item: "tea", Quantity: 1})
//
// To move a program over from grpc-go, rename its constructors, their types and their
// options: grpc.NewServer becomes [NewServer], grpc.NewClient becomes [NewClient],
// grpc.WithUserAgent becomes [WithUserAgent], and so on.
//
//   - Moving over, step by step: https://github.com/nearcall/nearcall/blob/main/docs/migrate.md
//   - What a call guarantees, and every difference from grpc-go:
//     https://github.com/nearcall/nearcall/blob/main/docs/semantics.md
//
// # Targets
//
// The target passed to [NewClient] selects the path, and [Listen] takes the same targets. Both list
// them in full: inproc:NAME within a process, unix:PATH and shm:PATH on one host, tcp:HOST:PORT,
// ws://HOST:PORT/PATH and quic:HOST:PORT between hosts. [Server.Client] needs no target. Other
// targets of grpc-go (localhost:50051, dns:///host:443, xds:///name, …) are resolved and balanced by
// grpc-go, and each server is called over the nearest path that it speaks. grpc:TARGET is an
// ordinary gRPC server.
//
// At the other end of nearcall's own targets there must be a [Server]. A Server also takes
// ordinary gRPC clients, in any language, and clients of Connect and gRPC-Web, on the same
// listeners, except those of inproc:, shm: and quic: targets. The calls of gRPC clients go through
// grpc-go, to the same services, interceptors and stats handlers, with the same limits. So one can
// move servers over first and clients later. [Server.ServeHTTP] takes these clients, and
// [Server.WebSockets] WebSockets, from a program's own HTTP server. [Server.ServeConn] serves a
// connection that the program has.
//
// Unix sockets and shared memory count as private, as with grpc-go's local credentials. On Linux
// [UnixAuthInfo] identifies the peer process. Package metrics shows how many connections became
// shared memory, and why others did not. Keepalive,
// flow-control windows, limits and the idle timeout are options, as in gRPC. A call that no
// handler has seen is retried transparently.
//
// # Where handlers run
//
// In process, a unary handler runs on its caller's goroutine if the caller's context cannot be
// cancelled, and on a worker goroutine of the server otherwise. [Inline] selects the caller's
// goroutine for all unary calls, [Workers] selects workers for all. Unary handlers that are called
// from other processes run on workers, or on the goroutine that reads the connection if they have
// been quick so far. Streaming handlers always run on workers. [Server.OnLoop] runs the handlers of
// a service on an event loop, one at a time.
//
// As in grpc-go, a handler's panic is not recovered. On the caller's goroutine it unwinds
// the caller's frames; on any other it ends the process.
//
// # Isolation
//
// Calls in process are isolated as if messages were sent over a network:
//
//   - Messages are copied. A side can modify its message as soon as the call that passed
//     it has returned. [ImmutableMessages] trades this for speed.
//   - A message that marshalling would refuse is refused: one without a required field, or with
//     text that is not UTF-8.
//   - A handler sees only the metadata that was sent, not its caller's context values or
//     outgoing metadata. The caller's deadline and cancellation do reach it.
//   - An error becomes a status. Code, message and details cross; the error value does not.
//
// # Concurrency
//
// All methods of [Server] and [ClientConn] are safe for concurrent use. For streams
// grpc-go's rule holds: one goroutine can send while another receives, but two must not
// send, or receive, on one stream at the same time.
package nearcall

// Version is the version of this module.
const Version = "0.1.0-dev"
