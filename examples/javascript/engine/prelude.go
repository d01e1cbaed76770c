package engine

import (
	_ "embed"

	"github.com/dop251/goja"
	"google.golang.org/grpc/codes"
)

//go:embed prelude.js
var prelude string

// own holds the engine's own JavaScript functions, which scripts cannot replace.
type own struct {
	parse, stringify      goja.Callable
	then                  goja.Callable
	signal, abort         goja.Callable
	watch, unwatch        goja.Callable
	statusError, describe goja.Callable
}

// prepare defines the global objects for scripts in vm. It panics if prelude.js is wrong.
func prepare(vm *goja.Runtime) own {
	all := vm.NewObject()
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		must(all.Set(c.String(), int(c)))
	}
	must(vm.Set("codes", all))
	result, err := vm.RunScript("prelude.js", prelude)
	must(err)
	made := result.ToObject(vm)
	function := func(name string) goja.Callable {
		f, ok := goja.AssertFunction(made.Get(name))
		if !ok {
			panic("engine: prelude.js has no function " + name)
		}
		return f
	}
	return own{
		parse: function("parse"), stringify: function("stringify"),
		then:   function("then"),
		signal: function("signal"), abort: function("abort"),
		watch: function("watch"), unwatch: function("unwatch"),
		statusError: function("statusError"), describe: function("describe"),
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
