package engine

import "github.com/dop251/goja"

// track takes in promises that are rejected without anybody to see it. Somebody may
// come for them before the script has done what it is at.
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
