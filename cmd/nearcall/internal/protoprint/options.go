package protoprint

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func (p *printer) optionLines(d protoreflect.Descriptor) {
	for _, option := range p.options(d) {
		p.line("option %s;", option)
	}
}

// brackets returns options as they follow a field.
func brackets(options []string) string {
	if len(options) == 0 {
		return ""
	}
	return " [" + strings.Join(options, ", ") + "]"
}

// options returns the options of d, each as name = value.
func (p *printer) options(d protoreflect.Descriptor) []string { return p.set(d, d.Options()) }

// set returns what is set in options of d.
func (p *printer) set(d protoreflect.Descriptor, options protoreflect.ProtoMessage) (all []string) {
	m := p.extended(options)
	for _, f := range fields(m) {
		switch name := optionName(d, f); {
		case name == "uninterpreted_option" || name == "map_entry":
		case f.IsList():
			for i := range m.Get(f).List().Len() {
				all = append(all, name+" = "+value(f, m.Get(f).List().Get(i)))
			}
		case f.Message() != nil && !f.IsExtension(): // features
			inner := m.Get(f).Message()
			for _, g := range fields(inner) {
				all = append(all, name+"."+optionName(d, g)+" = "+value(g, inner.Get(g)))
			}
		default:
			all = append(all, name+" = "+value(f, m.Get(f)))
		}
	}
	return all
}

// extended returns options with the extensions that the resolver knows. They arrive as
// unknown fields.
func (p *printer) extended(options protoreflect.ProtoMessage) protoreflect.Message {
	m := options.ProtoReflect()
	if p.extensions == nil || !m.IsValid() {
		return m
	}
	encoded, err := proto.MarshalOptions{AllowPartial: true}.Marshal(options)
	if err != nil {
		return m
	}
	again := m.New()
	if (proto.UnmarshalOptions{AllowPartial: true, Resolver: resolver{p.extensions}}).Unmarshal(encoded, again.Interface()) != nil {
		return m
	}
	return again
}

// fields returns the fields that m has, in the order of their numbers.
func fields(m protoreflect.Message) (all []protoreflect.FieldDescriptor) {
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		all = append(all, f)
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number() - b.Number()) })
	return all
}

func optionName(d protoreflect.Descriptor, f protoreflect.FieldDescriptor) string {
	if f.IsExtension() {
		return "(" + ref(d, f) + ")"
	}
	return string(f.Name())
}

// value returns v as it follows an option's name or a field's name in a message. If f is a list,
// v is an element.
func value(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return quote(v.String(), false)
	case protoreflect.BytesKind:
		return quote(string(v.Bytes()), true)
	case protoreflect.FloatKind:
		return float(v.Float(), 32)
	case protoreflect.DoubleKind:
		return float(v.Float(), 64)
	case protoreflect.EnumKind:
		if known := f.Enum().Values().ByNumber(v.Enum()); known != nil {
			return string(known.Name())
		}
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return literal(v.Message())
	}
	return fmt.Sprint(v.Interface())
}

func literal(m protoreflect.Message) string {
	var all []string
	for _, f := range fields(m) {
		name := string(f.Name())
		if f.IsExtension() {
			name = "[" + string(f.FullName()) + "]"
		} else if f.Kind() == protoreflect.GroupKind {
			name = string(f.Message().Name())
		}
		switch {
		case f.IsList():
			for i := range m.Get(f).List().Len() {
				all = append(all, name+": "+value(f, m.Get(f).List().Get(i)))
			}
		case f.IsMap():
			var entries []string
			m.Get(f).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries = append(entries, fmt.Sprintf("%s: { key: %s value: %s }", name, value(f.MapKey(), k.Value()), value(f.MapValue(), v)))
				return true
			})
			slices.Sort(entries)
			all = append(all, entries...)
		default:
			all = append(all, name+": "+value(f, m.Get(f)))
		}
	}
	if len(all) == 0 {
		return "{}"
	}
	return "{ " + strings.Join(all, " ") + " }"
}

func defaultOf(f protoreflect.FieldDescriptor) string {
	if e := f.DefaultEnumValue(); e != nil {
		return string(e.Name())
	}
	return value(f, f.Default())
}

func float(v float64, bits int) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	return strconv.FormatFloat(v, 'g', -1, bits)
}

// quote returns a string literal. In bytes it escapes all that is not ASCII.
func quote(s string, isBytes bool) string {
	var b strings.Builder
	b.WriteByte('"')
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r < ' ' || r == 0x7f || r >= utf8.RuneSelf && isBytes || r == utf8.RuneError && size == 1:
			for i := range size {
				fmt.Fprintf(&b, `\%03o`, s[i])
			}
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String() + `"`
}
