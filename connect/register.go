// Package nearconnect lets the generated code of Connect v2 (connectrpc.com/connect/v2) use
// nearcall's paths: in process, shared memory, sockets, WebSockets and QUIC.
//
//	client := pingv1connect.NewPingServiceClient(connect.NewClient(nearconnect.NewTransport(conn)))
//	nearconnect.Register(srv, server)
//
// [NewTransport] is the client's side: conn is a *nearcall.ClientConn, or any other gRPC
// connection. [Register] is the server's side: a *nearcall.Server serves the handlers of a
// *connect.Server, in addition to services with gRPC's generated code. [NewServer] goes the other
// way: it makes a *connect.Server of services with gRPC's generated code.
//
// On the way a call is an ordinary call of nearcall. So clients with Connect's generated code call
// services with gRPC's, and vice versa, and the options, interceptors and limits of the
// *nearcall.ClientConn and the *nearcall.Server apply. In process protobuf messages are not
// marshalled.
//
// The file README.md of this module lists where the rules of gRPC and of Connect differ.
package nearconnect

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Register makes srv, usually a *nearcall.Server, serve the procedures that are registered with
// server, in addition to srv's services. All clients of srv can call them. It panics where
// RegisterService of srv does: srv must not have services of the same names, and must not have been
// started.
//
// The interceptors of srv are outside those of server. They see unary calls as unary ones if the
// procedure's Schema is a protoreflect.MethodDescriptor whose messages are registered, as generated
// code makes it, and as streams otherwise.
//
// A panic of a handler, or of the codec that encodes its reply, fails the call with
// [connect.CodeInternal], and is logged with grpclog.
//
// Calls of procedures that are not registered go to the handler of [UnknownHandler], if srv has it.
func Register(srv grpc.ServiceRegistrar, server *connect.Server) {
	var order []string
	services := map[string]*grpc.ServiceDesc{}
	for spec := range server.Specs() {
		service, name, ok := split(spec.Procedure)
		if !ok {
			panic(fmt.Sprintf("nearconnect: the procedure %q is not of the form /package.Service/Method", spec.Procedure))
		}
		desc := services[service]
		if desc == nil {
			desc = &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
			services[service] = desc
			order = append(order, service)
		}
		p := &procedure{server: server, name: spec.Procedure, spec: spec}
		method, ok := spec.Schema.(protoreflect.MethodDescriptor)
		if ok {
			desc.Metadata = method.ParentFile().Path()
			p.request, _ = protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
		}
		if spec.StreamType == connect.StreamTypeUnary && p.request != nil {
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: p.serveUnary})
			continue
		}
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName:    name,
			Handler:       p.serveStream,
			ClientStreams: spec.StreamType&connect.StreamTypeClient != 0,
			ServerStreams: spec.StreamType&connect.StreamTypeServer != 0,
		})
	}
	for _, service := range order {
		srv.RegisterService(services[service], guard{})
	}
}

// split returns the two parts of /service/method.
func split(procedure string) (service, method string, ok bool) {
	path, ok := strings.CutPrefix(procedure, "/")
	i := strings.LastIndexByte(path, '/')
	if !ok || i <= 0 || i == len(path)-1 {
		return "", "", false
	}
	return path[:i], path[i+1:], true
}

// UnknownHandler returns a handler that passes calls on to server, for
// nearcall.UnknownServiceHandler or [grpc.UnknownServiceHandler]. Then server's unknown-procedure
// handler serves procedures that are not in [Register] or other services.
func UnknownHandler(server *connect.Server) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(stream)
		p := procedure{server: server, name: name, spec: connect.Spec{Procedure: name, StreamType: connect.StreamTypeBidi}}
		return p.serveStream(nil, stream)
	}
}

// A procedure is one of a *connect.Server.
type procedure struct {
	server  *connect.Server
	name    string
	spec    connect.Spec
	request protoreflect.MessageType // of unary calls whose request can be shown to interceptors
}

var logger = grpclog.Component("nearcall")

// A guard is the implementation of services of Connect: a [call.Guard].
type guard struct{}

func (guard) Panicked(method string, value any) error { return verdict(panicked(method, value)) }

// panicked logs a panic in a call of method, and returns the call's error.
func panicked(method string, value any) *connect.Error {
	logger.Errorf("the handler of %s panicked: %v\n%s", method, value, debug.Stack())
	return connect.NewError(connect.CodeInternal, "the handler panicked")
}

// call runs the handler. The call ends with its error.
func (p *procedure) call(ctx context.Context, info *connect.CallInfo, stream connect.ServerStream) error {
	return guarded(p.name, func() error { return p.server.Call(ctx, p.name, info, stream) })
}

// guarded calls f, which is part of a call of method, and returns an error if f panics.
func guarded(method string, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = panicked(method, value)
		}
	}()
	return f()
}

// ProtocolName is the protocol that a [connectrpc.com/connect/v2.CallInfo] reports for calls over
// nearcall's own protocol, and in process.
const ProtocolName = "nearcall"
