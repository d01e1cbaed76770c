package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fullstorydev/grpcurl"
	"github.com/jhump/protoreflect/desc" //lint:ignore SA1019 its types are in the API of grpcurl
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func listCommand() *cobra.Command {
	f := new(connFlags)
	c := &cobra.Command{
		Use: "list TARGET [SERVICE]", Short: "list the services of a server, or the methods of one",
		Long: "It prints the services of a server, or the methods of one. With -proto or -protoset TARGET can be left out.",
		Args: f.lookArgs, ValidArgsFunction: f.complete((*remote).services),
		RunE: func(c *cobra.Command, args []string) error {
			args = f.withTarget(args)
			_, p, err := f.open(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.close()
			var names []string
			if len(args) == 1 {
				names, err = p.services()
			} else if d, findErr := p.find(args[1]); findErr == nil {
				names, err = grpcurl.ListMethods(p.source, d.GetFullyQualifiedName())
			} else {
				err = findErr
			}
			for _, name := range names {
				fmt.Fprintln(c.OutOrStdout(), clean(name))
			}
			return err
		},
	}
	f.add(c)
	f.addFiles(c)
	return c
}

func describeCommand() *cobra.Command {
	f := new(connFlags)
	var template bool
	c := &cobra.Command{
		Use: "describe TARGET [SYMBOL]", Short: "print services, messages and enums as proto source",
		Long: "SYMBOL is the full name of a service, method, message, field, enum or extension. Of a method its messages\n" +
			"are printed, too. Without a symbol all services are printed. With -proto or -protoset TARGET can be left out.",
		Args: f.lookArgs, ValidArgsFunction: f.complete((*remote).symbols),
		RunE: func(c *cobra.Command, args []string) error {
			args = f.withTarget(args)
			_, p, err := f.open(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.close()
			symbols := args[1:]
			if len(symbols) == 0 {
				if symbols, err = p.services(); err != nil {
					return err
				}
			}
			for _, symbol := range symbols {
				d, err := p.find(symbol)
				if err != nil && len(args) > 1 {
					return err
				}
				if err != nil { // the others are still of use
					fmt.Fprintf(c.OutOrStdout(), "%s is not described: %s\n", clean(symbol), inset(err.Error()))
					continue
				}
				all := []desc.Descriptor{d}
				if m, ok := d.(*desc.MethodDescriptor); ok {
					all = append(all, m.GetInputType(), m.GetOutputType())
				}
				for _, d := range all {
					if err := p.print(c, d, template); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	f.add(c)
	f.addFiles(c)
	c.Flags().BoolVar(&template, "msg-template", false, "print an example of a message in JSON, too")
	return c
}

// lookArgs checks the arguments of list and describe.
func (f *connFlags) lookArgs(c *cobra.Command, args []string) error {
	return cobra.RangeArgs(1, 2)(c, f.withTarget(args))
}

// withTarget returns the arguments of list and describe, with a target that is never called if there is
// none. Files do without one, as with grpcurl. Names of services and symbols have no colon.
func (f *connFlags) withTarget(args []string) []string {
	if len(f.protos)+len(f.sets) > 0 && (len(args) == 0 || len(args) == 1 && !strings.Contains(args[0], ":")) {
		return append([]string{"tcp:localhost:1"}, args...)
	}
	return args
}

// print prints a declaration, and for a message an example if template is set.
func (p *remote) print(c *cobra.Command, d desc.Descriptor, template bool) error {
	text, err := grpcurl.GetDescriptorText(d, p.source)
	if err != nil {
		return err
	}
	kind := "a symbol"
	switch d := d.(type) {
	case *desc.ServiceDescriptor:
		kind = "a service"
	case *desc.MethodDescriptor:
		kind = "a method"
	case *desc.MessageDescriptor:
		kind = "a message"
	case *desc.EnumDescriptor:
		kind = "an enum"
	case *desc.FieldDescriptor:
		if kind = "a field"; d.IsExtension() {
			kind = "an extension"
		}
	}
	fmt.Fprintf(c.OutOrStdout(), "%s is %s:\n%s\n", clean(d.GetFullyQualifiedName()), kind, text)
	if m, ok := d.(*desc.MessageDescriptor); ok && template {
		_, format, err := grpcurl.RequestParserAndFormatter(grpcurl.FormatJSON, p.source, nil, grpcurl.FormatOptions{EmitJSONDefaultFields: true})
		if err == nil {
			text, err = format(grpcurl.MakeTemplate(m))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "\nMessage template:\n%s\n", text)
	}
	return nil
}

// The exit codes of nearcall health are those of grpc-health-probe.
const (
	exitProbeMisused     = 1
	exitProbeUnconnected = 2
	exitProbeFailed      = 3
	exitProbeUnhealthy   = 4
)

func healthCommand() *cobra.Command {
	f := &connFlags{maxTime: seconds(2 * time.Second)}
	c := &cobra.Command{
		Use: "health TARGET [SERVICE]", Short: "ask a server, or one of its services, whether it serves",
		Long: "It calls grpc.health.v1.Health/Check, as grpc-health-probe and Kubernetes do, and prints the status.",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: f.complete((*remote).services),
		Annotations: map[string]string{exits: "Exit codes, those of grpc-health-probe: 0 SERVING, 1 wrong command line, 2 no connection, 3 the call\n" +
			"failed or took too long, 4 another status than SERVING; and 130 interrupted"},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, p, err := f.open(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.close()
			req := &healthpb.HealthCheckRequest{Service: append(args, "")[1]}
			limited, cancel := context.WithTimeout(ctx, time.Duration(f.connectTimeout))
			defer cancel()
			connected := connect(limited, p.conn)
			reply, err := healthpb.NewHealthClient(p.conn).Check(ctx, req)
			switch {
			case err != nil && !connected:
				return exitError{p.hint(err), exitProbeUnconnected}
			case err != nil:
				return exitError{p.hint(noHealth(err, req.Service)), exitProbeFailed}
			case reply.GetStatus() != healthpb.HealthCheckResponse_SERVING:
				return exitError{fmt.Errorf("the status is %v", reply.GetStatus()), exitProbeUnhealthy}
			}
			fmt.Fprintf(c.OutOrStdout(), "status: %v\n", reply.GetStatus())
			return nil
		},
	}
	f.add(c)
	return c
}

// noHealth adds advice to the error of a server that does not know the health of a service.
func noHealth(err error, service string) error {
	st := status.Convert(err)
	switch st.Code() {
	case codes.NotFound:
		return status.Errorf(st.Code(), "the server does not tell the health of %q (%s)", service, st.Message())
	case codes.Unimplemented:
		return status.Errorf(st.Code(), "the server has no health service (%s); its program can register that of package "+
			"google.golang.org/grpc/health", st.Message())
	}
	return err
}
