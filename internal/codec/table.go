package codec

import (
	"math/bits"
	"reflect"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
)

// programs holds the programs of all Go types seen so far. Readers take no
// lock, because a table is immutable once it is published.
var programs struct {
	table atomic.Pointer[table]
	mu    sync.Mutex // held while compiling and publishing
	byGo  map[reflect.Type]*program
}

// programOf returns the program for v's Go type. v is not nil.
func programOf(v any) *program {
	if t := programs.table.Load(); t != nil {
		if p := t.lookup(typeOf(v)); p != nil {
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
	old := programs.table.Load()
	if old == nil {
		old = newTable(8)
	}
	if old.lookup(typeOf(v)) == nil {
		if !p.foreign { // no other goroutine reads plain before the type is in the table
			p.plain = isPlain(v.(proto.Message).ProtoReflect().New(), make(map[reflect.Type]bool))
		}
		programs.table.Store(old.with(typeOf(v), p))
	}
	return p
}

// A table maps types to programs by open addressing. At least half its slots are empty.
type table struct {
	shift uint // 64 - log2(len(slots))
	n     int
	slots []slot
}

type slot struct {
	typ typeID
	p   *program
}

func newTable(size int) *table {
	return &table{shift: uint(64 - bits.TrailingZeros(uint(size))), slots: make([]slot, size)}
}

func (t *table) lookup(typ typeID) *program {
	for i := t.home(typ); ; i++ {
		s := &t.slots[i&(len(t.slots)-1)]
		if s.typ == typ {
			return s.p
		}
		if s.p == nil {
			return nil
		}
	}
}

// with returns a copy of t that also maps typ to p.
func (t *table) with(typ typeID, p *program) *table {
	size := len(t.slots)
	if 2*(t.n+1) > size {
		size *= 2
	}
	u := newTable(size)
	for _, s := range t.slots {
		if s.p != nil {
			u.insert(s)
		}
	}
	u.insert(slot{typ, p})
	return u
}

func (t *table) insert(s slot) {
	i := t.home(s.typ)
	for t.slots[i&(len(t.slots)-1)].p != nil {
		i++
	}
	t.slots[i&(len(t.slots)-1)] = s
	t.n++
}

func (t *table) home(typ typeID) int {
	return int(typ.hash() >> t.shift)
}
