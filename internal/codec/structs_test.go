package codec

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"
)

// diff returns how the structs of the messages got and want differ, or "". A nil
// slice differs from an empty one. The messages' states and cached sizes are
// ignored.
func diff(got, want any) string {
	return diffValues("", reflect.ValueOf(got), reflect.ValueOf(want))
}

func diffValues(path string, got, want reflect.Value) string {
	if got.IsValid() != want.IsValid() {
		return fmt.Sprintf("%s: got %v, want %v", path, got, want)
	}
	if !got.IsValid() {
		return ""
	}
	if got.Type() != want.Type() {
		return fmt.Sprintf("%s: got a %v, want a %v", path, got.Type(), want.Type())
	}
	switch got.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		if strings.HasSuffix(path, ".extensionFields") && got.Len() == want.Len() {
			return "" // proto.Equal compares what they hold
		}
		if got.IsNil() != want.IsNil() {
			return fmt.Sprintf("%s: is nil: got %v, want %v", path, got.IsNil(), want.IsNil())
		}
	}
	switch got.Kind() {
	case reflect.Pointer, reflect.Interface:
		if got.IsNil() {
			return ""
		}
		return diffValues(path, got.Elem(), want.Elem())
	case reflect.Struct:
		for i := range got.NumField() {
			name := got.Type().Field(i).Name
			if name == "state" || name == "sizeCache" || strings.HasPrefix(name, "XXX_raceDetectHookData") {
				continue
			}
			if d := diffValues(path+"."+name, got.Field(i), want.Field(i)); d != "" {
				return d
			}
		}
		return ""
	case reflect.Slice, reflect.Array:
		if got.Len() != want.Len() {
			return fmt.Sprintf("%s: length: got %d, want %d", path, got.Len(), want.Len())
		}
		if got.Kind() == reflect.Slice && got.Type().Elem().Kind() == reflect.Uint8 {
			if !bytes.Equal(got.Bytes(), want.Bytes()) {
				return fmt.Sprintf("%s: got %q, want %q", path, got.Bytes(), want.Bytes())
			}
			return ""
		}
		for i := range got.Len() {
			if d := diffValues(fmt.Sprintf("%s[%d]", path, i), got.Index(i), want.Index(i)); d != "" {
				return d
			}
		}
		return ""
	case reflect.Map:
		if got.Len() != want.Len() {
			return fmt.Sprintf("%s: length: got %d, want %d", path, got.Len(), want.Len())
		}
		for _, k := range want.MapKeys() {
			if d := diffValues(fmt.Sprintf("%s[%v]", path, k), got.MapIndex(k), want.MapIndex(k)); d != "" {
				return d
			}
		}
		return ""
	case reflect.Float32, reflect.Float64:
		g, w := math.Float64bits(got.Float()), math.Float64bits(want.Float())
		if g != w {
			return fmt.Sprintf("%s: bits: got %x, want %x", path, g, w)
		}
		return ""
	default:
		if !got.Equal(want) {
			return fmt.Sprintf("%s: got %v, want %v", path, got, want)
		}
		return ""
	}
}

// scramble overwrites everything that a message of the open API refers to.
func scramble(m proto.Message) { scrambleValue(reflect.ValueOf(m)) }

func scrambleValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if m, ok := v.Interface().(proto.Message); ok {
			u := m.ProtoReflect().GetUnknown()
			for i := range u {
				u[i] += 101
			}
		}
		scrambleValue(v.Elem())
	case reflect.Interface:
		scrambleValue(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				scrambleValue(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			scrambleValue(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			switch e := v.MapIndex(k); e.Kind() {
			case reflect.Pointer, reflect.Slice:
				scrambleValue(e)
			}
			v.SetMapIndex(k, reflect.Value{})
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 101)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 101)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(v.Float() + 101)
	case reflect.String:
		v.SetString(v.String() + "scrambled")
	}
}

// A weaver fills messages of the open API with values drawn from bytes. It prefers
// values that decoding never produces. It changes nothing once the bytes are used
// up.
type weaver struct {
	bytes []byte
}

func (w *weaver) draw(n int) int {
	if len(w.bytes) == 0 {
		return 0
	}
	b := w.bytes[0]
	w.bytes = w.bytes[1:]
	return int(b) % n
}

