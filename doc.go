// Package nearcall runs ordinary generated gRPC services over the nearest path
// between caller and callee.
//
// A program moves over by renaming its constructors: grpc.NewServer becomes
// [NewServer] and grpc.NewClient becomes [NewClient]. Generated stubs,
// handlers, interceptors, metadata, deadlines and status codes stay what they
// are, and so does what they mean: the rules are those of grpc-go.
//
// Within one process a unary call costs a microsecond or so. The caller
// drives the callee, generated messages are copied once and not marshalled, and
// no thread is woken that does not have to be:
//
//	srv := nearcall.NewServer()
//	pb.RegisterGreeterServer(srv, &greeter{})
//	client := pb.NewGreeterClient(srv.Client())
//	reply, err := client.SayHello(ctx, &pb.HelloRequest{Name: "world"})
//
// Parts of a program that do not share the server's variable find it by name:
// [Listen] on inproc:NAME, pass the listener to [Server.Serve], and dial
// inproc:NAME with [NewClient]. Targets that are not nearcall's own go to
// grpc-go unchanged, so that renaming breaks no client.
//
// # Where handlers run
//
// A unary handler runs on its caller's goroutine where the caller's context
// cannot be cancelled, and on a worker goroutine of the server otherwise.
// [InlineHandlers] and [WorkerHandlers] fix either. Streaming handlers always
// run on workers.
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
