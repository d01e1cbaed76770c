package engine

import (
	"context"

	"github.com/dop251/goja"
)

// Run runs a script and returns the value of its last statement as JSON. If that value is a
// promise, for example from an async function, Run waits for it and returns what it resolves to.
// name is for error messages. An error that the script throws is a [*ScriptError].
//
// If ctx is done first, Run returns its error, but the script continues: only [Engine.Stop]
// interrupts a script.
func (e *Engine) Run(ctx context.Context, name, source string) (string, error) {
	program, err := goja.Compile(name, source, true)
	if err != nil {
		return "", err
	}
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	err = e.loop.Go(func(task context.Context) {
		task, cancel := context.WithCancel(task)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		text, err := e.run(task, program)
		done <- result{text, err}
	})
	if err != nil {
		return "", unavailable(err)
	}
	select {
	case r := <-done:
		return r.text, r.err
	case <-e.gone:
		return "", e.alive()
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (e *Engine) run(ctx context.Context, program *goja.Program) (string, error) {
	if err := e.alive(); err != nil {
		return "", err
	}
	v, err := e.vm.RunProgram(program)
	if err != nil {
		return "", e.failed(err)
	}
	if v, err = e.settled(ctx, v); err != nil {
		return "", err
	}
	text, err := e.own.stringify(nil, v)
	if err != nil {
		return "", e.failed(err)
	}
	if goja.IsUndefined(text) {
		return "null", nil
	}
	return text.String(), nil
}
