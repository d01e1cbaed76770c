package engine

import (
	"errors"
	"io"

	"github.com/dop251/goja"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A call is a call as its handler sees it.
type call struct {
	engine  *Engine
	handler *handler
	stream  grpc.ServerStream
	object  *goja.Object // what the function gets
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

// look tells the script that the caller is gone, if that is so: before it hears of it
// as an error of send or recv.
func (c *call) look() {
	if gone := c.stream.Context().Err(); gone != nil && c.engine.alive() == nil {
		c.abort(gone)
	}
}

// abort tells the script that the caller is gone.
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

// received is what recv is resolved to.
func received(m proto.Message, err error) (proto.Message, error) {
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return m, nil
}