var unknowns = []string{
	"\xd0\x3e\x01",                 // field 1002, a number
	"\xca\x3e\x03abc",              // field 1001, bytes
	"\xcb\x3e\x08\x01\xcc\x3e",     // field 1001, a group
	"\x08\x01",                     // field 1, which most messages define
	"\xca\x3e\x03a",                // truncated
	"\x0c",                         // the end of a group
	"\xca\xbe\x00\x01a",            // a tag that is not minimally encoded
	"\xa2\x06\x01x",                // field 100, an extension of Extendable
	"\xf8\xff\xff\xff\x8f\x80\x01", // a field number that is too large
}

func (w *weaver) message(m proto.Message, depth int) {
	v := reflect.ValueOf(m).Elem()
	if v.Type().Field(0).Name != "state" {
		return
	}
	if w.draw(16) == 1 {
		m.ProtoReflect().SetUnknown([]byte(unknowns[w.draw(len(unknowns))]))
	}
	// Set only a few fields of each message, so that the bytes reach many of them.
	for range w.draw(6) {
		i := w.draw(v.NumField())
		if v.Type().Field(i).IsExported() {
			w.value(v.Field(i), m, depth)
		}
	}
}

func (w *weaver) value(v reflect.Value, within proto.Message, depth int) {
	t := v.Type()
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(w.draw(2) == 1)
	case reflect.Int32, reflect.Int64:
		v.SetInt([]int64{0, 1, -1, 300, math.MaxInt32, math.MinInt32}[w.draw(6)])
	case reflect.Uint32, reflect.Uint64:
		v.SetUint([]uint64{0, 1, 300, math.MaxUint32}[w.draw(4)])
	case reflect.Float32, reflect.Float64:
		v.SetFloat([]float64{0, math.Copysign(0, -1), 1.5, math.NaN(), math.Inf(1)}[w.draw(5)])
	case reflect.String:
		v.SetString(w.text())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			v.SetBytes([][]byte{nil, {}, []byte("data"), bytes.Repeat([]byte{0xff}, 200), []byte(w.text())}[w.draw(5)])
			return
		}
		n := w.draw(5) - 1
		if n < 0 {
			v.SetZero()
			return
		}
		v.Set(reflect.MakeSlice(t, n, n))
		for i := range n {
			w.value(v.Index(i), within, depth)
		}
	case reflect.Pointer:
		if w.draw(4) == 0 || depth == 0 {
			v.SetZero()
			return
		}
		v.Set(reflect.New(t.Elem()))
		if m, ok := v.Interface().(proto.Message); ok {
			w.message(m, depth-1)
			return
		}
		w.value(v.Elem(), within, depth)
	case reflect.Map:
		n := w.draw(4) - 1
		if n < 0 {
			v.SetZero()
			return
		}
		v.Set(reflect.MakeMap(t))
		for range n {
			key := reflect.New(t.Key()).Elem()
			elem := reflect.New(t.Elem()).Elem()
			w.value(key, within, depth)
			w.value(elem, within, depth)
			v.SetMapIndex(key, elem)
		}
	case reflect.Interface:
		types := wrappersOf(within, t)
		i := w.draw(len(types) + 1)
		if i == 0 {
			v.SetZero()
			return
		}
		if w.draw(8) == 1 {
			v.Set(reflect.Zero(types[i-1]))
			return
		}
		v.Set(reflect.New(types[i-1].Elem()))
		w.value(v.Elem().Elem().Field(0), within, depth)
	}
}

// wrappersOf returns m's wrapper types for the oneof whose interface type is t.
func wrappersOf(m proto.Message, t reflect.Type) []reflect.Type {
	var types []reflect.Type
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if od := fd.ContainingOneof(); od == nil || od.IsSynthetic() {
			continue
		}
		n := m.ProtoReflect().New()
		n.Set(fd, n.NewField(fd))
		s := reflect.ValueOf(n.Interface()).Elem()
		for j := range s.NumField() {
			if f := s.Field(j); f.Type() == t && !f.IsNil() {
				types = append(types, f.Elem().Type())
			}
		}
	}
	return types
}
