// Package protoprint writes descriptors as the proto source that they could come from,
// without its comments.
package protoprint

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Source returns d as proto source. A method stands in its service, and a field, oneof or
// value in its message or enum. Names of types are relative to the package of d.
//
// The resolver finds the extensions that are options of d; those that it does not find are
// left out. It may be nil.
func Source(d protoreflect.Descriptor, r protoregistry.ExtensionTypeResolver) string {
	p := &printer{extensions: r}
	switch d := d.(type) {
	case protoreflect.FileDescriptor:
		p.file(d)
	case protoreflect.ServiceDescriptor:
		p.service(d)
	case protoreflect.MethodDescriptor:
		p.block("service "+string(d.Parent().Name()), func() { p.method(d) })
	case protoreflect.MessageDescriptor:
		p.message(d)
	case protoreflect.EnumDescriptor:
		p.enum(d)
	case protoreflect.FieldDescriptor:
		if !d.IsExtension() {
			return Source(d.Parent(), r)
		}
		p.block("extend "+ref(d, d.ContainingMessage()), func() { p.field(d) })
	default: // a oneof or a value of an enum
		return Source(d.Parent(), r)
	}
	return p.text.String()
}

type printer struct {
	extensions protoregistry.ExtensionTypeResolver
	text       bytes.Buffer
	depth      int
}

func (p *printer) line(format string, args ...any) {
	p.text.WriteString(strings.Repeat("  ", p.depth))
	fmt.Fprintf(&p.text, format+"\n", args...)
}

// block prints what inside prints in braces, or empty braces.
func (p *printer) block(head string, inside func()) {
	p.line("%s {", head)
	before := p.text.Len()
	p.depth++
	inside()
	p.depth--
	if p.text.Len() == before {
		p.text.Truncate(before - len("\n"))
		p.text.WriteString("}\n")
		return
	}
	p.line("}")
}

func (p *printer) file(d protoreflect.FileDescriptor) {
	switch d.Syntax() {
	case protoreflect.Editions:
		edition := protodesc.ToFileDescriptorProto(d).GetEdition()
		p.line("edition = %q;", strings.TrimPrefix(edition.String(), "EDITION_"))
	default:
		p.line("syntax = %q;", d.Syntax().String())
	}
	if d.Package() != "" {
		p.line("package %s;", d.Package())
	}
	for i := range d.Imports().Len() {
		imported, kind := d.Imports().Get(i), ""
		if imported.IsPublic {
			kind = "public "
		}
		p.line("import %s%s;", kind, quote(imported.Path(), false))
	}
	p.optionLines(d)
	for i := range d.Services().Len() {
		p.service(d.Services().Get(i))
	}
	p.types(d, nil)
}

func (p *printer) service(d protoreflect.ServiceDescriptor) {
	p.block("service "+string(d.Name()), func() {
		p.optionLines(d)
		for i := range d.Methods().Len() {
			p.method(d.Methods().Get(i))
		}
	})
}

func (p *printer) method(d protoreflect.MethodDescriptor) {
	stream := func(is bool) string {
		if is {
			return "stream "
		}
		return ""
	}
	head := fmt.Sprintf("rpc %s(%s%s) returns (%s%s)", d.Name(),
		stream(d.IsStreamingClient()), ref(d, d.Input()), stream(d.IsStreamingServer()), ref(d, d.Output()))
	if len(p.options(d)) == 0 {
		p.line("%s;", head)
		return
	}
	p.block(head, func() { p.optionLines(d) })
}

// A scope is what can declare types: a file or a message.
type scope interface {
	Enums() protoreflect.EnumDescriptors
	Messages() protoreflect.MessageDescriptors
	Extensions() protoreflect.ExtensionDescriptors
}

// types prints what is declared in a scope, except groups, which are printed with their
// fields.
func (p *printer) types(in scope, groups map[protoreflect.FullName]bool) {
	for i := range in.Enums().Len() {
		p.enum(in.Enums().Get(i))
	}
	extensions := in.Extensions()
	for i := range extensions.Len() {
		if x := extensions.Get(i); isGroup(x) {
			groups = with(groups, x.Message().FullName())
		}
	}
	for i := range in.Messages().Len() {
		if m := in.Messages().Get(i); !m.IsMapEntry() && !groups[m.FullName()] {
			p.message(m)
		}
	}
	for i := 0; i < extensions.Len(); {
		extended := extensions.Get(i).ContainingMessage()
		p.block("extend "+ref(extensions.Get(i), extended), func() {
			for ; i < extensions.Len() && extensions.Get(i).ContainingMessage().FullName() == extended.FullName(); i++ {
				p.field(extensions.Get(i))
			}
		})
	}
}

func with(set map[protoreflect.FullName]bool, name protoreflect.FullName) map[protoreflect.FullName]bool {
	if set == nil {
		set = make(map[protoreflect.FullName]bool)
	}
	set[name] = true
	return set
}

func (p *printer) enum(d protoreflect.EnumDescriptor) {
	p.block("enum "+string(d.Name()), func() {
		p.optionLines(d)
		ranges := d.ReservedRanges()
		var all []string
		for i := range ranges.Len() {
			r := ranges.Get(i)
			all = append(all, span(int64(r[0]), int64(r[1]), maxEnum))
		}
		p.reserved(d, all, d.ReservedNames())
		for i := range d.Values().Len() {
			v := d.Values().Get(i)
			p.line("%s = %d%s;", v.Name(), v.Number(), brackets(p.options(v)))
		}
	})
}
