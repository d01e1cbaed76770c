package engine

import (
	"context"
	"reflect"

	"github.com/dop251/goja"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/loop"
)

// settled returns v, or if v is a promise, waits for it and returns what it resolves to. The
// caller must be a task, with no JavaScript function on the stack.
func (e *Engine) settled(ctx context.Context, v goja.Value) (goja.Value, error) {
	o, ok := v.(*goja.Object)
	if !ok {
		return v, nil
	}
	if o.ExportType() == promiseType { // exporting other types might run code of the script
		if p := o.Export().(*goja.Promise); p.State() == goja.PromiseStateFulfilled {
			return p.Result(), nil
		}
	}
	v, err := loop.Await(ctx, func(resume func(goja.Value, error)) {
		resolved := func(call goja.FunctionCall) goja.Value {
			resume(call.Argument(0), nil)
			return goja.Undefined()
		}
		rejected := func(call goja.FunctionCall) goja.Value {
			resume(nil, e.thrown(call.Argument(0)))
			return goja.Undefined()
		}
		if _, err := e.own.then(nil, v, e.vm.ToValue(resolved), e.vm.ToValue(rejected)); err != nil {
			resume(nil, e.failed(err))
		}
	})
	if dead := e.alive(); dead != nil {
		return nil, dead
	}
	return v, err
}

var promiseType = reflect.TypeFor[*goja.Promise]()

// A deferred is a promise for a script, with the functions that settle it.
type deferred struct {
	engine          *Engine
	promise         goja.Value
	resolve, reject func(any) error
}

func (e *Engine) newDeferred() *deferred {
	p, resolve, reject := e.vm.NewPromise()
	return &deferred{e, e.vm.ToValue(p), resolve, reject}
}

// settle resolves the promise to m, or to null if m is nil, or rejects it with err. It does
// nothing after the engine is stopped.
func (d *deferred) settle(m proto.Message, err error) {
	e := d.engine
	if e.alive() != nil {
		return
	}
	v := goja.Null()
	if err == nil && m != nil {
		v, err = e.toScript(m)
	}
	if err != nil {
		_ = d.reject(e.toThrow(err)) // fails if the script is stopped
		return
	}
	_ = d.resolve(v)
}

// inTask runs do as a task, and returns a promise of its result.
func (e *Engine) inTask(do func(ctx context.Context) (proto.Message, error)) goja.Value {
	d := e.newDeferred()
	err := e.loop.Go(func(ctx context.Context) {
		if e.alive() == nil {
			d.settle(do(ctx))
		}
	})
	if err != nil {
		d.settle(nil, unavailable(err))
	}
	return d.promise
}
