package protoprint

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	maxEnum   = math.MaxInt32
	maxNumber = 1<<29 - 1 // of a field
)

func (p *printer) message(d protoreflect.MessageDescriptor) {
	p.block("message "+string(d.Name()), func() { p.body(d) })
}

func (p *printer) body(d protoreflect.MessageDescriptor) {
	p.optionLines(d)
	var reserved []string
	for i := range d.ReservedRanges().Len() {
		r := d.ReservedRanges().Get(i)
		reserved = append(reserved, span(int64(r[0]), int64(r[1])-1, maxNumber))
	}
	p.reserved(d, reserved, d.ReservedNames())
	for i := range d.ExtensionRanges().Len() {
		r := d.ExtensionRanges().Get(i)
		p.line("extensions %s%s;", span(int64(r[0]), int64(r[1])-1, maxNumber), brackets(p.set(d, d.ExtensionRangeOptions(i))))
	}
	var groups map[protoreflect.FullName]bool
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if isGroup(f) {
			groups = with(groups, f.Message().FullName())
		}
		switch one := f.ContainingOneof(); {
		case one == nil || one.IsSynthetic():
			p.field(f)
		case one.Fields().Get(0).Number() == f.Number():
			p.block("oneof "+string(one.Name()), func() {
				p.optionLines(one)
				for j := range one.Fields().Len() {
					p.field(one.Fields().Get(j))
				}
			})
		}
	}
	p.types(d, groups)
}

// span returns a range of numbers. If last is at least most, it ends with the word max.
func span(first, last, most int64) string {
	switch {
	case first == last:
		return strconv.FormatInt(first, 10)
	case last >= most:
		return fmt.Sprintf("%d to max", first)
	}
	return fmt.Sprintf("%d to %d", first, last)
}

// reserved prints the numbers and names that d reserves.
func (p *printer) reserved(d protoreflect.Descriptor, numbers []string, names protoreflect.Names) {
	if len(numbers) > 0 {
		p.line("reserved %s;", strings.Join(numbers, ", "))
	}
	var all []string
	for i := range names.Len() {
		name := string(names.Get(i))
		if d.ParentFile().Syntax() != protoreflect.Editions {
			name = quote(name, false)
		}
		all = append(all, name)
	}
	if len(all) > 0 {
		p.line("reserved %s;", strings.Join(all, ", "))
	}
}

// isGroup reports whether f is declared as a group. In editions fields of messages that are
// encoded in this way look like any other.
func isGroup(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.GroupKind && f.ParentFile().Syntax() == protoreflect.Proto2
}

func (p *printer) field(f protoreflect.FieldDescriptor) {
	var opts []string
	if f.HasDefault() {
		opts = append(opts, "default = "+defaultOf(f))
	}
	if f.HasJSONName() && !f.IsExtension() && f.JSONName() != jsonName(string(f.Name())) {
		opts = append(opts, "json_name = "+quote(f.JSONName(), false))
	}
	tail := fmt.Sprintf(" = %d%s", f.Number(), brackets(append(opts, p.options(f)...)))
	switch {
	case f.IsMap():
		p.line("map<%s, %s> %s%s;", kind(f.MapKey()), kind(f.MapValue()), f.Name(), tail)
	case isGroup(f):
		p.block(label(f)+"group "+string(f.Message().Name())+tail, func() { p.body(f.Message()) })
	default:
		p.line("%s%s %s%s;", label(f), kind(f), f.Name(), tail)
	}
}

func label(f protoreflect.FieldDescriptor) string {
	one := f.ContainingOneof()
	switch syntax := f.ParentFile().Syntax(); {
	case f.IsList():
		return "repeated "
	case one != nil && !one.IsSynthetic():
		return ""
	case syntax == protoreflect.Proto2 && f.Cardinality() == protoreflect.Required:
		return "required "
	case syntax == protoreflect.Proto2, syntax == protoreflect.Proto3 && f.HasOptionalKeyword():
		return "optional "
	}
	return ""
}

func kind(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return ref(f, f.Message())
	case f.Enum() != nil:
		return ref(f, f.Enum())
	}
	return f.Kind().String()
}

// jsonName returns the JSON name that a field gets if its source does not say another.
func jsonName(name string) string {
	var b strings.Builder
	upper := false
	for i := range len(name) {
		c := name[i]
		if c != '_' {
			if upper && 'a' <= c && c <= 'z' {
				c -= 'a' - 'A'
			}
			b.WriteByte(c)
		}
		upper = c == '_'
	}
	return b.String()
}

// ref returns the name of a type or option as d, which mentions it, can write it. In proto source the
// innermost scope that declares the first part of a name decides what it means.
func ref(d, to protoreflect.Descriptor) string {
	if to.IsPlaceholder() {
		return strings.TrimPrefix(string(to.FullName()), "*.")
	}
	full, pkg := string(to.FullName()), string(d.ParentFile().Package())
	name := full
	if pkg != "" && pkg == string(to.ParentFile().Package()) {
		name = strings.TrimPrefix(full, pkg+".")
	}
	first, _, _ := strings.Cut(name, ".")
	meant := protoreflect.FullName(strings.TrimSuffix(full, name) + first)
	for in := d; in != nil; in = in.Parent() {
		s, ok := in.(scope)
		if !ok {
			continue // it declares no types
		}
		found := in.FullName().Append(protoreflect.Name(first))
		declares := s.Messages().ByName(protoreflect.Name(first)) != nil || s.Enums().ByName(protoreflect.Name(first)) != nil
		if declares && found != meant {
			return "." + full
		}
	}
	if _, outer, ok := strings.Cut(pkg, "."); ok && name == full && strings.Contains("."+outer+".", "."+first+".") {
		return "." + full // an enclosing package has the name, too
	}
	return name
}
