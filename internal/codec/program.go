package codec

import (
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// maxDepth is the deepest nesting of messages that decoding accepts.
const maxDepth = protowire.DefaultRecursionLimit

// A program copies, encodes and decodes messages of one Go type. Copying fails if
// the copy would differ from the result of marshalling and unmarshalling. Encoding
// and decoding fail if protobuf-go must do them.
//
// Copying writes only fields that are not zero, so the destination must be zero.
type program struct {
	goType   reflect.Type // the struct
	size     uintptr      // of the struct
	foreign  bool         // the struct is not recognised and must not be copied
	requires bool         // the message itself has required fields
	plain    bool         // see isPlain; set only for types in programs.ready
	ops      []op
	ext      uintptr           // offset of the extension fields, or 0
	unknown  uintptr           // offset of the unknown fields, or 0
	nests    bool              // messages of this type can contain messages
	fields   []field           // by number, for small numbers
	far      map[uint64]*field // by number, for all others

	encoding, decoding attempts
}

// An op copies, encodes and decodes one field, or one oneof.
type op struct {
	code     opcode
	utf8     bool   // strings must be valid UTF-8
	required bool   // the field must be set
	always   bool   // the field counts as set whatever its value
	packed   bool   // a list of scalars is encoded as one field
	group    bool   // messages are encoded as groups
	width    uint8  // how many bytes of a field are zero if it is not set; 0 for keys and values of maps, and in oneofs
	tag      uint8  // size of the tags of a value in bytes
	max      uint8  // maximum encoded size of a scalar in bytes, with its tag if not packed
	form     form   // of a scalar
	wireTag  uint32 // the tag before a value; for groups, the tag of the start
	// alternative is the tag of the packed value if wireTag is the tag of an unpacked one, or the
	// reverse. It is zero, except for lists of scalars.
	alternative uint32
	off         uintptr
	sub         *program // for message fields
	oneof       *oneof
	entries     *mapEntries
}

type opcode uint8

// The opcodes are named for the representation of the field in memory.
const (
	opBool opcode = iota
	op32
	op64
	opBoolPtr
	op32Ptr
	op64Ptr
	opString
	opStringPtr
	opBytes         // set if not empty
	opPresenceBytes // set if not nil
	opBools
	op32s
	op64s
	opStrings
	opByteses
	opMessage
	opMessages
	opOneof
	opMap
)

// A failure is the reason why a program did not copy a message. Failures are compared by pointer.
type failure struct {
	// path holds the message that nests too deeply, and then each message that contains the
	// previous one. It is nil for other failures.
	path []ptr
}

var (
	// throughBytes means that the message must be marshalled.
	throughBytes = new(failure)
	// refused means that marshalling would fail.
	refused = new(failure)
)

// within appends m, the message that contains the failure, to f's path.
func (f *failure) within(m ptr) *failure {
	if f.path != nil {
		f.path = append(f.path, m)
	}
	return f
}

// cyclic reports whether a message on f's path contains itself.
func (f *failure) cyclic() bool {
	seen := make(map[ptr]bool, len(f.path))
	for _, m := range f.path {
		if seen[m] {
			return true
		}
		seen[m] = true
	}
	return false
}

func tooDeep(m ptr) *failure { return &failure{path: []ptr{m}} }

func (p *program) newMessage() any { return reflect.New(p.goType).Interface() }

// replace makes dst a copy of src, whatever dst holds. If it fails, dst is
// unchanged. Neither is nil.
func (p *program) replace(dst, src any) (bound int, f *failure) {
	if dataOf(dst).zero(p.size) {
		bound, f = p.copy(dataOf(dst), dataOf(src), maxDepth-1)
		if f != nil {
			proto.Reset(dst.(proto.Message))
		}
		return bound, f
	}
	c := p.newMessage()
	if bound, f = p.copy(dataOf(c), dataOf(src), maxDepth-1); f == nil {
		p.share(dataOf(dst), dataOf(c))
	}
	return bound, f
}

// clone returns a copy of src. The copy of a nil src is an empty message.
func (p *program) clone(src ptr, depth int) (dst ptr, bound int, f *failure) {
	if p.foreign {
		return ptr{}, 0, throughBytes
	}
	if depth == 0 {
		return ptr{}, 0, tooDeep(src)
	}
	if src.isNil() {
		if p.requires {
			return ptr{}, 0, refused
		}
		return alloc(p.goType), 0, nil
	}
	dst = alloc(p.goType)
	bound, f = p.copy(dst, src, depth-1)
	return dst, bound, f
}

// copy copies src to dst, which must be zero. It fails if the messages within
// src nest deeper than depth.
func (p *program) copy(dst, src ptr, depth int) (bound int, f *failure) {
	for i := range p.ops {
		o := &p.ops[i]
		d, s := dst.at(o.off), src.at(o.off)
		if o.unset(s) {
			if o.required {
				return 0, refused
			}
			continue
		}
		switch o.code {
		case opBool:
			*as[uint8](d) = *as[uint8](s)
			bound += int(o.max)
		case op32:
			*as[uint32](d) = *as[uint32](s)
			bound += int(o.max)
		case op64:
			*as[uint64](d) = *as[uint64](s)
			bound += int(o.max)
		case opBoolPtr:
			*as[*uint8](d) = new(**as[*uint8](s))
			bound += int(o.max)
		case op32Ptr:
			*as[*uint32](d) = new(**as[*uint32](s))
			bound += int(o.max)
		case op64Ptr:
			*as[*uint64](d) = new(**as[*uint64](s))
			bound += int(o.max)
		case opBools:
			bound += copyScalars[uint8](o, d, s)
		case op32s:
			bound += copyScalars[uint32](o, d, s)
		case op64s:
			bound += copyScalars[uint64](o, d, s)
		case opString:
			if v := *s.string(); v != "" || o.always {
				if o.utf8 && !utf8.ValidString(v) {
					return 0, refused
				}
				*d.string() = v
				bound += o.sizeBytes(len(v))
			}
		case opStringPtr:
			v := **s.stringPtr()
			if o.utf8 && !utf8.ValidString(v) {
				return 0, refused
			}
			*d.stringPtr() = new(v)
			bound += o.sizeBytes(len(v))
		case opBytes:
			if v := *s.bytes(); len(v) > 0 {
				*d.bytes() = clone(v)
				bound += o.sizeBytes(len(v))
			}
		case opPresenceBytes:
			v := *s.bytes()
			*d.bytes() = clone(v)
			bound += o.sizeBytes(len(v))
		case opStrings:
			if v := *s.stringSlice(); len(v) > 0 {
				for _, e := range v {
					if o.utf8 && !utf8.ValidString(e) {
						return 0, refused
					}
					bound += o.sizeBytes(len(e))
				}
				*d.stringSlice() = clone(v)
			}
		case opByteses:
			if v := *s.bytesSlice(); len(v) > 0 {
				list := make([][]byte, len(v))
				for i, e := range v {
					list[i] = clone(e)
					bound += o.sizeBytes(len(e))
				}
				*d.bytesSlice() = list
			}
		case opMessage:
			m, n, f := o.sub.clone(*s.message(), depth)
			if f != nil {
				return 0, f.within(src)
			}
			*d.message() = m
			bound += o.sizeBytes(n)
		case opMessages:
			if v := *s.messageSlice(); len(v) > 0 {
				list := make([]ptr, len(v))
				for i, e := range v {
					m, n, f := o.sub.clone(e, depth)
					if f != nil {
						return 0, f.within(src)
					}
					list[i] = m
					bound += o.sizeBytes(n)
				}
				*d.messageSlice() = list
			}
		case opOneof:
			if v := *s.iface(); !v.data.isNil() {
				w, n, f := o.oneof.clone(v, depth)
				if f != nil {
					return 0, f.within(src)
				}
				*d.iface() = w
				bound += n
			}
		case opMap:
			n, f := o.entries.copy(o.entries, d, s, depth)
			if f != nil {
				return 0, f.within(src)
			}
			bound += n
		}
	}
	if p.ext != 0 && len(*src.at(p.ext).extensions()) > 0 {
		return 0, throughBytes
	}
	if p.unknown != 0 {
		if v := *src.at(p.unknown).bytes(); len(v) > 0 {
			if !p.keepAll(dst.at(p.unknown).bytes(), v) {
				return 0, throughBytes
			}
			bound += len(v)
		}
	}
	return bound, nil
}

// sizeBytes returns the encoded size of n bytes with their length prefix and tags.
func (o *op) sizeBytes(n int) int { return int(o.tag) + protowire.SizeBytes(n) }

// copyScalars returns an upper bound of the encoded size of the list, packed or not.
func copyScalars[T word](o *op, d, s ptr) (bound int) {
	v := *as[[]T](s)
	if len(v) == 0 {
		return 0
	}
	*as[[]T](d) = clone(v)
	return o.sizeBytes(len(v) * int(o.max))
}

// clone returns a copy of v. The copy is never nil. This is cheaper than appending v to an empty
// slice.
func clone[T any](v []T) []T {
	c := make([]T, len(v))
	copy(c, v)
	return c
}

// A oneof copies a oneof field, whose Go type is an interface that holds a
// pointer to one of several wrapper structs.
type oneof struct {
	wrappers []wrapper
}

// A wrapper is a program for one wrapper struct. The struct has one field, which always counts as
// set.
type wrapper struct {
	tab itab // of an iface that holds a pointer to the struct
	*program
}

// clone returns a copy of v, which holds a non-nil pointer.
func (o *oneof) clone(v iface, depth int) (w iface, bound int, f *failure) {
	p := o.wrapperOf(v)
	if p == nil {
		return iface{}, 0, throughBytes
	}
	w = iface{v.tab, alloc(p.goType)}
	bound, f = p.copy(w.data, v.data, depth)
	return w, bound, f
}

// wrapperOf returns the wrapper that v points to, or nil if o has no such wrapper.
func (o *oneof) wrapperOf(v iface) *wrapper {
	for i := range o.wrappers {
		if w := &o.wrappers[i]; w.tab == v.tab {
			return w
		}
	}
	return nil
}

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
