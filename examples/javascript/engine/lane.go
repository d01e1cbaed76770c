package engine

import (
	"context"

	"github.com/dop251/goja"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/loop"
)

// A lane executes operations one after another. A gRPC stream allows one Send and one Recv at a
// time, but a script may call either again without awaiting the promise of the previous one.
type lane struct {
	engine *Engine
	busy   bool // a task executes queue
	queue  []func()
	idle   func(struct{}, error) // called when queue is empty; nil if no task waits for that
}

// do queues op, which may wait, and returns a promise of its result.
func (l *lane) do(op func() (proto.Message, error)) goja.Value {
	d := l.engine.newDeferred()
	if !l.busy {
		if err := l.engine.loop.Go(l.run); err != nil {
			d.settle(nil, unavailable(err))
			return d.promise
		}
		l.busy = true
	}
	l.queue = append(l.queue, func() { d.settle(op()) })
	return d.promise
}

func (l *lane) run(context.Context) {
	for len(l.queue) > 0 && l.engine.alive() == nil {
		op := l.queue[0]
		l.queue = l.queue[1:]
		op()
	}
	l.busy = false
	if l.idle != nil {
		l.idle(struct{}{}, nil)
	}
}

// drained waits until all operations have ended.
func (l *lane) drained(ctx context.Context) error {
	if !l.busy {
		return nil
	}
	_, err := loop.Await(ctx, func(resume func(struct{}, error)) { l.idle = resume })
	return err
}

func unavailable(err error) error { return status.Error(codes.Unavailable, err.Error()) }
