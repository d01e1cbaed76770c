package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall/cmd/nearcall/internal/schema"
)

var describeCommand = command{
	name: "describe", args: "TARGET [SYMBOL]", about: "print services, messages and enums as proto source",
	least: 1, most: 2, setup: describeJob,
	more: "SYMBOL is the full name of a service, method, message, enum or extension, or the path of a\n" +
		".proto file. Of a method its messages are printed, too. Without a symbol all services are printed.\n",
}

// describeJob adds the flags of nearcall describe to flags.
func describeJob(flags *flag.FlagSet) job {
	f := newConnFlags(flags)
	f.addFiles(flags)
	return job{
		do: func(ctx context.Context, args []string, std stdio) error {
			_, p, err := f.open(ctx, args[0])
			if err != nil {
				return err
			}
			defer p.close()
			if len(args) == 1 {
				return p.hint(p.describeAll(std.out))
			}
			return p.hint(p.describe(std.out, args[1]))
		},
		complete: f.completion((*remote).symbols),
	}
}

// describeAll prints all services.
func (p *remote) describeAll(w io.Writer) error {
	names, err := p.schema.Services()
	if err != nil {
		return err
	}
	for i, name := range names {
		if i > 0 {
			fmt.Fprintln(w)
		}
		switch d, err := p.schema.FindDescriptorByName(protoreflect.FullName(name)); {
		case errors.Is(err, protoregistry.NotFound):
			fmt.Fprintf(w, "// %s, which the server's reflection does not describe\n", clean(name))
		case err != nil:
			return err
		default:
			source(w, d)
		}
	}
	return nil
}

// describe prints the declaration, or the file, that symbol names.
func (p *remote) describe(w io.Writer, symbol string) error {
	if strings.HasSuffix(symbol, ".proto") {
		d, err := p.schema.FindFileByPath(symbol)
		if errors.Is(err, protoregistry.NotFound) {
			return fmt.Errorf("there is no file %q %s", symbol, p.where)
		}
		if err == nil {
			printSource(w, d)
		}
		return err
	}
	name := strings.ReplaceAll(strings.TrimLeft(symbol, "/."), "/", ".")
	d, err := p.schema.FindDescriptorByName(protoreflect.FullName(name))
	if errors.Is(err, protoregistry.NotFound) {
		return p.noSymbol(symbol)
	}
	if err != nil {
		return err
	}
	source(w, d)
	if m, ok := d.(protoreflect.MethodDescriptor); ok {
		fmt.Fprintln(w)
		source(w, m.Input())
		if m.Output().FullName() != m.Input().FullName() {
			fmt.Fprintln(w)
			source(w, m.Output())
		}
	}
	return nil
}

// source prints d below a comment that says where it is from.
func source(w io.Writer, d protoreflect.Descriptor) {
	if schema.Lacks(d) {
		fmt.Fprintf(w, "// %s, which the server's reflection does not describe\n", clean(string(d.FullName())))
		return
	}
	fmt.Fprintf(w, "// %s, from %s\n", clean(string(d.FullName())), clean(d.ParentFile().Path()))
	printSource(w, d)
}

// sourcePrinter prints full names, because its short ones can mean another type.
var sourcePrinter = protoprint.Printer{Compact: true, ForceFullyQualifiedNames: true}

// printSource prints d as proto source. A method stands in its service, and a field, oneof or value
// in its message or enum.
func printSource(w io.Writer, d protoreflect.Descriptor) {
	field, ok := d.(protoreflect.FieldDescriptor)
	_, oneof := d.(protoreflect.OneofDescriptor)
	_, value := d.(protoreflect.EnumValueDescriptor)
	if oneof || value || ok && !field.IsExtension() {
		d = d.Parent()
	}
	text, err := sourcePrinter.PrintProtoToString(d)
	if err != nil {
		text = fmt.Sprintf("// it cannot be printed: %q\n", err.Error())
	}
	if _, ok := d.(protoreflect.MethodDescriptor); ok {
		text = fmt.Sprintf("service %s {\n  %s\n}\n", d.Parent().Name(), strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  "))
	}
	fmt.Fprint(w, text)
}

// noSymbol returns the error for a symbol that could not be found.
func (p *remote) noSymbol(symbol string) error {
	names, err := p.symbols()
	if err != nil {
		return err
	}
	return fmt.Errorf("there is no %q %s%s; give the full name of a service, method, message or enum", symbol, p.where, didYouMean(symbol, names))
}

// symbols returns the names of the services, of their methods, and of the methods' messages.
func (p *remote) symbols() ([]string, error) {
	services, err := p.schema.Services()
	if err != nil {
		return nil, err
	}
	names, messages, seen := services, []string(nil), make(map[protoreflect.FullName]bool)
	for _, name := range services {
		d, _ := p.schema.FindDescriptorByName(protoreflect.FullName(name))
		s, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			continue // the others are still of use
		}
		names = append(names, methodNames(s)...)
		for i := range s.Methods().Len() {
			for _, m := range []protoreflect.MessageDescriptor{s.Methods().Get(i).Input(), s.Methods().Get(i).Output()} {
				if !seen[m.FullName()] {
					seen[m.FullName()] = true
					messages = append(messages, string(m.FullName()))
				}
			}
		}
	}
	return append(names, messages...), nil
}
