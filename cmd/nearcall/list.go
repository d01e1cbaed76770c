package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

var listCommand = command{
	name: "list", args: "TARGET [SERVICE]", about: "list the services of a server, or the methods of one",
	least: 1, most: 2, setup: listJob,
}

// listJob adds the flags of nearcall list to flags.
func listJob(flags *flag.FlagSet) job {
	f := newConnFlags(flags)
	f.addFiles(flags)
	return job{
		do: func(ctx context.Context, args []string, std stdio) error {
			_, p, err := f.open(ctx, args[0])
			if err != nil {
				return err
			}
			defer p.close()
			var names []string
			if len(args) == 1 {
				names, err = p.schema.Services()
			} else if s, findErr := p.service(args[1]); findErr == nil {
				names = methodNames(s)
			} else {
				err = findErr
			}
			if err != nil {
				return p.hint(err)
			}
			for _, name := range names {
				fmt.Fprintln(std.out, clean(name))
			}
			return nil
		},
		complete: f.completion((*remote).serviceNames),
	}
}

// methodNames returns the methods of a service as call takes them.
func methodNames(s protoreflect.ServiceDescriptor) (names []string) {
	for i := range s.Methods().Len() {
		names = append(names, fmt.Sprintf("%s/%s", s.FullName(), s.Methods().Get(i).Name()))
	}
	return names
}

// service returns the service with a name. Its error suggests others.
func (p *remote) service(name string) (protoreflect.ServiceDescriptor, error) {
	d, err := p.schema.FindDescriptorByName(protoreflect.FullName(strings.TrimPrefix(name, ".")))
	if errors.Is(err, protoregistry.NotFound) {
		return nil, p.noService(name)
	}
	if err != nil {
		return nil, err
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a service; 'nearcall list %s' lists them", name, p.again)
	}
	return s, nil
}

// noService returns the error for a service that could not be found.
func (p *remote) noService(name string) error {
	services, err := p.schema.Services()
	if err != nil {
		return err
	}
	for _, s := range services {
		if s == name {
			return fmt.Errorf("the server has the service %s, but its reflection does not describe it", name)
		}
	}
	return fmt.Errorf("there is no service %q %s%s; 'nearcall list %s' lists them", name, p.where, didYouMean(name, services), p.again)
}

// method returns the method with a name, which is written pkg.Service/Method or
// pkg.Service.Method. Its error suggests others.
func (p *remote) method(name string) (protoreflect.MethodDescriptor, error) {
	name = strings.TrimLeft(name, "/.")
	cut := strings.LastIndexAny(name, "/.")
	if cut < 0 {
		methods, err := p.methods()
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%q is not a method: write it as pkg.Service/Method%s", name, didYouMean(name, methods))
	}
	s, err := p.service(name[:cut])
	if err != nil {
		return nil, err
	}
	m := s.Methods().ByName(protoreflect.Name(name[cut+1:]))
	if m == nil {
		return nil, fmt.Errorf("%s has no method %q%s; 'nearcall list %s %s' lists them",
			s.FullName(), name[cut+1:], didYouMean(name[cut+1:], methodNames(s)), p.again, s.FullName())
	}
	return m, nil
}

// methods returns the methods of all services that the server describes.
func (p *remote) methods() (names []string, err error) {
	services, err := p.schema.Services()
	if err != nil {
		return nil, err
	}
	for _, name := range services {
		d, err := p.schema.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil && !errors.Is(err, protoregistry.NotFound) {
			return nil, err
		}
		if s, ok := d.(protoreflect.ServiceDescriptor); ok {
			names = append(names, methodNames(s)...)
		}
	}
	return names, nil
}
