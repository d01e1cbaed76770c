package codec

import (
	"reflect"
	"sync"

	"google.golang.org/protobuf/proto"
)

// programs holds the programs of all Go types seen so far.
var programs struct {
	ready sync.Map   // of *program, by typeID
	mu    sync.Mutex // held while compiling
	byGo  map[reflect.Type]*program
}

// programOf returns the program for v's Go type. v is not nil.
func programOf(v any) *program {
	if p, ok := programs.ready.Load(typeOf(v)); ok {
		return p.(*program)
	}
	return addProgram(v)
}

func addProgram(v any) *program {
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.byGo == nil {
		programs.byGo = make(map[reflect.Type]*program)
	}
	p := compile(programs.byGo, reflect.TypeOf(v))
	if _, again := programs.ready.Load(typeOf(v)); !again {
		if !p.foreign { // no other goroutine reads plain before the type is in ready
			p.plain = isPlain(v.(proto.Message).ProtoReflect().New(), make(map[reflect.Type]bool))
		}
		programs.ready.Store(typeOf(v), p)
	}
	return p
}
