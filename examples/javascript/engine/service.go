package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/dop251/goja"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearcall/nearcall"
)

// Register makes srv serve a service with an object of the script. The parameter object is the
// name of that object, or another expression that evaluates to it. It is an error if the object
// lacks the handler of a method. srv's rules for registration apply.
func (e *Engine) Register(srv *nearcall.Server, service protoreflect.ServiceDescriptor, object string) error {
	desc := &grpc.ServiceDesc{
		ServiceName: string(service.FullName()),
		HandlerType: (*any)(nil),
		Metadata:    service.ParentFile().Path(),
	}
	if err := e.onLoop(func() error { return e.describe(desc, service, object) }); err != nil {
		return fmt.Errorf("engine: %q cannot serve %s: %w", object, service.FullName(), err)
	}
	srv.OnLoop(e.loop).RegisterService(desc, e)
	return nil
}

// describe adds the object's handlers to desc.
func (e *Engine) describe(desc *grpc.ServiceDesc, service protoreflect.ServiceDescriptor, object string) error {
	v, err := e.vm.RunScript("Register", "("+object+")")
	if err != nil {
		return e.failed(err)
	}
	o, ok := v.(*goja.Object)
	if !ok {
		return fmt.Errorf("it is no object but %v", v)
	}
	var lacks []string
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		name := functionName(m)
		var v goja.Value
		if err := e.vm.Try(func() { v = o.Get(name) }); err != nil {
			return e.failed(err)
		}
		f, ok := goja.AssertFunction(v)
		if !ok {
			lacks = append(lacks, name)
			continue
		}
		h := &handler{engine: e, this: o, function: f, name: name, in: messageType(m.Input()), out: messageType(m.Output()),
			manyIn: m.IsStreamingClient(), manyOut: m.IsStreamingServer()}
		if !h.manyIn && !h.manyOut {
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: string(m.Name()), Handler: h.unary("/" + desc.ServiceName + "/" + string(m.Name()))})
			continue
		}
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: string(m.Name()), Handler: h.stream,
			ClientStreams: h.manyIn, ServerStreams: h.manyOut})
	}
	if len(lacks) > 0 {
		return fmt.Errorf("it lacks the functions %s", strings.Join(lacks, ", "))
	}
	return nil
}

// functionName returns the name of a method in scripts.
func functionName(m protoreflect.MethodDescriptor) string {
	name := string(m.Name())
	return strings.ToLower(name[:1]) + name[1:]
}

// A handler is a function of a service.
type handler struct {
	engine          *Engine
	this            *goja.Object
	function        goja.Callable
	name            string
	in, out         protoreflect.MessageType
	manyIn, manyOut bool
}

// unary returns the handler in the form of generated code.
func (h *handler) unary(method string) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := h.in.New().Interface()
		if err := decode(in); err != nil {
			return nil, err
		}
		if intercept == nil {
			return h.serve(ctx, in, nil)
		}
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: method}
		return intercept(ctx, in, info, func(ctx context.Context, in any) (any, error) {
			return h.serve(ctx, in.(proto.Message), nil)
		})
	}
}

// stream is the handler of a streaming method in the form of generated code.
func (h *handler) stream(_ any, stream grpc.ServerStream) error {
	var in proto.Message
	if !h.manyIn {
		in = h.in.New().Interface()
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
	}
	out, err := h.serve(stream.Context(), in, stream)
	if err != nil || h.manyOut {
		return err
	}
	return stream.SendMsg(out)
}

// serve calls the function and waits for its result, which is the reply unless the server
// streams. in is nil if the client streams. stream is nil for unary methods.
func (h *handler) serve(ctx context.Context, in proto.Message, stream grpc.ServerStream) (proto.Message, error) {
	e := h.engine
	if err := e.alive(); err != nil {
		return nil, err
	}
	c, err := e.newCall(h, stream)
	if err != nil {
		return nil, e.failed(err)
	}
	args := []goja.Value{c.object}
	if in != nil {
		request, err := e.toScript(in)
		if err != nil {
			return nil, e.failed(err)
		}
		args = []goja.Value{request, c.object}
	}
	v, err := h.function(h.this, args...)
	if err != nil {
		err = e.failed(err)
	} else {
		v, err = e.settled(ctx, v)
	}
	if drained := c.sends.drained(ctx); err == nil {
		err = drained
	}
	if dead := e.alive(); dead != nil {
		return nil, dead
	}
	if gone := ctx.Err(); gone != nil {
		c.abort(gone)
		return nil, statusOf(gone).Err()
	}
	if err != nil || h.manyOut {
		return nil, err
	}
	out := h.out.New().Interface()
	if err := e.fromScript(v, out); err != nil {
		return nil, status.Errorf(codes.Internal, "the handler %s: %v", h.name, err)
	}
	return out, nil
}
