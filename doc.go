// Package nearcall runs ordinary generated gRPC services over the nearest path
// between caller and callee.
//
// A program moves over by renaming its constructors, their types and options:
// grpc.NewServer becomes [NewServer], grpc.NewClient becomes [NewClient], and
// so on. Generated stubs, handlers, interceptors, metadata, deadlines and
// status codes stay what they are, and so does what they mean: the rules are
// those of grpc-go.
//
//   - Moving over, step by step:
//     https://github.com/nearcall/nearcall/blob/main/docs/migrate.md
//   - What a call means, and where a program can tell the difference:
//     https://github.com/nearcall/nearcall/blob/main/docs/semantics.md
//
// Within one process there is no wire. Generated messages are copied instead of
// marshalled, and a handler may run on its caller's goroutine, so that nobody
// has to be woken:
//
//	srv := nearcall.NewServer()
//	pb.RegisterGreeterServer(srv, &greeter{})
//	client := pb.NewGreeterClient(srv.Client())
//	reply, err := client.SayHello(ctx, &pb.HelloRequest{Name: "world"})
//
// Parts of a program that do not share the server's variable find it by name:
// [Listen] on inproc:NAME, pass the listener to [Server.Serve], and dial
// inproc:NAME with [NewClient].
//
// # Between processes
//
// Other processes reach a server by unix:PATH or tcp:HOST:PORT, in the same way.
// Both ends are nearcall's then. TCP takes the transport credentials that gRPC
// has ([Creds], [WithTransportCredentials]); unix sockets count as private, and
// [UnixAuthInfo] says who is at the other end. On Linux a connection of unix:PATH
// becomes shared memory where both processes are of one user, and shm:PATH insists
// on that: see [WithoutUpgrade], and [ReadSharedMemoryStats] for what came of it.
// Keepalive, windows, limits and the idle timeout are options as in gRPC, and a
// call that no handler has seen is made again.
//
// Any other target (localhost:50051, dns:///…) goes to grpc-go unchanged, and an
// ordinary gRPC server at a unix socket is grpc:unix:PATH. For ordinary gRPC
// clients keep a grpc.Server, and register the same implementation with both; a
// function that takes a [grpc.ServiceRegistrar] takes either.
//
// # Where handlers run
//
// Within the process a unary handler runs on its caller's goroutine where the
// caller's context cannot be cancelled, and on a worker goroutine of the server
// otherwise. [InlineHandlers] and [WorkerHandlers] fix either. Streaming handlers,
// and those that other processes call, always run on workers.
//
// A panic of a handler is not swallowed, as in grpc-go. On a worker it ends
// the process; inline it reaches the caller's frames.
//
// # Isolation
//
// Messages are copied, as if they had been sent: either side may change its
// message as soon as the call that passed it returned. What marshalling would
// refuse (a missing required field, text that is not UTF-8) is refused here
// too. Context values and metadata of a caller do not reach a handler unless
// they are sent.
package nearcall
