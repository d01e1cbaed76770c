package engine

import (
	"context"

	"github.com/dop251/goja"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearcall/nearcall/loop"
)

// Bind gives scripts a client of a service, as a global variable with this name. Use a
// connection of nearcall: its calls wait as tasks do. With other connections each call
// blocks the script.
func (e *Engine) Bind(name string, conn grpc.ClientConnInterface, service protoreflect.ServiceDescriptor) error {
	return e.onLoop(func() error {
		client := e.vm.NewObject()
		for i := range service.Methods().Len() {
			d := service.Methods().Get(i)
			m := &method{engine: e, conn: conn, name: "/" + string(service.FullName()) + "/" + string(d.Name()),
				in: messageType(d.Input()), out: messageType(d.Output()),
				stream: grpc.StreamDesc{StreamName: string(d.Name()), ClientStreams: d.IsStreamingClient(), ServerStreams: d.IsStreamingServer()}}
			if err := client.Set(functionName(d), m.call); err != nil {
				return err
			}
		}
		return e.vm.Set(name, client)
	})
}

// A method is a function of a client.
type method struct {
	engine  *Engine
	conn    grpc.ClientConnInterface
	name    string
	in, out protoreflect.MessageType
	stream  grpc.StreamDesc
}

// call is the function that the script calls. It returns a promise at once.
func (m *method) call(args goja.FunctionCall) goja.Value {
	e := m.engine
	var in proto.Message
	last := args.Argument(0)
	if !m.stream.ClientStreams {
		in = m.in.New().Interface()
		if err := e.fromScript(args.Argument(0), in); err != nil {
			e.raise(err)
		}
		last = args.Argument(1)
	}
	o, err := e.readOptions(last)
	if err != nil {
		e.raise(err)
	}
	if m.stream.ClientStreams || m.stream.ServerStreams {
		return m.open(in, o)
	}
	return e.inTask(func(ctx context.Context) (proto.Message, error) {
		ctx, end := o.begin(ctx)
		defer end()
		out := m.out.New().Interface()
		return out, m.conn.Invoke(ctx, m.name, in, out)
	})
}

// open opens a stream. It does so in a task that then waits for the stream's end, because the
// stream's context is the task's.
func (m *method) open(in proto.Message, o options) goja.Value {
	e := m.engine
	d := e.newDeferred()
	err := e.loop.Go(func(ctx context.Context) {
		if e.alive() != nil {
			return
		}
		ctx, end := o.begin(ctx)
		defer end()
		stream, err := m.conn.NewStream(ctx, &m.stream, m.name)
		if err == nil && in != nil {
			if err = stream.SendMsg(in); err == nil {
				err = stream.CloseSend()
			}
		}
		if e.alive() != nil {
			return
		}
		s := &clientStream{method: m, stream: stream, sends: lane{engine: e}, recvs: lane{engine: e}}
		var object *goja.Object
		if err == nil {
			object, err = s.object(end)
		}
		if err != nil {
			d.settle(nil, err)
			return
		}
		_, err = loop.Await(ctx, func(resume func(struct{}, error)) {
			s.end = resume
			_ = d.resolve(object)
		})
		if s.end == nil { // it was cancelled before it was open, so no task waits
			d.settle(nil, err)
		}
	})
	if err != nil {
		d.settle(nil, unavailable(err))
	}
	return d.promise
}

// A clientStream is a stream that a script has opened.
type clientStream struct {
	method *method
	stream grpc.ClientStream
	sends  lane
	recvs  lane
	end    func(struct{}, error) // ends the task
}

func (s *clientStream) object(cancel func()) (*goja.Object, error) {
	o := s.method.engine.vm.NewObject()
	functions := map[string]func(goja.FunctionCall) goja.Value{
		"recv": s.recv,
		"cancel": func(goja.FunctionCall) goja.Value {
			cancel()
			return goja.Undefined()
		},
	}
	if s.method.stream.ClientStreams {
		functions["send"], functions["closeSend"] = s.send, s.closeSend
	}
	for name, f := range functions {
		if err := o.Set(name, f); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (s *clientStream) send(args goja.FunctionCall) goja.Value {
	in := s.method.in.New().Interface()
	if err := s.method.engine.fromScript(args.Argument(0), in); err != nil {
		s.method.engine.raise(err)
	}
	return s.sends.do(func() (proto.Message, error) { return nil, s.stream.SendMsg(in) })
}

func (s *clientStream) closeSend(goja.FunctionCall) goja.Value {
	return s.sends.do(func() (proto.Message, error) { return nil, s.stream.CloseSend() })
}

func (s *clientStream) recv(goja.FunctionCall) goja.Value {
	return s.recvs.do(func() (proto.Message, error) {
		out := s.method.out.New().Interface()
		err := s.stream.RecvMsg(out)
		if err != nil || !s.method.stream.ServerStreams {
			s.end(struct{}{}, nil)
		}
		return received(out, err)
	})
}
