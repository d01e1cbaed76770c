package engine

import (
	"errors"
	"io"

	"github.com/dop251/goja"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A call is the server side of a gRPC call. The handler gets its object as the last argument.
type call struct {
	engine  *Engine
	handler *handler
	stream  grpc.ServerStream
	object  *goja.Object // the argument of the handler
	signal  goja.Value
	sends   lane
	recvs   lane
}

func (e *Engine) newCall(h *handler, stream grpc.ServerStream) (*call, error) {
	signal, err := e.own.signal(nil)
	if err != nil {
		return nil, err
	}
	c := &call{engine: e, handler: h, stream: stream, object: e.vm.NewObject(), signal: signal,
		sends: lane{engine: e}, recvs: lane{engine: e}}
	err = c.object.Set("signal", signal)
	if h.manyOut {
		err = errors.Join(err, c.object.Set("send", c.send))
	}
	if h.manyIn {
		err = errors.Join(err, c.object.Set("recv", c.recv))
	}
	return c, err
}

// look aborts the script's signal if the caller is gone, so that the script learns that
// before send or recv fails.
func (c *call) look() {
	if gone := c.stream.Context().Err(); gone != nil && c.engine.alive() == nil {
		c.abort(gone)
	}
}

// abort aborts the script's signal, because the caller is gone.
func (c *call) abort(reason error) {
	e := c.engine
	if _, err := e.own.abort(nil, c.signal, e.toThrow(reason)); err != nil {
		e.report(e.failed(err))
	}
}

func (c *call) send(args goja.FunctionCall) goja.Value {
	out := c.handler.out.New().Interface()
	if err := c.engine.fromScript(args.Argument(0), out); err != nil {
		c.engine.raise(err)
	}
	return c.sends.do(func() (proto.Message, error) {
		err := c.stream.SendMsg(out)
		c.look()
		return nil, err
	})
}

func (c *call) recv(goja.FunctionCall) goja.Value {
	return c.recvs.do(func() (proto.Message, error) {
		in := c.handler.in.New().Interface()
		err := c.stream.RecvMsg(in)
		c.look()
		return received(in, err)
	})
}

// received returns the result of the promise of recv: nil at the end of the stream.
func received(m proto.Message, err error) (proto.Message, error) {
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return m, nil
}
