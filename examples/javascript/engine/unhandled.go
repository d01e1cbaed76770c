package engine

import "github.com/dop251/goja"

// track records promises that are rejected without a handler. The script may still add a
// handler before its current job ends.
func (e *Engine) track(p *goja.Promise, op goja.PromiseRejectionOperation) {
	if op == goja.PromiseRejectionHandle {
		delete(e.rejected, p)
		return
	}
	if len(e.rejected) == 0 {
		e.events.RunOnLoop(func(*goja.Runtime) { e.reportRejected() })
	}
	e.rejected[p] = struct{}{}
}

func (e *Engine) reportRejected() {
	rejected := e.rejected
	e.rejected = make(map[*goja.Promise]struct{})
	for p := range rejected {
		e.report(e.thrown(p.Result()))
	}
}
