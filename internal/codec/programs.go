package codec

import (
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/protobuf/proto"
)

// programs holds the programs of all Go types seen so far.
var programs struct {
	ready atomic.Pointer[map[unsafe.Pointer]*program] // never changed: a copy replaces it
	mu    sync.Mutex                                  // held while compiling
	byGo  map[reflect.Type]*program
}

// programOf returns the program for v's Go type. v is not nil.
func programOf(v any) *program {
	if ready := programs.ready.Load(); ready != nil {
		if p := (*ready)[typeOf(v).p]; p != nil {
			return p
		}
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
	ready := make(map[unsafe.Pointer]*program)
	if old := programs.ready.Load(); old != nil {
		if (*old)[typeOf(v).p] != nil {
			return p
		}
		maps.Copy(ready, *old)
	}
	if !p.foreign { // no other goroutine reads plain before the type is in ready
		p.plain = isPlain(v.(proto.Message).ProtoReflect().New(), make(map[reflect.Type]bool))
	}
	ready[typeOf(v).p] = p
	programs.ready.Store(&ready)
	return p
}
