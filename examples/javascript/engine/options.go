package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/dop251/goja"
)

// options are a script's options of one call.
type options struct {
	engine  *Engine
	timeout time.Duration // 0 for none
	signal  *goja.Object  // nil for none
}

// longest is the greatest timeout in milliseconds. It fits in a Duration.
const longest = 1e12

func (e *Engine) readOptions(v goja.Value) (options, error) {
	o := options{engine: e}
	if goja.IsUndefined(v) || goja.IsNull(v) {
		return o, nil
	}
	given, ok := v.(*goja.Object)
	if !ok {
		return o, fmt.Errorf("the options of a call are an object, and %v is none", v)
	}
	if t := given.Get("timeout"); t != nil && !goja.IsUndefined(t) {
		ms := t.ToFloat()
		if !(ms > 0 && ms < longest) {
			return o, fmt.Errorf("a call's timeout is a number of milliseconds, and %v is none", t)
		}
		o.timeout = time.Duration(ms * float64(time.Millisecond))
	}
	if s := given.Get("signal"); s != nil && !goja.IsUndefined(s) {
		if o.signal, ok = s.(*goja.Object); !ok {
			return o, fmt.Errorf("a call's signal is an AbortSignal, and %v is none", s)
		}
	}
	return o, nil
}

// begin returns ctx with the options applied. end cancels it, and must be called.
func (o options) begin(ctx context.Context) (_ context.Context, end func()) {
	cancel := context.CancelFunc(nil)
	if o.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	if o.signal == nil {
		return ctx, cancel
	}
	listener := o.engine.vm.ToValue(func(goja.FunctionCall) goja.Value {
		cancel()
		return goja.Undefined()
	})
	e := o.engine
	if _, err := e.own.watch(nil, o.signal, listener); err != nil {
		e.report(e.failed(err))
	}
	return ctx, func() {
		cancel()
		if e.alive() != nil {
			return
		}
		if _, err := e.own.unwatch(nil, o.signal, listener); err != nil {
			e.report(e.failed(err))
		}
	}
}
